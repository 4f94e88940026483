package nbd

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/nbd/nbdtest"
)

// waitForParks waits until so many connections have been parked.
func (f *fixture) waitForParks(n uint64) {
	f.t.Helper()
	for deadline := time.Now().Add(testTimeout); f.server.Status().Total.IdleReleases < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("parked %d times, want %d", f.server.Status().Total.IdleReleases, n)
		}
	}
}

// eachLine runs a test with and without TLS.
func eachLine(t *testing.T, limits Limits, run func(t *testing.T, f *fixture)) {
	t.Run("plain", func(t *testing.T) { run(t, serve(t, limits, Export{Device: newMemory(4 << 20)})) })
	t.Run("TLS", func(t *testing.T) {
		run(t, serveTLS(t, TLS{Config: certificates(t).server, Required: true}, limits, Export{Device: newMemory(4 << 20)}))
	})
}

// A client that is parked again and again, with whatever it does in between,
// does not notice.
func TestParkedClient(t *testing.T) {
	eachLine(t, Limits{}, func(t *testing.T, f *fixture) {
		p := f.connectExport("", structured)
		data := pattern(1<<20, 5)
		for round := range uint64(4) {
			for f.server.Status().Total.IdleReleases < round+1 {
				time.Sleep(time.Millisecond)
			}
			p.want(0, 0, cmdWrite, 0, uint32(len(data)), data)
			var stream []byte
			for i := range uint64(100) {
				stream = append(stream, p.request(0, cmdRead, i, i*4096, 4096)...)
			}
			go p.Write(stream)
			for range 100 {
				if a := p.answer(func(uint64) int { return 4096 }); !bytes.Equal(a.data, data[a.cookie*4096:][:4096]) {
					t.Fatalf("READ %d: wrong data", a.cookie)
				}
			}
		}
		p.disconnect()
	})
}

// Parked connections end with the server, in peace or at once.
func TestServerEndsWhileParked(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *fixture){
		"drained": func(t *testing.T, f *fixture) {
			if err := f.server.Drain(context.Background()); err != nil {
				t.Error(err)
			}
		},
		"stopped": func(_ *testing.T, f *fixture) { f.stop() },
	} {
		t.Run(name, func(t *testing.T) {
			eachLine(t, Limits{}, func(t *testing.T, f *fixture) {
				fresh, used := f.connectExport("", simple), f.connectExport("", simple)
				f.waitForParks(2)
				used.wantAlive()
				f.waitForParks(3)
				end(t, f)
				fresh.wantEnd()
				used.wantEnd()
			})
		})
	}
}

// A connection may be interrupted at any moment of its way into the poller and
// out of it.
func TestDrainWhileParking(t *testing.T) {
	for range 30 {
		f := serve(t, Limits{}, Export{Device: newMemory(1 << 20)})
		p := f.connectExport("", simple)
		var clients sync.WaitGroup
		clients.Go(func() { io.Copy(io.Discard, p) })
		p.put(p.request(0, cmdFlush, 1, 0, 0))
		time.Sleep(minParkDelay) // about when it is parked
		if err := f.server.Drain(context.Background()); err != nil {
			t.Fatal(err)
		}
		clients.Wait()
	}
}

// A parked client that leaves is noticed.
func TestParkedClientLeaves(t *testing.T) {
	eachLine(t, Limits{}, func(t *testing.T, f *fixture) {
		p := f.connectExport("", simple)
		f.waitForParks(1)
		p.Close()
		for len(f.server.Status().Connections) != 0 {
			time.Sleep(time.Millisecond)
		}
	})
}

// While the loop runs the runtime's poller does not know the socket, whether
// the connection was parked before or cannot be, for its device wants to be
// reaped now and then: the descriptor that the poller knows is closed.
func TestPollerLeavesRunningLoopsAlone(t *testing.T) {
	for name, interval := range map[string]time.Duration{"parked before": 0, "never parked": time.Hour} {
		t.Run(name, func(t *testing.T) {
			m := newMemory(1 << 20)
			m.interval = interval
			m.later, m.hold = true, make(chan struct{})
			f := serve(t, Limits{}, Export{Device: m})
			p := f.connectExport("", simple)
			p.put(p.request(0, cmdRead, 1, 0, 512)) // it keeps the loop awake
			for f.server.Status().Total.Reads == 0 {
				time.Sleep(time.Millisecond)
			}
			for socket, n := range sockets(t) {
				if n > 1 {
					t.Errorf("%s has %d descriptors", socket, n)
				}
			}
			close(m.hold)
			p.answer(func(uint64) int { return 512 })
		})
	}
}

