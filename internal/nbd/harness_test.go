package nbd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of a test; nothing is decided by how long it takes.
const patience = 20 * time.Second

// fixture is a server on a UNIX socket.
type fixture struct {
	t      *testing.T
	server *Server
	path   string
	served chan error
	cancel context.CancelFunc
}

// serve starts a server. It is stopped, and checked for leaks, with the test.
func serve(t *testing.T, limits Limits, exports ...Export) *fixture {
	t.Helper()
	table, err := NewExports(exports...)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{
		t:      t,
		server: &Server{Exports: table, Limits: limits, Log: slog.New(slog.NewTextHandler(t.Output(), nil))},
		path:   filepath.Join(t.TempDir(), "s"),
		served: make(chan error, 1),
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.cancel = cancel
	l, err := Listen(ctx, "unix", f.path)
	if err != nil {
		t.Fatal(err)
	}
	go func() { f.served <- f.server.Serve(ctx, l) }()
	t.Cleanup(func() {
		f.stop()
		for _, e := range exports {
			if m, ok := e.Device.(*memory); ok && (m.open.Load() != 0 || m.leaked.Load() != 0) {
				t.Errorf("export %q: %d queues open, %d reservations leaked", e.Name, m.open.Load(), m.leaked.Load())
			}
		}
	})
	return f
}

// stop cuts all connections off and waits for the server.
func (f *fixture) stop() {
	f.cancel()
	select {
	case err := <-f.served:
		f.served <- err
	case <-time.After(patience):
		f.t.Fatal("server does not end")
	}
}

// peer is a client that speaks raw bytes.
type peer struct {
	t *testing.T
	net.Conn
	structured bool
}

// dial connects and does nothing else.
func (f *fixture) dial() *peer {
	f.t.Helper()
	c, err := net.Dial("unix", f.path)
	if err != nil {
		f.t.Fatal(err)
	}
	return newPeer(f.t, c)
}

func newPeer(t *testing.T, c net.Conn) *peer {
	c.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { c.Close() })
	return &peer{t: t, Conn: c}
}

// put sends bytes in one piece.
func (p *peer) put(parts ...[]byte) {
	p.t.Helper()
	if _, err := p.Write(bytes.Join(parts, nil)); err != nil {
		p.t.Fatalf("write: %v", err)
	}
}

// get receives exactly n bytes.
func (p *peer) get(n int) []byte {
	p.t.Helper()
	b := make([]byte, n)
	if n, err := io.ReadFull(p, b); err != nil {
		p.t.Fatalf("read %d bytes of %d: %v", n, len(b), err)
	}
	return b
}

// wantEnd checks that the server sends nothing more and closes.
func (p *peer) wantEnd() {
	p.t.Helper()
	b, err := io.ReadAll(p)
	if len(b) > 0 {
		p.t.Fatalf("got %d bytes (% x…) instead of the end", len(b), b[:min(len(b), 32)])
	}
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		p.t.Fatalf("got %v instead of the end", err)
	}
}

// greet exchanges flags.
func (p *peer) greet(flags uint32) {
	p.t.Helper()
	want := []byte("NBDMAGICIHAVEOPT\x00\x03")
	if got := p.get(greetingSize); !bytes.Equal(got, want) {
		p.t.Fatalf("greeting %q, want %q", got, want)
	}
	p.put(be32(flags))
}

const bothFlags = 3

func be16(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
func be32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }
func be64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

// option sends an option whose length is that of its data.
func (p *peer) option(id uint32, data ...[]byte) {
	p.t.Helper()
	all := bytes.Join(data, nil)
	p.put([]byte("IHAVEOPT"), be32(id), be32(uint32(len(all))), all)
}

// goData is the data of INFO and GO.
func goData(name string, ids ...uint16) []byte {
	b := append(be32(uint32(len(name))), name...)
	b = append(b, be16(uint16(len(ids)))...)
	for _, id := range ids {
		b = append(b, be16(id)...)
	}
	return b
}

// reply receives one option reply.
func (p *peer) reply(option uint32) (kind uint32, data []byte) {
	p.t.Helper()
	b := p.get(replyHeaderSize)
	if magic := binary.BigEndian.Uint64(b); magic != 0x3e889045565a9 {
		p.t.Fatalf("option reply magic %#x", magic)
	}
	if got := binary.BigEndian.Uint32(b[8:]); got != option {
		p.t.Fatalf("reply to option %d, want %d", got, option)
	}
	return binary.BigEndian.Uint32(b[12:]), p.get(int(binary.BigEndian.Uint32(b[16:])))
}

// wantReply receives an option reply of one kind. Errors must carry a text.
func (p *peer) wantReply(option, kind uint32) []byte {
	p.t.Helper()
	got, data := p.reply(option)
	if got != kind {
		p.t.Fatalf("reply type %#x (%q), want %#x", got, data, kind)
	}
	if kind&repError != 0 && (len(data) == 0 || len(data) > maximumText) {
		p.t.Fatalf("error text of %d bytes", len(data))
	}
	return data
}

// wantInSync checks that the haggling goes on.
func (p *peer) wantInSync() {
	p.t.Helper()
	p.option(optInfo, goData(""))
	p.infos(optInfo)
}

