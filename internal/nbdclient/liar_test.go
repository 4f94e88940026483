package nbdclient

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd"
)

// liar is an NBD server in the test, of simple replies, whose behaviour is that
// of a broken or a changed one.
type liar struct {
	size  atomic.Int64
	flags atomic.Uint32
	conns atomic.Int64 // that were opened

	// reply writes the reply to a read of length bytes, and reports whether to
	// go on.
	reply func(c net.Conn, cookie uint64, length uint32) bool
}

// flagsOfLiar are HAS_FLAGS, SEND_FLUSH and SEND_TRIM.
const flagsOfLiar = 1<<0 | 1<<2 | 1<<5

// open opens the export of the server.
func (l *liar) open(t *testing.T, reconnect time.Duration) *Device {
	t.Helper()
	l.size.CompareAndSwap(0, 1<<20)
	l.flags.CompareAndSwap(0, flagsOfLiar)
	d, err := Open(t.Context(), Config{Name: "liar", Reconnect: reconnect, Connect: func(ctx context.Context) (*nbd.Opened, error) {
		near, far := socketPair(t)
		l.conns.Add(1)
		go l.serve(far)
		return nbd.Client{}.Open(ctx, near, "")
	}})
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

// socketPair returns both ends of a connection.
func socketPair(t *testing.T) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen("unix", t.TempDir()+"/s")
	must(t, err)
	defer l.Close()
	near, err = net.Dial("unix", l.Addr().String())
	must(t, err)
	far, err = l.Accept()
	must(t, err)
	return near, far
}

// serve serves one connection.
func (l *liar) serve(c net.Conn) {
	defer c.Close()
	send := func(parts ...any) bool {
		_, err := c.Write(be(parts...))
		return err == nil
	}
	const magicOption, magicReply = uint64(0x49484156454F5054), uint64(0x3e889045565a9)
	if !send([]byte("NBDMAGIC"), magicOption, uint16(3)) {
		return
	}
	var flags [4]byte
	if _, err := io.ReadFull(c, flags[:]); err != nil {
		return
	}
	for option := uint32(0); option != 7; { // GO
		var header [16]byte
		if _, err := io.ReadFull(c, header[:]); err != nil {
			return
		}
		option = binary.BigEndian.Uint32(header[8:])
		if _, err := io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint32(header[12:]))); err != nil {
			return
		}
		if option != 7 {
			send(magicReply, option, uint32(1<<31+1), uint32(0)) // not supported
			continue
		}
		send(magicReply, option, uint32(3), uint32(12), uint16(0), uint64(l.size.Load()), uint16(l.flags.Load()))
		send(magicReply, option, uint32(1), uint32(0))
	}
	for {
		var request [requestSize]byte
		if _, err := io.ReadFull(c, request[:]); err != nil {
			return
		}
		command := binary.BigEndian.Uint16(request[6:])
		if command != cmdRead || !l.reply(c, binary.BigEndian.Uint64(request[8:]), binary.BigEndian.Uint32(request[24:])) {
			return
		}
	}
}

// answer sends a right reply.
func answer(c net.Conn, cookie uint64, length uint32) bool {
	_, err := c.Write(be(magicSimpleReply, uint32(0), cookie, make([]byte, length)))
	return err == nil
}

// A server that breaks the protocol fails its disk for good, and is not asked
// anew; another disk goes on.
func TestLyingServersFailTheirDisk(t *testing.T) {
	good := newClient(t, (&liar{reply: answer}).open(t, time.Minute))
	for name, reply := range map[string]func(c net.Conn, cookie uint64, length uint32) bool{
		"a cookie of no request": func(c net.Conn, cookie uint64, length uint32) bool { return answer(c, cookie+1, length) },
		"a reply twice": func(c net.Conn, cookie uint64, length uint32) bool {
			first := answer(c, cookie, length)
			return answer(c, cookie, length) && first
		},
		"more bytes than asked": func(c net.Conn, cookie uint64, length uint32) bool { return answer(c, cookie, length+512) },
		"chunks not agreed on": func(c net.Conn, cookie uint64, _ uint32) bool {
			_, err := c.Write(be(magicChunk, uint16(1), chunkNone, cookie, uint32(0)))
			return err == nil
		},
		"a reply that is garbage": func(c net.Conn, _ uint64, _ uint32) bool { _, err := c.Write(make([]byte, 64)); return err == nil },
	} {
		t.Run(name, func(t *testing.T) {
			l := &liar{reply: reply}
			k := newClient(t, l.open(t, time.Minute))
			_, err := k.get()
			for err == nil { // the lie came behind a right reply
				_, err = k.get()
			}
			if block.Errno(err) != syscall.EIO || !strings.Contains(err.Error(), "breaks the protocol") {
				t.Errorf("the read returned %v", err)
			}
			before := l.conns.Load()
			if _, err := k.get(); block.Errno(err) != syscall.EIO || l.conns.Load() != before {
				t.Errorf("a later read returned %v, after %d connections", err, l.conns.Load()-before)
			}
			if _, err := good.get(); err != nil {
				t.Errorf("the other disk: %v", err)
			}
		})
	}
}

// A server that is back with a shorter disk, or with one that is read-only,
// fails the disk with a line that says what has changed; a longer one does not.
func TestServerChangesWhileAway(t *testing.T) {
	for _, c := range []struct {
		name, want string
		change     func(l *liar)
	}{
		{"shorter", "has 524288 bytes and had 1048576", func(l *liar) { l.size.Store(512 << 10) }},
		{"read-only", "can do other things", func(l *liar) { l.flags.Store(flagsOfLiar | 1<<1) }},
		{"no flush", "can do other things", func(l *liar) { l.flags.Store(1 << 0) }},
		{"longer", "", func(l *liar) { l.size.Store(2 << 20) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := &liar{}
			l.reply = func(conn net.Conn, cookie uint64, length uint32) bool {
				if l.conns.Load() == 1 {
					c.change(l)
					return false // and the connection ends
				}
				return answer(conn, cookie, length)
			}
			d := l.open(t, time.Minute)
			_, err := newClient(t, d).get()
			switch state := d.State(); {
			case c.want == "":
				if err != nil || d.Info().Size != 2<<20 || state.Away != nil || state.Failure != nil || state.Losses != 1 {
					t.Errorf("the read returned %v of %d bytes, state %+v", err, d.Info().Size, state)
				}
			case block.Errno(err) != syscall.EIO || !strings.Contains(err.Error(), c.want):
				t.Errorf("the read returned %v", err)
			case state.Failure == nil:
				t.Error("the disk has not failed")
			}
		})
	}
}

// A queue that is opened while the server is away waits for it.
func TestQueueOpenedWhileServerIsAway(t *testing.T) {
	r := newRestartable(t, 1<<20)
	d := r.device(time.Minute, false)
	must(t, newClient(t, d).put(5, block.FUA))
	r.kill()
	k := newClient(t, d)
	if state := d.State(); state.Away == nil {
		t.Error("the server is not known to be away")
	}
	k.submit(&block.Request{Op: block.Read, Length: 4096, Data: make([]byte, 4096)})
	r.start()
	got := k.wait()
	if got.Err != nil || got.Data[0] != 5 {
		t.Errorf("the read returned %d, %v", got.Data[0], got.Err)
	}
	if state := d.State(); state.Away != nil || state.Failure != nil {
		t.Errorf("the state is %+v", state)
	}
}
