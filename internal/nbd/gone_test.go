package nbd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd/nbdtest"
)

// T-18 the queue of a client that is gone is aborted while its requests are in
// flight, also when the server can take no more of them. A client that sent
// DISC has its requests executed.
func TestGoneClientIsAborted(t *testing.T) {
	for name, depth := range map[string]int{"of some": 16, "of as many as it may have": 2} {
		for _, leaves := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, DISC %v", name, leaves), func(t *testing.T) {
				m := newMemory(1 << 20)
				m.later, m.hold = true, make(chan struct{})
				f := serve(t, Limits{Depth: depth}, Export{Device: m})
				p := f.connectExport("", simple)
				requests := 2
				if !leaves {
					requests = 4
				}
				for i := range requests {
					p.put(p.request(0, cmdWrite, uint64(i), uint64(i)*4096, 4096), pattern(4096, byte(i+1)))
				}
				deadline := time.Now().Add(testTimeout)
				for f.server.Status().Total.Writes < uint64(min(depth, requests)) {
					if time.Now().After(deadline) {
						t.Fatalf("the server has %+v", f.server.Status().Total)
					}
					time.Sleep(time.Millisecond)
				}
				if leaves {
					p.put(p.request(0, cmdDisconnect, 99, 0, 0))
					close(m.hold)
					for range requests {
						p.answer(func(uint64) int { return 0 })
					}
					p.wantEnd()
					if n := m.aborts.Load(); n != 0 {
						t.Errorf("aborted %d times", n)
					}
					return
				}
				p.Close()
				for m.aborts.Load() == 0 {
					if time.Now().After(deadline) {
						t.Fatal("the queue of a dead client is not aborted while its requests are in flight")
					}
					time.Sleep(time.Millisecond)
				}
				close(m.hold)
			})
		}
	}
}

// TestEndRightBehindData: the server notices a client that sends no more right
// behind the last bytes that it sent, although one packet, and so one event,
// tells of both, and the server does not busy-poll.
func TestEndRightBehindData(t *testing.T) {
	f := serve(t, Limits{BusyPoll: -1}, Export{Device: newMemory(1 << 20)})
	l, err := Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- f.server.Serve(ctx, l) }()
	defer func() {
		stop()
		<-served
	}()
	p := dial(t, l.Addr())
	p.greet(bothFlags)
	p.option(optGo, nbdtest.GoData("", infoBlockSize))
	p.infos(optGo)
	p.want(0, 0, cmdRead, 0, 512) // the server waits for requests
	c := p.Conn.(*net.TCPConn)
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK, 1) }); failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	p.put([]byte{0x25, 0x60}) // the beginning of a request
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	p.wantEnd()
}

// A request that the queue drops, since its client sends no more, gets no
// reply: an error would be one of the disk.
func TestDroppedRequestsGetNoReply(t *testing.T) {
	for _, mode := range []replyMode{simple, structured} {
		m := newMemory(1 << 20)
		m.later, m.hold = true, make(chan struct{})
		f := serve(t, Limits{}, Export{Device: m})
		p := f.connectExport("", mode)
		p.put(p.request(0, cmdWrite, 1, 0, 4096), pattern(4096, 1), p.request(0, cmdRead, 2, 0, 4096))
		f.withWrites(1)
		if err := p.Conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		for m.aborts.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		m.failWith(func(r *block.Request) error {
			if r.Op == block.Write {
				return nil // it had begun
			}
			return syscall.ECANCELED
		})
		close(m.hold)
		if a := p.answer(func(uint64) int { return 0 }); a.cookie != 1 || a.errno != 0 {
			t.Errorf("mode %v: the request that had begun: %+v", mode, a)
		}
		p.wantEnd()
	}
}

// Requests of the kernel that arrived before its device is left are executed
// and answered.
func TestDeviceThatIsLeft(t *testing.T) {
	m := newMemory(1 << 20)
	m.later, m.hold = true, make(chan struct{})
	server, client := pair(t)
	file, err := server.(*net.UnixConn).File() // as nbdkernel has another descriptor
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	s := &Server{}
	ended := make(chan error, 1)
	go func() { ended <- s.ServeConn(t.Context(), server, &Export{Device: m}, nil) }()
	p := newPeer(t, client)
	for i := range 3 {
		p.put(p.request(0, cmdWrite, uint64(i), uint64(i)*4096, 4096), pattern(4096, byte(i+1)))
	}
	if err := unix.Shutdown(int(file.Fd()), unix.SHUT_RD); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Write([]byte{0}); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("a later request: %v", err)
	}
	close(m.hold)
	for range 3 {
		if a := p.answer(func(uint64) int { return 0 }); a.errno != 0 {
			t.Errorf("a request that had arrived: %+v", a)
		}
	}
	if err := <-ended; !errors.Is(err, io.EOF) || m.aborts.Load() != 0 {
		t.Errorf("%d aborts, %v", m.aborts.Load(), err)
	}
}
