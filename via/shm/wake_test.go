package shm

import (
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

// TestBellFlood: a peer that rings without a pause keeps nobody from working.
func TestBellFlood(t *testing.T) {
	b := besiege(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				ringBell(b.peer.data)
				ringBell(b.peer.space)
			}
		}
	})
	for range 50 {
		b.keeps()
	}
	close(stop)
	wg.Wait()
	b.keeps()
}

// TestHostileBell does to a bell what its peer can do. The victim goes on, and
// does not spin.
func TestHostileBell(t *testing.T) {
	fill := func(fd int) {
		for unix.Send(fd, make([]byte, 4096), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) == nil {
		}
	}
	for name, act := range map[string]func(t *testing.T, b *besieged){
		"full": func(_ *testing.T, b *besieged) { fill(b.peer.data) },
		"shut down": func(t *testing.T, b *besieged) {
			check(t, unix.Shutdown(b.peer.data, unix.SHUT_RDWR))
		},
		"full and blocking where the victim rings": func(t *testing.T, b *besieged) {
			// The passed end is one open file with the victim's.
			check(t, unix.SetNonblock(b.peer.own.bells.passedData, false))
			fill(b.peer.own.bells.passedData)
			b.ring(t)
		},
		"closed where the victim rings": func(t *testing.T, b *besieged) {
			b.peer.own.bells.close()
			b.ring(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := besiege(t)
			act(t, b)
			b.healthy.check()
			b.quietens(t)
			b.healthy.check()
		})
	}
}

// ring makes the victim ring the hostile peer's bell.
func (b *besieged) ring(t *testing.T) {
	t.Helper()
	before := b.vi.Stats().Doorbells
	b.peer.epoch++
	b.peer.word(offWants, b.peer.epoch<<wantShift|wantData)
	b.peer.word(offHead, loadWord(b.peer.victim.mem, offTail))
	d := b.descriptor(80, via.OpSend, 1<<20, 64)
	check(t, b.vi.PostSend(d))
	if c := b.await(d); c.Status.Failed() || b.vi.Stats().Doorbells != before+1 {
		t.Fatalf("send completed with %v, %d doorbells", c.Status, b.vi.Stats().Doorbells-before)
	}
}

// quietens checks that the owner gets to sleep: what happened before wakes it a
// few times at most.
func (b *besieged) quietens(t *testing.T) {
	t.Helper()
	for range 8 {
		for b.poll() > 0 {
		}
		if b.cq.Arm() && !readable(t, b.cq.FD(), 0) {
			return
		}
	}
	t.Fatal("the queue never sleeps")
}

// TestConnectWhileArmed: a connection made while its queue is armed wakes for its
// first message.
func TestConnectWhileArmed(t *testing.T) {
	watchLeaks(t)
	near, far := newStation(t, testPatience), newStation(t, testPatience)
	l := near.listen()
	a, b := near.newVI(), far.newVI()
	check(t, far.mem.SetAttributes(via.MemAttributes{Ptag: far.tag})) // no arena, whose arrival wakes
	check(t, a.PostRecv(near.descriptor(0, via.OpRecv, 1<<20, 64)))
	arm(t, near.cq)
	join(t, b, l, a)
	check(t, b.PostSend(far.descriptor(0, via.OpSend, 1<<20, 64)))
	wakes(t, near.cq, "the connection")
	for near.poll() == 0 {
		if near.cq.Arm() {
			wakes(t, near.cq, "the first message")
		}
	}
}

// TestArmTakesWhatRang: what ended a sleep does not end the next one, though the
// poll in between returned something and left it. The peer's agent, which announces
// arenas, may wake a few times beside.
func TestArmTakesWhatRang(t *testing.T) {
	watchLeaks(t)
	d := newDuo(t)
	for settled := false; !settled; { // arenas are announced, which wakes
		for d.a.poll()+d.b.poll() > 0 {
		}
		settled = d.b.cq.Arm() && !readable(t, d.b.cq.FD(), 0)
	}
	const few = 3
	announced := 0
	for i := range 2 * ringsUndrained {
		check(t, d.vb.PostRecv(d.b.descriptor(i%2, via.OpRecv, 1<<20, 64)))
		arm(t, d.b.cq)
		check(t, d.va.PostSend(d.a.descriptor(i%2, via.OpSend, 1<<20, 64)))
		wakes(t, d.b.cq, "the message")
		if n := pollOne(d.b.cq); n != 1 {
			t.Fatalf("%d completions", n)
		}
		if !d.b.cq.Arm() || readable(t, d.b.cq.FD(), 0) {
			if announced++; announced > few {
				t.Fatal("what rang before wakes again")
			}
		}
		for d.a.poll() == 0 {
		}
	}
}

// TestRdmaAtOnce uses the peer's memory as soon as Connect has returned: what was
// registered before is exposed, whatever the other end still does.
func TestRdmaAtOnce(t *testing.T) {
	watchLeaks(t)
	near, far := newStation(t, testPatience), newStation(t, testPatience)
	l := near.listen()
	for range 50 {
		a, b := near.newVI(), far.newVI()
		accepted := make(chan error, 1)
		go func() { accepted <- acceptNext(t, l, a) }()
		ctx := t.Context()
		_, err := b.Connect(ctx, l.Addr())
		check(t, err)
		d := far.remote(0, via.OpRdmaWrite, 1<<20, 64, near.mem.Addr()+1<<20, near.mem.Handle())
		check(t, b.PostSend(d))
		if c := far.await(d); c.Status.Failed() {
			t.Fatalf("completed with %v", c.Status)
		}
		check(t, <-accepted)
		far.drop(b)
		near.drop(a)
	}
}

// TestManyArenas: a connection outlives any number of arenas, if few exist at a
// time; one too many is an error of its registration, not of the connection.
func TestManyArenas(t *testing.T) {
	watchLeaks(t)
	near, far := newStation(t, testPatience), newStation(t, testPatience)
	l := near.listen()
	a, b := near.newVI(), far.newVI()
	join(t, b, l, a)
	use := func(m *via.Memory) {
		t.Helper()
		d := far.remote(0, via.OpRdmaRead, 1<<20, 64, m.Addr(), m.Handle())
		check(t, b.PostSend(d))
		if c := far.await(d, near); c.Status.Failed() {
			t.Fatalf("read completed with %v", c.Status)
		}
	}
	fresh := func() (*via.Arena, *via.Memory, error) {
		t.Helper()
		arena, err := near.nic.NewArena(4096)
		check(t, err)
		m, err := near.nic.RegisterMem(arena.Bytes(), near.open)
		return arena, m, err
	}
	for range 2 * maxArenas {
		arena, m, err := fresh()
		check(t, err)
		use(m)
		check(t, m.Deregister())
		check(t, arena.Close())
	}
	var held []*via.Memory
	for len(held) < maxArenas-1 { // the station's is one
		_, m, err := fresh()
		check(t, err)
		held = append(held, m)
	}
	_, _, err := fresh()
	if !errors.Is(err, via.ErrResource) {
		t.Errorf("one arena too many: %v", err)
	}
	for _, m := range held {
		use(m)
		check(t, m.Deregister())
	}
}
