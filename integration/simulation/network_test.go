package simulation

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/via"
)

// end is one end of a test: a process with a carrier.
type end struct {
	process *Process
	nic     *via.NIC
	conn    *carrier.Carrier
}

const heldBytes = 8192 // of a receive

// newEnd returns a process that is equipped to connect.
func newEnd(t *testing.T, n *network, name string) *end {
	t.Helper()
	e := &end{process: n.scheduler.newProcess(name)}
	nic, err := via.OpenNic(n.newAdapter(e.process, name), "")
	if err != nil {
		t.Fatal(err)
	}
	nic.ErrorCallback(func(via.AsyncError) {})
	e.nic = nic
	e.conn, err = carrier.New(nic, carrier.Config{
		Attributes: via.ViAttributes{Reliability: via.ReliableDelivery, EnableRdmaWrite: true, EnableRdmaRead: true, MaxTransferSize: 1 << 20},
		SendDepth:  8, RecvDepth: 8,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(e.conn.AddReceives(8, heldBytes), e.conn.AddSends(8, 64)); err != nil {
		t.Fatal(err)
	}
	return e
}

// next returns the next completion of an end, or false after a limit.
func (e *end) next() (via.Completion, bool) {
	var done [1]via.Completion
	for end := e.process.scheduler.now + time.Minute; e.conn.Poll(done[:]) == 0; {
		if e.process.scheduler.now > end || !e.conn.Connected() {
			return done[0], false
		}
		if e.conn.Arm() {
			_ = e.process.Poll([]unix.PollFd{{Fd: int32(e.conn.FD()), Events: unix.POLLIN}}, time.Second)
		}
	}
	return done[0], true
}

// connected runs two tasks at the ends of a connection, and then checks that
// nothing is left.
func connected(t *testing.T, f Fabric, client, server func(*network, *end)) *network {
	t.Helper()
	s := newScheduler(newRunner(t), 7)
	n := newNetwork(s, f, 7, new(Counts))
	a, b := newEnd(t, n, "a"), newEnd(t, n, "b")
	l, err := b.nic.Listen(via.Address{Host: "b", Discriminator: "test"})
	if err != nil {
		t.Fatal(err)
	}
	b.process.Go(func() {
		s.block(-1, &n.hosts["b"].arrived)
		r, err := l.Wait(context.Background())
		if err == nil {
			ctx, cancel := b.process.WithTimeout(context.Background(), time.Second)
			defer cancel()
			err = b.conn.Accept(ctx, r)
		}
		if err != nil {
			t.Error(err)
			return
		}
		server(n, b)
	})
	a.process.Go(func() {
		ctx, cancel := a.process.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := a.conn.Connect(ctx, via.Address{Host: "b", Discriminator: "test"}); err != nil {
			t.Error(err)
			return
		}
		client(n, a)
	})
	runAll(t, s)
	for _, e := range []*end{a, b} {
		if e.process.dead {
			continue
		}
		e.process.Go(func() {
			if e == b {
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			}
			if err := errors.Join(e.conn.Close(), e.nic.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	runAll(t, s)
	if n.links != 0 || n.regions != 0 || n.arenas != 0 || n.copies != 0 {
		t.Errorf("%d links, %d regions, %d arenas and %d copies are left", n.links, n.regions, n.arenas, n.copies)
	}
	return n
}

func (e *end) transmit(t *testing.T, text string) {
	s := e.conn.AcquireSend()
	if s == nil {
		t.Error("no send is free")
		return
	}
	n := copy(s.Head, text)
	if err := e.conn.StageMessage(s, n, carrier.Span{}); err != nil {
		t.Error(err)
	}
	e.conn.Doorbell()
}

// receive returns the text of the next message; completions of sends are taken.
func (e *end) receive() string {
	for {
		c, ok := e.next()
		switch {
		case !ok || c.Status.Failed():
			return "lost"
		case !c.Recv:
			e.conn.FreeSend(e.conn.Sent(&c))
			continue
		}
		r := e.conn.Arrived(&c)
		text := string(r.Head[:c.Length])
		_ = e.conn.Post(r)
		return text
	}
}

var fabrics = map[string]Fabric{
	"shared":  {Latency: time.Microsecond, Jitter: time.Microsecond, Copy: time.Millisecond, Shared: true, Silence: time.Second},
	"network": {Latency: 5 * time.Microsecond, Jitter: 50 * time.Microsecond, Copy: time.Millisecond, Silence: time.Second},
}

// TestMessages: messages arrive in order, whatever each one's latency is.
func TestMessages(t *testing.T) {
	for name, f := range fabrics {
		t.Run(name, func(t *testing.T) {
			var heard []byte
			connected(t, f, func(_ *network, e *end) {
				for i := range 6 {
					e.transmit(t, string(rune('a'+i)))
				}
				if got := e.receive(); got != "enough" {
					t.Errorf("answer %q", got)
				}
			}, func(_ *network, e *end) {
				for len(heard) < 6 {
					heard = append(heard, e.receive()...)
				}
				e.transmit(t, "enough")
				e.receive()
			})
			if string(heard) != "abcdef" {
				t.Errorf("heard %q", heard)
			}
		})
	}
}

// rdma connects ends and has the server write to memory of the client.
func rdma(t *testing.T, f Fabric, client func(*network, *end, []byte), written func(*network, *end)) {
	t.Helper()
	var target *via.Memory
	connected(t, f, func(n *network, e *end) {
		arena, err := e.nic.NewArena(4096)
		if err != nil {
			t.Error(err)
			return
		}
		target, err = e.nic.RegisterMem(arena.Bytes(), via.MemAttributes{Ptag: e.conn.Tag(), EnableRdmaWrite: true})
		if err != nil {
			t.Error(err)
			return
		}
		e.transmit(t, "write")
		client(n, e, arena.Bytes())
		_ = target.Deregister() // may say that the peer is in the middle of a copy
		if err := arena.Close(); err != nil {
			t.Error(err)
		}
	}, func(n *network, e *end) {
		e.receive()
		arena, err := e.nic.NewArena(4096)
		if err != nil {
			t.Error(err)
			return
		}
		m, err := e.nic.RegisterMem(arena.Bytes(), via.MemAttributes{Ptag: e.conn.Tag()})
		if err != nil {
			t.Error(err)
			return
		}
		for i := range arena.Bytes() {
			arena.Bytes()[i] = 0xab
		}
		s := e.conn.AcquireSend()
		err = e.conn.StageWrite(s, carrier.Span{Addr: m.Addr(), Handle: m.Handle(), Length: 4096}, target.Addr(), target.Handle())
		if err != nil {
			t.Error(err)
		}
		e.conn.Doorbell()
		written(n, e)
		e.conn.Disconnect()
		if err := errors.Join(m.Deregister(), arena.Close()); err != nil {
			t.Error(err)
		}
	})
}

// TestStoppedInsideCopy: over shared memory a peer that is stopped inside a
// copy holds up the end of the connection, and finishes the copy when it
// continues.
func TestStoppedInsideCopy(t *testing.T) {
	rdma(t, fabrics["shared"], func(n *network, e *end, memory []byte) {
		var mover *Process
		for _, l := range e.nicLinks(n) {
			mover = l.peer.adapter.process
		}
		n.catch = mover
		n.caught = mover.pause
		e.process.Wait(context.Background(), 10*time.Millisecond)
		if !mover.stopped || memory[0] != 0xab || memory[4095] != 0 {
			t.Errorf("stopped %v, the memory has %#x and %#x", mover.stopped, memory[0], memory[4095])
		}
		l := e.nicLinks(n)[0]
		before, region := n.scheduler.now, l.peer.active.memory
		if region.Accessed() {
			t.Error("the peer of a connection counts as late")
		}
		if err := l.Close(); !errors.Is(err, via.ErrStillAccessed) || n.scheduler.now-before < accessTimeout {
			t.Errorf("close after %v: %v", n.scheduler.now-before, err)
		}
		if !region.Accessed() {
			t.Error("the peer is inside, and nothing tells")
		}
		mover.resume()
		e.process.Wait(context.Background(), 10*time.Millisecond)
		if region.Accessed() {
			t.Error("the peer is out, and nothing tells")
		}
		if !bytes.Equal(memory, bytes.Repeat([]byte{0xab}, 4096)) {
			t.Error("the copy did not go on")
		}
	}, func(_ *network, e *end) { e.receive() })
}

// TestNetworkPlacesNothingAfterClose: what a network carries arrives at an end
// that is closed no more.
func TestNetworkPlacesNothingAfterClose(t *testing.T) {
	rdma(t, fabrics["network"], func(n *network, e *end, memory []byte) {
		for memory[0] == 0 {
			e.process.Wait(context.Background(), 10*time.Microsecond)
		}
		if err := e.nicLinks(n)[0].Close(); err != nil {
			t.Error(err)
		}
		e.process.Wait(context.Background(), 10*time.Millisecond)
		if memory[0] != 0xab || memory[4095] != 0 {
			t.Errorf("the memory has %#x and %#x", memory[0], memory[4095])
		}
	}, func(_ *network, e *end) { e.receive() })
}

// nicLinks returns the links of an end.
func (e *end) nicLinks(n *network) []*link {
	for _, a := range n.adapters {
		if a.process == e.process {
			return a.links
		}
	}
	return nil
}

// TestKillIsNoticed: at once over shared memory, else after the silence.
func TestKillIsNoticed(t *testing.T) {
	for name, f := range fabrics {
		t.Run(name, func(t *testing.T) {
			var delay time.Duration
			connected(t, f, func(n *network, e *end) {
				e.process.Wait(context.Background(), time.Millisecond)
				before := n.scheduler.now
				e.nicLinks(n)[0].peer.adapter.process.kill()
				if got := e.receive(); got != "lost" {
					t.Errorf("heard %q", got)
				}
				delay = n.scheduler.now - before
			}, func(_ *network, e *end) { e.receive() })
			if f.Shared != (delay < time.Millisecond) || delay > 2*time.Second {
				t.Errorf("noticed after %v", delay)
			}
		})
	}
}

// TestCut: what is sent over a cut path arrives when it is mended, unless that
// takes too long.
func TestCut(t *testing.T) {
	for lasts, want := range map[time.Duration]string{
		500 * time.Millisecond: "late",
		5 * time.Second:        "lost",
	} {
		connected(t, fabrics["network"], func(n *network, e *end) {
			e.process.Wait(context.Background(), time.Millisecond)
			n.path("a", "b").cut = true
			n.scheduler.After(lasts, n.path("a", "b").mend)
			e.transmit(t, "late")
			e.process.Wait(context.Background(), lasts+time.Second)
			if want == "lost" {
				e.conn.Disconnect()
			}
		}, func(_ *network, e *end) {
			if got := e.receive(); got != want {
				t.Errorf("a cut of %v: heard %q", lasts, got)
			}
		})
	}
}
