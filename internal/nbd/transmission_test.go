package nbd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd/nbdtest"
)

// shapes runs a test with both shapes of a queue and both reply dialects. The
// export has 8 MiB and every feature.
func shapes(t *testing.T, limits Limits, test func(t *testing.T, f *fixture, m *memory, p *peer)) {
	for _, later := range []bool{false, true} {
		for _, d := range replyModes {
			t.Run(fmt.Sprintf("later=%v,%v", later, d), func(t *testing.T) {
				m := newMemory(8 << 20)
				m.later = later
				f := serve(t, limits, Export{Name: "disk", Device: m})
				test(t, f, m, f.connectExport("disk", d))
			})
		}
		t.Run(fmt.Sprintf("later=%v,tls", later), func(t *testing.T) {
			m := newMemory(8 << 20)
			m.later = later
			f := serveTLS(t, TLS{Config: certificates(t).server, Required: true}, limits, Export{Name: "disk", Device: m})
			test(t, f, m, f.connectExport("disk", extended))
		})
	}
}

var replyModes = []replyMode{simple, structured, extended}

func (d replyMode) String() string { return [...]string{"simple", "structured", "extended"}[d] }

// fill writes a pattern. The race detector would look at every byte of it, and
// at nothing that the callers do not touch as well.
//
//go:norace
func fill(b []byte, seed byte) { copy(b, pattern(len(b), seed)) }

// pattern returns bytes that tell their place. The race detector would look at
// each one, of memory that no other goroutine has.
//
//go:norace
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)*31 + byte(i>>8)*17 + byte(i>>16) + seed
	}
	return b
}

// TestRequests does every command in every way that is allowed.
func TestRequests(t *testing.T) {
	shapes(t, Limits{}, func(t *testing.T, f *fixture, m *memory, p *peer) {
		const fua, noHole, fast = cmdFlagFUA, cmdFlagNoHole, cmdFlagFastZero
		model := m.fill(1)
		check := func(offset uint64, length uint32, flags uint16) {
			t.Helper()
			got := p.want(0, flags, cmdRead, offset, length)
			if !bytes.Equal(got, model[offset:offset+uint64(length)]) {
				t.Fatalf("READ of %d at %d: wrong data", length, offset)
			}
		}
		for _, length := range []uint32{1, 511, 512, 4096, 16<<10 - 1, 16 << 10, 256 << 10, 256<<10 + 13, 3 << 20, 8 << 20} {
			for i, flags := range []uint16{0, fua} { // T-07
				offset := uint64(8<<20-length) / 2
				data := pattern(int(length), byte(length)+byte(i))
				p.want(0, flags, cmdWrite, offset, length, data)
				copy(model[offset:], data)
				check(offset, length, flags)
			}
		}
		check(0, 8<<20, 0)
		p.want(0, 0, cmdFlush, 0, 0)
		p.want(0, fua, cmdFlush, 0, 0)
		for i, flags := range []uint16{0, noHole, fast, fua, noHole | fast | fua} { // T-12
			offset := uint64(i) * 100_001
			p.want(0, flags, cmdWriteZeroes, offset, 50_000)
			clear(model[offset : offset+50_000])
		}
		p.want(0, fua, cmdTrim, 3<<20, 1<<20) // T-13
		clear(model[3<<20 : 4<<20])
		check(0, 8<<20, 0)
		if p.replyMode != simple {
			check(512, 1<<20, cmdFlagDF) // S-3
		} else {
			p.want(syscall.EINVAL, cmdFlagDF, cmdRead, 0, 512) // T-06
		}
		p.want(0, 0, cmdWriteZeroes, 0, 8<<20) // the whole disk
		clear(model)
		check(0, 8<<20, 0)
		p.disconnect() // T-17
	})
}

