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

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd/nbdtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testTimeout bounds every wait of a test; nothing is decided by how long it
// takes.
const testTimeout = time.Minute

// fixture is a server on a UNIX socket.
type fixture struct {
	t      *testing.T
	server *Server
	path   string
	served chan error
	cancel context.CancelFunc
	tls    bool // clients of enter start TLS first
}

// serve starts a server. It is stopped, and checked for leaks, with the test.
func serve(t *testing.T, limits Limits, exports ...Export) *fixture {
	t.Helper()
	return serveTLS(t, TLS{}, limits, exports...)
}

// serveTLS is serve with TLS.
func serveTLS(t *testing.T, config TLS, limits Limits, exports ...Export) *fixture {
	t.Helper()
	return serveLog(t, t.Output(), config, limits, exports...)
}

// serveLog is serveTLS with a place for the log.
func serveLog(t *testing.T, log io.Writer, config TLS, limits Limits, exports ...Export) *fixture {
	t.Helper()
	table, err := NewExports(exports...)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{
		t:      t,
		server: &Server{Exports: table, TLS: config, Limits: limits, Log: slog.New(slog.NewTextHandler(log, nil))},
		path:   filepath.Join(t.TempDir(), "s"),
		served: make(chan error, 1),
		tls:    config.Required,
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
	case <-time.After(testTimeout):
		f.t.Fatal("server does not end")
	}
}

// peer is a client that speaks raw bytes.
type peer struct {
	t *testing.T
	net.Conn
	replyMode replyMode
}

// dial connects and does nothing else.
func (f *fixture) dial() *peer {
	f.t.Helper()
	return dial(f.t, &net.UnixAddr{Net: "unix", Name: f.path})
}

// dial is dial of a fixture for any server.
func dial(t *testing.T, a net.Addr) *peer {
	t.Helper()
	c, err := net.Dial(a.Network(), a.String())
	if err != nil {
		t.Fatal(err)
	}
	return newPeer(t, c)
}