// infos receives the information replies to INFO or GO up to the ACK.
func (p *peer) infos(option uint32) map[uint16][]byte {
	p.t.Helper()
	infos := map[uint16][]byte{}
	for {
		kind, data := p.reply(option)
		if kind == repAck {
			return infos
		}
		if kind != repInfo {
			p.t.Fatalf("reply type %#x (%q), want an information or ACK", kind, data)
		}
		id := binary.BigEndian.Uint16(data)
		if _, twice := infos[id]; twice {
			p.t.Fatalf("information %d twice", id)
		}
		infos[id] = data[2:]
	}
}

// enter dials and negotiates up to transmission.
func (f *fixture) enter(name string, structured bool) *peer {
	f.t.Helper()
	p := f.dial()
	p.greet(bothFlags)
	if structured {
		p.option(optStructuredReply)
		p.wantReply(optStructuredReply, repAck)
		p.structured = true
	}
	p.option(optGo, goData(name, infoBlockSize))
	p.infos(optGo)
	return p
}

// request is the bytes of a request.
func request(flags, command uint16, cookie, offset uint64, length uint32) []byte {
	return bytes.Join([][]byte{be32(0x25609513), be16(flags), be16(command), be64(cookie), be64(offset), be32(length)}, nil)
}

// answer is a reply, of either dialect.
type answer struct {
	cookie uint64
	errno  syscall.Errno
	text   string
	data   []byte
	chunk  bool // it was a structured reply
	offset uint64
}

// answer receives one reply. read tells how many bytes of data follow a simple
// reply without error.
func (p *peer) answer(read func(cookie uint64) int) answer {
	p.t.Helper()
	magic := binary.BigEndian.Uint32(p.get(4))
	if magic == 0x67446698 {
		b := p.get(12)
		a := answer{errno: syscall.Errno(binary.BigEndian.Uint32(b)), cookie: binary.BigEndian.Uint64(b[4:])}
		if n := read(a.cookie); a.errno == 0 && n > 0 {
			if p.structured {
				p.t.Fatal("simple reply to READ after structured replies were agreed")
			}
			a.data = p.get(n)
		}
		return a
	}
	if magic != 0x668e33ef || !p.structured {
		p.t.Fatalf("reply magic %#x", magic)
	}
	b := p.get(16)
	a := answer{chunk: true, cookie: binary.BigEndian.Uint64(b[4:])}
	if flags := binary.BigEndian.Uint16(b); flags != 1 {
		p.t.Fatalf("chunk flags %#x, want DONE", flags)
	}
	body := p.get(int(binary.BigEndian.Uint32(b[12:])))
	switch kind := binary.BigEndian.Uint16(b[2:]); kind {
	case 1:
		a.offset, a.data = binary.BigEndian.Uint64(body), body[8:]
		if len(a.data) == 0 {
			p.t.Fatal("chunk without data")
		}
	case 0x8001:
		a.errno = syscall.Errno(binary.BigEndian.Uint32(body))
		a.text = string(body[6:])
		if n := int(binary.BigEndian.Uint16(body[4:])); n != len(a.text) || n == 0 || n > maximumText {
			p.t.Fatalf("error text of %d bytes in a chunk with %d", n, len(a.text))
		}
		if a.errno == 0 {
			p.t.Fatal("error chunk without error")
		}
	default:
		p.t.Fatalf("chunk type %#x", kind)
	}
	return a
}

// do sends one request and returns its reply.
func (p *peer) do(flags, command uint16, offset uint64, length uint32, payload ...[]byte) answer {
	p.t.Helper()
	const cookie = 0xfeed_0000_dead_beef
	p.put(append([][]byte{request(flags, command, cookie, offset, length)}, payload...)...)
	n := 0
	if command == cmdRead {
		n = int(length)
	}
	a := p.answer(func(uint64) int { return n })
	if a.cookie != cookie {
		p.t.Fatalf("cookie %#x", a.cookie)
	}
	return a
}

// want does a request and checks its errno.
func (p *peer) want(errno syscall.Errno, flags, command uint16, offset uint64, length uint32, payload ...[]byte) []byte {
	p.t.Helper()
	a := p.do(flags, command, offset, length, payload...)
	if a.errno != errno {
		p.t.Fatalf("command %d flags %#x offset %#x length %#x: errno %d (%v) %q, want %d",
			command, flags, offset, length, int(a.errno), a.errno, a.text, int(errno))
	}
	if p.structured && (errno != 0 || command == cmdRead) != a.chunk {
		p.t.Fatalf("command %d errno %d: chunk is %v", command, errno, a.chunk)
	}
	if a.chunk && errno == 0 && a.offset != offset {
		p.t.Fatalf("data at %d, want %d", a.offset, offset)
	}
	return a.data
}

// wantAlive checks that requests are still answered.
func (p *peer) wantAlive() {
	p.t.Helper()
	p.want(0, 0, cmdRead, 0, 512)
}

// disconnect ends the connection in peace.
func (p *peer) disconnect() {
	p.t.Helper()
	p.put(request(0, cmdDisconnect, 1, 0, 0))
	p.wantEnd()
}

// pair returns the ends of a socket pair.
func pair(t testing.TB) (server, client net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	return ends[0], ends[1]
}