// Only the requests of the client reach the device (T-08, T-12).
func TestDeviceSeesFlags(t *testing.T) {
	m := newMemory(1 << 20)
	var seen atomic.Value
	m.failWith(func(r *block.Request) error {
		seen.Store(*r)
		return nil
	})
	f := serve(t, Limits{}, Export{Device: m})
	p := f.connectExport("", structured)
	for _, row := range []struct {
		flags, command uint16
		op             block.Op
		want           block.Flags
	}{
		{0, cmdWrite, block.Write, 0},
		{cmdFlagFUA, cmdWrite, block.Write, block.FUA},
		{cmdFlagFUA, cmdTrim, block.Trim, block.FUA},
		{cmdFlagFUA, cmdWriteZeroes, block.WriteZeroes, block.FUA},
		{cmdFlagNoHole, cmdWriteZeroes, block.WriteZeroes, block.NoHole},
		{cmdFlagFastZero, cmdWriteZeroes, block.WriteZeroes, block.FastZero},
		{cmdFlagFUA | cmdFlagDF, cmdRead, block.Read, 0},
	} {
		var payload []byte
		if row.command == cmdWrite {
			payload = make([]byte, 512)
		}
		p.want(0, row.flags, row.command, 1024, 512, payload)
		r := seen.Load().(block.Request)
		if r.Op != row.op || r.Flags != row.want || r.Offset != 1024 || r.Length != 512 {
			t.Errorf("command %d flags %#x: device got %+v", row.command, row.flags, r)
		}
	}
	p.want(0, cmdFlagFUA, cmdFlush, 0, 0)
	if r := seen.Load().(block.Request); r.Op != block.Flush || r.Flags != 0 {
		t.Errorf("FLUSH: device got %+v", r)
	}
}

// T-09 a FLUSH on one connection reaches the device after every write that was
// answered on another.
func TestFlushAcrossConnections(t *testing.T) {
	shapes(t, Limits{}, func(t *testing.T, f *fixture, m *memory, p *peer) {
		other := f.connectExport("", p.replyMode)
		for i := range 50 {
			data := pattern(4096, byte(i))
			var flushed atomic.Bool
			m.failWith(func(r *block.Request) error {
				if r.Op == block.Flush {
					flushed.Store(m.holds(0, data))
				}
				return nil
			})
			p.want(0, 0, cmdWrite, 0, 4096, data)
			other.want(0, 0, cmdFlush, 0, 0)
			if !flushed.Load() {
				t.Fatal("the flush came before the write")
			}
		}
	})
}

// T-24 small replies over TCP are not held back.
func TestNoDelay(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.(*net.TCPConn).SetNoDelay(false); err != nil {
		t.Fatal(err)
	}
	s, err := dupSocket(c)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	if on, err := unix.GetsockoptInt(int(s), unix.IPPROTO_TCP, unix.TCP_NODELAY); err != nil || on == 0 {
		t.Errorf("TCP_NODELAY is %d, %v", on, err)
	}
}

// T-21 what a device reports, and what a client gets.
func TestErrnos(t *testing.T) {
	var result atomic.Value
	type boxed struct{ error }
	shapes(t, Limits{}, func(t *testing.T, f *fixture, m *memory, p *peer) {
		m.failWith(func(*block.Request) error { return result.Load().(boxed).error })
		for _, row := range []struct {
			err  error
			want syscall.Errno
		}{
			{syscall.EPERM, 1},
			{syscall.EIO, 5},
			{syscall.ENOMEM, 12},
			{syscall.EINVAL, 22},
			{syscall.ENOSPC, 28},
			{syscall.EROFS, 1},
			{syscall.EACCES, 1},
			{syscall.EDQUOT, 28},
			{syscall.EFBIG, 28},
			{syscall.EOVERFLOW, 5},
			{syscall.ENOTSUP, 5},
			{syscall.ESHUTDOWN, 5},
			{syscall.ETIMEDOUT, 5},
			{syscall.ENOENT, 5},
			{errors.New("lost"), 5},
			{fmt.Errorf("write segment 7: %w", syscall.ENOSPC), 28},
		} {
			result.Store(boxed{row.err})
			for _, command := range []uint16{cmdRead, cmdWrite, cmdTrim, cmdWriteZeroes} { // T-03
				var payload []byte
				if command == cmdWrite {
					payload = make([]byte, 512)
				}
				p.put(p.request(0, command, 3, 0, 512), payload)
				a := p.answer(func(uint64) int { return 512 })
				if a.errno != row.want || len(a.data) != 0 {
					t.Errorf("%v: errno %d with %d bytes, want %d", row.err, int(a.errno), len(a.data), int(row.want))
				}
				if p.replyMode != simple && !strings.Contains(a.text, row.err.Error()) { // S-2
					t.Errorf("%v: text %q", row.err, a.text)
				}
			}
		}
		result.Store(boxed{syscall.ENOTSUP})
		p.want(syscall.ENOTSUP, cmdFlagFastZero, cmdWriteZeroes, 0, 512) // T-12
		result.Store(boxed{errors.New(strings.Repeat("ü", 4096))})
		a := p.do(0, cmdRead, 0, 512)
		if p.replyMode != simple && len(a.text) != 4096-len("READ: ")%2 { // CVE-2020-10761
			t.Errorf("text of %d bytes", len(a.text))
		}
		result.Store(boxed{nil})
		p.wantAlive()
	})
}