func newPeer(t *testing.T, c net.Conn) *peer {
	c.SetDeadline(time.Now().Add(testTimeout))
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
	p.put(nbdtest.Option(id, data...))
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
	p.option(optInfo, nbdtest.GoData(""))
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

// connectExport dials and negotiates up to transmission, with all that the
// reply mode has.
func (f *fixture) connectExport(name string, d replyMode) *peer {
	f.t.Helper()
	p := f.dial()
	p.greet(bothFlags)
	if f.tls {
		p.startTLS("alice")
	}
	p.speak(d)
	if d != simple {
		p.option(optSetMeta, nbdtest.MetaData(name, contextName))
		if kind, _ := p.reply(optSetMeta); kind == repMetaContext {
			p.wantReply(optSetMeta, repAck)
		}
	}
	p.option(optGo, nbdtest.GoData(name, infoBlockSize))
	p.infos(optGo)
	return p
}

// speak agrees on a reply mode.
func (p *peer) speak(d replyMode) {
	p.t.Helper()
	if option, ok := map[replyMode]uint32{structured: optStructuredReply, extended: optExtendedHeaders}[d]; ok {
		p.option(option)
		p.wantReply(option, repAck)
	}
	p.replyMode = d
}

// request is the bytes of a compact request.
func request(flags, command uint16, cookie, offset uint64, length uint32) []byte {
	return bytes.Join([][]byte{be32(0x25609513), be16(flags), be16(command), be64(cookie), be64(offset), be32(length)}, nil)
}

// extendedRequest is the bytes of an extended request.
func extendedRequest(flags, command uint16, cookie, offset, length uint64) []byte {
	return bytes.Join([][]byte{be32(0x21e41c71), be16(flags), be16(command), be64(cookie), be64(offset), be64(length)}, nil)
}

// request is the bytes of a request in the peer's reply mode.
func (p *peer) request(flags, command uint16, cookie, offset uint64, length uint32) []byte {
	if p.replyMode != extended {
		return request(flags, command, cookie, offset, length)
	}
	if command == cmdWrite {
		flags |= cmdFlagPayloadLen
	}
	return extendedRequest(flags, command, cookie, offset, uint64(length))
}

// answer is a reply, of whatever reply mode.
type answer struct {
	cookie  uint64
	errno   syscall.Errno
	text    string
	data    []byte
	pieces  int    // chunks
	holes   int    // of these
	chunk   bool   // it was a structured or extended reply
	offset  uint64 // of the data; of the request, if it is extended
	extents []block.Extent
}

// answer receives one reply. read tells how many bytes of data follow a simple
// reply without error.
func (p *peer) answer(read func(cookie uint64) int) answer {
	p.t.Helper()
	magic := binary.BigEndian.Uint32(p.get(4))
	if magic == 0x67446698 && p.replyMode != extended {
		b := p.get(12)
		a := answer{errno: syscall.Errno(binary.BigEndian.Uint32(b)), cookie: binary.BigEndian.Uint64(b[4:])}
		if n := read(a.cookie); a.errno == 0 && n > 0 {
			if p.replyMode != simple {
				p.t.Fatal("simple reply to READ after structured replies were agreed")
			}
			a.data = p.get(n)
		}
		return a
	}
	a := answer{chunk: true}
	for {
		done := p.chunk(magic, &a)
		if done {
			return a
		}
		magic = binary.BigEndian.Uint32(p.get(4))
	}
}

// chunk receives a chunk behind its magic, and reports whether it is the last.
func (p *peer) chunk(magic uint32, a *answer) (done bool) {
	p.t.Helper()
	var b, body []byte
	switch {
	case magic == 0x668e33ef && p.replyMode == structured:
		b = p.get(16)
		body = p.get(int(binary.BigEndian.Uint32(b[12:])))
	case magic == 0x6e8a278c && p.replyMode == extended:
		b = p.get(28)
		body = p.get(int(binary.BigEndian.Uint64(b[20:])))
		a.offset = binary.BigEndian.Uint64(b[12:])
	default:
		p.t.Fatalf("reply magic %#x", magic)
	}
	if cookie := binary.BigEndian.Uint64(b[4:]); a.pieces > 0 && cookie != a.cookie {
		p.t.Fatalf("chunk of %#x inside the reply to %#x", cookie, a.cookie)
	} else {
		a.cookie = cookie
	}
	a.pieces++
	flags := binary.BigEndian.Uint16(b)
	if flags > 1 {
		p.t.Fatalf("chunk flags %#x", flags)
	}
	at := func() {
		offset := binary.BigEndian.Uint64(body)
		if len(a.data) == 0 && p.replyMode == structured {
			a.offset = offset
		}
		if offset != a.offset+uint64(len(a.data)) {
			p.t.Fatalf("chunk at %d behind %d bytes at %d", offset, len(a.data), a.offset)
		}
	}
	before := len(a.data)
	switch kind := binary.BigEndian.Uint16(b[2:]); kind {
	case 0:
		if len(body) != 0 || flags != 1 {
			p.t.Fatalf("empty chunk of %d bytes, flags %#x", len(body), flags)
		}
		return true
	case 1:
		at()
		a.data = append(a.data, body[8:]...)
	case 2:
		at()
		a.holes++
		if len(body) != 12 {
			p.t.Fatalf("hole of %d bytes", len(body))
		}
		a.data = append(a.data, make([]byte, binary.BigEndian.Uint32(body[8:]))...)
	case 5, 6:
		a.extents = p.extents(kind, body)
		return flags == 1
	case 0x8001:
		p.errorChunk(a, body)
		return flags == 1
	default:
		p.t.Fatalf("chunk type %#x", kind)
	}
	if len(a.data) == before {
		p.t.Fatal("chunk without data")
	}
	return flags == 1
}

// errorChunk decodes an error.
func (p *peer) errorChunk(a *answer, body []byte) {
	p.t.Helper()
	a.errno = syscall.Errno(binary.BigEndian.Uint32(body))
	a.text = string(body[6:])
	if n := int(binary.BigEndian.Uint16(body[4:])); n != len(a.text) || n == 0 || n > maximumText {
		p.t.Fatalf("error text of %d bytes in a chunk with %d", n, len(a.text))
	}
	if a.errno == 0 {
		p.t.Fatal("error chunk without error")
	}
}

// extents decodes what a BLOCK_STATUS is answered with.
func (p *peer) extents(kind uint16, body []byte) (extents []block.Extent) {
	p.t.Helper()
	if id := binary.BigEndian.Uint32(body); id != contextID {
		p.t.Fatalf("context %d", id)
	}
	body = body[4:]
	if (kind == 6) != (p.replyMode == extended) {
		p.t.Fatalf("extents in a chunk of type %d", kind)
	}
	if kind == 5 {
		for ; len(body) > 0; body = body[8:] {
			e := block.Extent{Length: int64(binary.BigEndian.Uint32(body)), Flags: block.ExtentFlags(binary.BigEndian.Uint32(body[4:]))}
			extents = append(extents, e)
		}
		return extents
	}
	count := binary.BigEndian.Uint32(body)
	for body = body[4:]; len(body) > 0; body = body[16:] {
		e := block.Extent{Length: int64(binary.BigEndian.Uint64(body)), Flags: block.ExtentFlags(binary.BigEndian.Uint64(body[8:]))}
		extents = append(extents, e)
	}
	if int(count) != len(extents) {
		p.t.Fatalf("%d extents, the count is %d", len(extents), count)
	}
	return extents
}

// do sends one request and returns its reply.
func (p *peer) do(flags, command uint16, offset uint64, length uint32, payload ...[]byte) answer {
	p.t.Helper()
	return p.ask(p.request(flags, command, cookie, offset, length), command, length, payload...)
}

// cookie is that of requests of do.
const cookie = 0xfeed_0000_dead_beef

// ask sends a request with the usual cookie and returns its reply.
func (p *peer) ask(request []byte, command uint16, length uint32, payload ...[]byte) answer {
	p.t.Helper()
	p.put(append([][]byte{request}, payload...)...)
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
	needsChunk := p.replyMode == extended || p.replyMode == structured && (errno != 0 || command == cmdRead || command == cmdBlockStatus)
	if a.chunk != needsChunk {
		p.t.Fatalf("command %d errno %d: chunk is %v", command, errno, a.chunk)
	}
	if a.chunk && (errno == 0 && command == cmdRead || p.replyMode == extended) && a.offset != offset { // S-7
		p.t.Fatalf("reply for offset %d, want %d", a.offset, offset)
	}
	if command == cmdRead && errno == 0 && len(a.data) != int(length) {
		p.t.Fatalf("READ of %d bytes returns %d", length, len(a.data))
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
	p.put(p.request(0, cmdDisconnect, 1, 0, 0))
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