// sockets returns how many descriptors the process has for each of its sockets.
func sockets(t *testing.T) map[string]int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, e := range entries {
		if name, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(name, "socket:") {
			count[name]++
		}
	}
	return count
}

// A queue without memory is asked again, also when nothing else is in flight.
func TestQueueOutOfMemory(t *testing.T) {
	m := newMemory(1 << 20)
	m.refuse.Store(5)
	p := serve(t, Limits{}, Export{Device: m}).connectExport("", simple)
	p.wantAlive()
	if n := m.refuse.Load(); n >= 0 {
		t.Errorf("the queue was to refuse %d times more", n)
	}
}

// A client gets in among others, silent or slow, that are always as many as
// there may be: while it comes, half as many follow it, however long it takes.
func TestClientAmongFlood(t *testing.T) {
	const silent = 64
	f := serve(t, Limits{Handshakes: silent, Connections: 4}, Export{Device: newMemory(1 << 20)})
	ctx, cancel := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	defer flood.Wait()
	defer cancel()
	rounds := make(chan struct{}, silent/2)
	surge := func() {
		for len(rounds) < cap(rounds) {
			rounds <- struct{}{}
		}
	}
	for worker := range 2 {
		flood.Go(func() {
			var held []net.Conn
			for {
				select {
				case <-rounds:
				case <-ctx.Done():
				}
				c, err := new(net.Dialer).DialContext(ctx, "unix", f.path)
				if err != nil {
					break
				}
				if worker == 1 {
					c.Write([]byte{0, 0}) // half of its flags
				}
				if held = append(held, c); len(held) > silent {
					held[0].Close()
					held = held[1:]
				}
			}
			for _, c := range held {
				c.Close()
			}
		})
	}
	for f.server.Status().Dropped == 0 {
		surge()
		time.Sleep(time.Millisecond)
	}
	for range 20 {
		surge()
		f.connectExport("", simple).disconnect()
	}
	if s := f.server.Status(); s.Handshakes > silent || s.Refused != 0 {
		t.Errorf("%d handshakes, %d refused", s.Handshakes, s.Refused)
	}
}

// A client that lists exports for ever has the time of a handshake, and no
// more: it chooses none.
func TestListingForEver(t *testing.T) {
	f := serve(t, Limits{Handshake: 300 * time.Millisecond, Options: 1 << 20}, Export{Device: newMemory(1 << 20)})
	p := f.dial()
	p.greet(bothFlags)
	lists := 0
	for ; ; lists++ {
		if _, err := p.Write(nbdtest.Option(optList)); err != nil {
			break
		}
		if _, err := io.CopyN(io.Discard, p, 20+4+20); err != nil {
			break
		}
	}
	if lists == 0 {
		t.Error("no list within the time of a handshake")
	}
	for len(f.server.Status().Connections) != 0 {
		time.Sleep(time.Millisecond)
	}
}

// The connections of one user are limited beside those of all.
func TestConnectionsPerAddress(t *testing.T) {
	f := serve(t, Limits{Connections: 10, ConnectionsPerAddress: 2}, Export{Device: newMemory(1 << 20)})
	first, _ := f.connectExport("", simple), f.connectExport("", simple)
	p := f.dial()
	p.greet(bothFlags)
	p.option(optGo, nbdtest.GoData(""))
	if text := p.wantReply(optGo, repErrPolicy); !bytes.Contains(text, []byte(errTooManyHere.Error())) {
		t.Errorf("the refusal says %q", text)
	}
	first.disconnect()
	for f.server.Status().Exports[0].Connections == 2 {
		time.Sleep(time.Millisecond)
	}
	p.option(optGo, nbdtest.GoData(""))
	p.infos(optGo)
	p.wantAlive()
}