// T-15, T-16: what ends the connection.
func TestHardDisconnects(t *testing.T) {
	for name, bytes := range map[string]func(p *peer) []byte{
		"T-15 bad magic":             func(*peer) []byte { return append(be32(0x25609514), make([]byte, 28)...) },
		"T-16 WRITE over 2x maximum": func(p *peer) []byte { return p.request(0, cmdWrite, 1, 0, 128<<20+1) },
		"T-16 WRITE of 4 GiB":        func(p *peer) []byte { return p.request(0, cmdWrite, 1, 0, math.MaxUint32) },
	} {
		t.Run(name, func(t *testing.T) {
			shapes(t, Limits{}, func(t *testing.T, f *fixture, m *memory, p *peer) {
				other := f.connectExport("", p.replyMode)
				p.put(bytes(p))
				p.wantEnd()
				other.wantAlive()
			})
		})
	}
}

// T-16 a request of the maximum, which is beyond all buffers, and 32 MiB
// always.
func TestLargestRequest(t *testing.T) {
	m := newMemory(64 << 20)
	f := serve(t, Limits{}, Export{Device: m})
	p := f.connectExport("", simple)
	data := pattern(64<<20, 9)
	p.want(0, 0, cmdWrite, 0, 64<<20, data)
	if got := p.want(0, 0, cmdRead, 0, 64<<20); !bytes.Equal(got, data) {
		t.Fatal("wrong data")
	}
}

// T-17 what is in flight is answered before DISC closes, and nothing after it
// is looked at.
func TestDisconnectAnswersEverything(t *testing.T) {
	shapes(t, Limits{}, func(t *testing.T, f *fixture, m *memory, p *peer) {
		const n = 64
		var stream [][]byte
		for i := range uint64(n) {
			stream = append(stream, p.request(0, cmdWrite, i, i*4096, 4096), pattern(4096, byte(i)))
		}
		stream = append(stream, p.request(0, cmdDisconnect, 99, 0, 0), []byte("and this is nothing"))
		p.put(stream...)
		seen := map[uint64]bool{}
		for range n {
			a := p.answer(func(uint64) int { return 0 })
			if a.errno != 0 || seen[a.cookie] || a.cookie >= n {
				t.Fatalf("answer %+v", a)
			}
			seen[a.cookie] = true
		}
		p.wantEnd()
		for i := range n {
			if !m.holds(int64(i)*4096, pattern(4096, byte(i))) {
				t.Fatalf("write %d is not on the disk", i)
			}
		}
	})
}

// A client that closes its sending half gets the replies to what it sent.
func TestHalfClose(t *testing.T) {
	shapes(t, Limits{}, func(t *testing.T, f *fixture, m *memory, p *peer) {
		p.put(p.request(0, cmdWrite, 1, 0, 4096), pattern(4096, 1), p.request(0, cmdWrite, 2, 0, 4096)[:20])
		p.Conn.(interface{ CloseWrite() error }).CloseWrite()
		if a := p.answer(func(uint64) int { return 0 }); a.errno != 0 || a.cookie != 1 {
			t.Fatalf("answer %+v", a)
		}
		p.wantEnd()
	})
}

