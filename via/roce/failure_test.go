package roce_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/port/porttest"
)

// logged returns what the process logs until the test ends.
func logged(t *testing.T) func() string {
	t.Helper()
	var mu sync.Mutex
	var text strings.Builder
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(writerFunc(func(b []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return text.Write(b)
	}), nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return text.String()
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// failing is a listener with two connections, each with a completion queue and
// so a shard of its own.
type failing struct {
	t      *testing.T
	panics porttest.Panics
	x, y   *party
	beside [2]*party
	caught uint64
	log    func() string
}

const requester, listener = "10.0.0.1", "10.0.0.2"

func newFailing(t *testing.T) *failing {
	t.Helper()
	f := &failing{t: t, log: logged(t)}
	p := roce.New(roce.Options{Open: f.panics.Wrap(port.NewNetwork(1, 9000).Open)})
	f.x, f.y = newParty(t, p, requester), newParty(t, p, listener)
	f.beside = [2]*party{newParty(t, p, requester), newParty(t, p, listener)}
	link(t, listener, f.x.vi, f.y.vi, f.y.nic)
	link(t, listener, f.beside[0].vi, f.beside[1].vi, f.beside[1].nic)
	f.exchange(f.x, f.y)
	f.exchange(f.beside[0], f.beside[1])
	f.caught = contain.Count()
	return f
}

// exchange sends a message each way and writes to the memory of b.
func (f *failing) exchange(a, b *party) {
	f.t.Helper()
	for _, ends := range [][2]*party{{a, b}, {b, a}} {
		from, to := ends[0], ends[1]
		from.used, to.used = 0, 0
		check(f.t, to.vi.PostRecv(to.build(via.OpRecv, 10_000, 5000, nil)))
		check(f.t, from.vi.PostSend(from.build(via.OpSend, 0, 5000, nil)))
		done := 0
		within(f.t, "a message", func() bool { done += from.poll() + to.poll(); return done == 2 })
	}
	check(f.t, a.vi.PostSend(a.build(via.OpRdmaWrite, 30_000, 5000, b)))
	within(f.t, "a write, which the consumer of b does not poll for", func() bool { return a.poll() == 1 })
}

// panicked checks that there was one panic, and what the log says of it, as far
// as the limit for all panics of the process lets it.
func (f *failing) panicked(text string) {
	f.t.Helper()
	if n := contain.Count() - f.caught; n != 1 {
		f.t.Errorf("%d panics", n)
	}
	if contain.Count() > 30 {
		return
	}
	// It is counted before it is logged.
	within(f.t, "a line of the log", func() bool { return f.log() != "" })
	log := f.log()
	if strings.Count(log, "level=ERROR") != 1 || !strings.Contains(log, text) || !strings.Contains(log, "panickyShard") {
		f.t.Errorf("no line with %q and its stack in %s", text, log)
	}
}

// drain polls both ends until each is broken.
func (f *failing) drain(ends ...*party) {
	f.t.Helper()
	for _, x := range ends {
		within(f.t, "the end of the connection", func() bool {
			x.cq.Poll(x.batch[:])
			return x.vi.State() == via.StateError
		})
	}
}

// again connects x and y once more, with the completion queues they have.
func (f *failing) again() {
	f.t.Helper()
	for _, x := range []*party{f.x, f.y} {
		check(f.t, x.vi.Disconnect())
		for x.cq.Poll(x.batch[:]) != 0 {
		}
	}
	link(f.t, listener, f.x.vi, f.y.vi, f.y.nic)
	f.exchange(f.x, f.y)
}

func (f *failing) close() {
	f.x.close()
	f.y.close()
	f.beside[0].close()
	f.beside[1].close()
}

// A panic in a pass of a shard, which any goroutine may run, ends the
// connections of this shard with an error. Other shards go on, and the address
// makes new connections for the same completion queues.
func TestPanicInShard(t *testing.T) {
	for name, c := range map[string]struct {
		plant porttest.Panic
		drive func(f *failing) // drives the shard until it panics
	}{
		"consumer receives": {porttest.Panic{Address: listener, Call: "Receive"}, func(f *failing) {
			check(f.t, f.x.vi.PostSend(f.x.build(via.OpRdmaWrite, 0, 64, f.y)))
			f.drain(f.y)
		}},
		"consumer sleeps": {porttest.Panic{Address: listener, Call: "Receive"}, func(f *failing) {
			sleep(f.y.cq, 0)
			check(f.t, f.x.vi.PostSend(f.x.build(via.OpRdmaWrite, 0, 64, f.y)))
			within(f.t, "the panic", func() bool { sleep(f.y.cq, time.Second); f.y.cq.Poll(f.y.batch[:]); return contain.Count() > f.caught })
		}},
		"goroutine receives": {porttest.Panic{Address: listener, Call: "Receive"}, func(f *failing) {
			check(f.t, f.x.vi.PostSend(f.x.build(via.OpRdmaWrite, 0, 64, f.y)))
			within(f.t, "the panic", func() bool { return contain.Count() > f.caught })
		}},
		"doorbell sends": {porttest.Panic{Address: listener, Call: "Send"}, func(f *failing) {
			check(f.t, f.y.vi.PostSend(f.y.build(via.OpRdmaWrite, 0, 64, f.x)))
		}},
		"goroutine sends": {porttest.Panic{Address: listener, Call: "Send"}, func(f *failing) {
			check(f.t, f.x.vi.PostSend(f.x.build(via.OpRdmaRead, 0, 64, f.y)))
			within(f.t, "the panic", func() bool { return contain.Count() > f.caught })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFailing(t)
			f.x.used, f.y.used = 0, 0
			f.panics.Plant(c.plant)
			c.drive(f)
			f.drain(f.y)
			if codes := f.y.codes(); len(codes) != 1 || codes[0] != via.AsyncConnectionLost || !strings.Contains(f.y.errs[0].Cause.Error(), "planted in "+c.plant.Call) {
				t.Errorf("callbacks %v", f.y.errs)
			}
			f.panicked("panic: the connections of a shard end")
			f.exchange(f.beside[0], f.beside[1])
			// The old connection reaches no memory any more.
			before := bytes.Clone(f.y.payload(0, 64))
			for i := range f.x.payload(0, 64) {
				f.x.payload(0, 64)[i] = ^before[i]
			}
			check(t, f.x.vi.PostSend(f.x.build(via.OpRdmaWrite, 0, 64, f.y)))
			f.drain(f.x)
			if !bytes.Equal(f.y.payload(0, 64), before) {
				t.Error("a peer wrote through a shard that has failed")
			}
			f.again()
			f.exchange(f.beside[0], f.beside[1])
			f.close()
		})
	}
}

// The packets that a shard had in flight when it failed leave no less room for
// those of other shards to the same host.
func TestPanicLeavesLine(t *testing.T) {
	f := newFailing(t)
	for range 20 {
		f.y.used = 0
		f.panics.Plant(porttest.Panic{Address: listener, Call: "Send"})
		check(t, f.y.vi.PostSend(f.y.build(via.OpRdmaWrite, 30_000, 5000, f.x)))
		f.drain(f.y)
		f.again()
		f.exchange(f.beside[0], f.beside[1])
	}
	f.close()
}

// A panic in the connection manager fails the handshakes in progress.
// Connections go on, and listeners accept the next ones.
func TestPanicInManager(t *testing.T) {
	for _, address := range []string{requester, listener} {
		for _, call := range []string{"Receive", "Send"} {
			t.Run(call+" at "+address, func(t *testing.T) {
				f := newFailing(t)
				check(t, f.x.vi.Disconnect())
				check(t, f.y.vi.Disconnect())
				l, err := f.y.nic.Listen(via.Address{Host: listener, Discriminator: "again"})
				check(t, err)
				f.panics.Plant(porttest.Panic{Address: address, Manager: true, Call: call})
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				accepted := make(chan error, 1)
				go func() {
					for {
						r, err := l.Wait(ctx)
						if err == nil {
							err = r.Accept(ctx, f.y.vi)
						}
						if err == nil || ctx.Err() != nil {
							accepted <- err
							return
						}
					}
				}()
				for err = errors.New("none yet"); err != nil; {
					if _, err = f.x.vi.Connect(ctx, l.Addr()); err != nil && !errors.Is(err, via.ErrNotReachable) {
						t.Fatal(err)
					}
				}
				check(t, <-accepted)
				f.exchange(f.x, f.y)
				f.exchange(f.beside[0], f.beside[1])
				f.panicked("panic: the handshakes of an address fail")
				check(t, l.Close())
				f.close()
			})
		}
	}
}

// A panic in the goroutine of an address, outside of its shards and its
// connection manager, ends nothing.
func TestPanicInGoroutineOfAddress(t *testing.T) {
	f := newFailing(t)
	f.panics.Plant(porttest.Panic{Address: listener, Call: "FD"})
	// It takes over a shard whose consumer does not poll, and hands it back.
	rounds := 0
	within(t, "the panic", func() bool {
		if rounds++; rounds%200 == 0 {
			f.y.poll()
		}
		return contain.Count() > f.caught
	})
	f.exchange(f.x, f.y)
	f.exchange(f.beside[0], f.beside[1])
	f.panicked("panic: the goroutine of an address starts again")
	f.close()
}