// T-18 clients that vanish with replies pending or in the middle of a payload
// do not touch others, nor the disk.
func TestAbruptClose(t *testing.T) {
	shapes(t, Limits{}, func(t *testing.T, f *fixture, m *memory, p *peer) {
		before := m.fill(5)
		for i := range 20 {
			v := f.connectExport("", p.replyMode)
			if i%2 == 0 {
				for j := range uint64(64) {
					v.put(p.request(0, cmdRead, j, 0, 1<<20))
				}
			} else {
				v.put(p.request(0, cmdWrite, 1, 0, 1<<20), pattern(i*40_000, 1))
			}
			v.Close()
			p.wantAlive()
		}
		if !bytes.Equal(m.snapshot(), before) {
			t.Fatal("half a write reached the disk")
		}
	})
}

// T-19 cookies are opaque, and more requests than entries are all answered.
func TestPipeline(t *testing.T) {
	shapes(t, Limits{Depth: 16}, func(t *testing.T, f *fixture, m *memory, p *peer) {
		disk := m.fill(3)
		const n = 1000
		go func() {
			var stream []byte
			for i := range uint64(n) {
				stream = append(stream, p.request(0, cmdRead, ^uint64(0)-i/2, i/2*512, 512)...)
			}
			p.Write(stream)
		}()
		seen := map[uint64]int{}
		for range n {
			a := p.answer(func(uint64) int { return 512 })
			i := ^uint64(0) - a.cookie
			if seen[i]++; !bytes.Equal(a.data, disk[i*512:][:512]) {
				t.Fatalf("cookie %#x: wrong data", a.cookie)
			}
		}
		for i := range uint64(n / 2) {
			if seen[i] != 2 {
				t.Fatalf("cookie of request %d seen %d times", i, seen[i])
			}
		}
	})
}

// T-20 a client that sends requests and takes no replies costs bounded memory,
// and is cut off. So is one that stops in the middle of a request, but none
// that is idle.
func TestStalledClients(t *testing.T) {
	limits := Limits{Progress: 50 * time.Millisecond, InFlight: 4 << 20}
	for name, bytesOf := range map[string]func(p *peer) []byte{
		"T-20 no replies taken":     func(p *peer) []byte { return bytes.Repeat(p.request(0, cmdRead, 1, 0, 1<<20), 10_000) },
		"small replies not taken":   func(p *peer) []byte { return bytes.Repeat(p.request(0, cmdRead, 1, 0, 512), 100_000) },
		"half a header":             func(p *peer) []byte { return p.request(0, cmdRead, 1, 0, 512)[:27] },
		"half a payload":            func(p *peer) []byte { return append(p.request(0, cmdWrite, 1, 0, 4096), make([]byte, 4095)...) },
		"half of a refused payload": func(p *peer) []byte { return append(p.request(0x8000, cmdWrite, 1, 0, 4096), make([]byte, 4095)...) },
	} {
		t.Run(name, func(t *testing.T) {
			shapes(t, limits, func(t *testing.T, f *fixture, m *memory, p *peer) {
				m.fill(1)
				stream := bytesOf(p)
				idle := f.connectExport("", p.replyMode)
				sent := make(chan int, 1)
				go func() {
					n, _ := p.Write(stream)
					sent <- n
				}()
				for len(f.server.Status().Connections) != 1 {
					time.Sleep(time.Millisecond)
				}
				if n := <-sent; len(stream) > 1<<20 && n == len(stream) {
					t.Error("the server took everything")
				}
				if n := f.server.Status().Total.BytesRead; n > 8<<20 {
					t.Errorf("%d bytes were read without a request", n)
				}
				p.Close()
				idle.wantAlive()
			})
		})
	}
}

// Another listener, over TCP, and its end with the context.
func TestTCP(t *testing.T) {
	f := serve(t, Limits{}, Export{Device: newMemory(1 << 20)})
	ctx, cancel := context.WithCancelCause(t.Context())
	l, err := Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- f.server.Serve(ctx, l) }()
	p := dial(t, l.Addr())
	p.greet(bothFlags)
	p.option(optGo, nbdtest.GoData(""))
	p.infos(optGo)
	data := pattern(700_000, 5)
	p.want(0, 0, cmdWrite, 100, 700_000, data)
	if got := p.want(0, 0, cmdRead, 100, 700_000); !bytes.Equal(got, data) {
		t.Error("wrong data")
	}
	f.connectExport("", simple).wantAlive()
	cause := errors.New("enough")
	cancel(cause)
	if err := <-served; !errors.Is(err, cause) {
		t.Errorf("serve: %v", err)
	}
	p.wantEnd()
	f.connectExport("", simple).wantAlive()
}

func TestServeConn(t *testing.T) {
	m := newMemory(1 << 20)
	e := &Export{Name: "disk", Device: m}
	for _, row := range []struct {
		name string
		do   func(p *peer, cancel func())
		want error
	}{
		{"disconnect", func(p *peer, _ func()) { p.disconnect() }, nil},
		{"close", func(p *peer, _ func()) { p.Close() }, nil},
		{"cancel", func(p *peer, cancel func()) { cancel(); p.wantEnd() }, context.Canceled},
		{"bad magic", func(p *peer, _ func()) { p.put(make([]byte, 28)); p.wantEnd() }, errProtocol},
	} {
		t.Run(row.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			server, client := pair(t)
			ended := make(chan error, 1)
			s := &Server{}
			ready := make(chan struct{})
			go func() { ended <- s.ServeConn(ctx, server, e, func() { close(ready) }) }()
			<-ready
			if m.open.Load() != 1 {
				t.Error("ready without a queue")
			}
			p := newPeer(t, client)
			p.want(0, 0, cmdWrite, 0, 512, pattern(512, 1))
			p.wantAlive()
			row.do(p, cancel)
			err := <-ended
			if row.name == "close" {
				if err == nil || !strings.Contains(err.Error(), "EOF") {
					t.Fatalf("got %v, want the end of the stream", err)
				}
			} else if !errors.Is(err, row.want) {
				t.Fatalf("got %v, want %v", err, row.want)
			}
			if m.open.Load() != 0 {
				t.Error("queue left open")
			}
		})
	}
	left, right := net.Pipe()
	defer right.Close()
	if err := new(Server).ServeConn(t.Context(), left, e, nil); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("pipe: %v", err)
	}
}

func TestStatus(t *testing.T) {
	shapes(t, Limits{}, func(t *testing.T, f *fixture, m *memory, p *peer) {
		p.want(0, 0, cmdWrite, 0, 4096, pattern(4096, 1))
		p.want(0, 0, cmdRead, 0, 512)
		p.want(0, 0, cmdFlush, 0, 0)
		p.want(0, 0, cmdTrim, 0, 512)
		p.want(0, 0, cmdWriteZeroes, 0, 512)
		p.want(0, 0, cmdCache, 0, 512)
		p.want(syscall.EINVAL, 0, 99, 0, 512)
		p.disconnect()
		for len(f.server.Status().Connections) != 0 {
			time.Sleep(time.Millisecond)
		}
		s := f.server.Status()
		total := s.Total
		if total.Receives == 0 || total.Sends == 0 {
			t.Errorf("no system calls: %+v", total)
		}
		if total.Syscalls < total.Receives+total.Sends+total.Sleeps {
			t.Errorf("of the system calls some are missing: %+v", total)
		}
		total.Receives, total.Sends, total.Sleeps, total.Yields, total.Syscalls, total.IdleReleases = 0, 0, 0, 0, 0, 0
		total.BusyPolls, total.PollHits, total.BusyPollTime = 0, 0, 0
		want := Counters{
			Reads: 1, Writes: 1, Flushes: 1, Trims: 1, WriteZeroes: 1, Caches: 1, Others: 2, Errors: 1,
			BytesRead: 512, BytesWritten: 4096,
		}
		if total != want {
			t.Errorf("total %+v, want %+v", total, want)
		}
		if len(s.Exports) != 1 || s.Exports[0].Name != "disk" || s.Exports[0].Counters != s.Total || s.Exports[0].Connections != 0 {
			t.Errorf("exports %+v", s.Exports)
		}
	})
}
