package shm

import (
	"errors"
	"sync"
	"testing"
	"time"

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

// split is a pair whose near VI has a queue for sends and another for receives.
type split struct {
	near, far  *station
	send, recv *via.CQ
	a, b       *via.VI
}

func newSplit(t *testing.T) *split {
	t.Helper()
	watchLeaks(t)
	s := &split{near: newStation(t, testPatience), far: newStation(t, testPatience)}
	var err error
	s.send, err = s.near.nic.CreateCQ(stationDepth)
	check(t, err)
	s.recv, err = s.near.nic.CreateCQ(stationDepth)
	check(t, err)
	s.a, s.b = s.near.newViOn(s.send, s.recv), s.far.newVI()
	l := s.near.listen()
	join(t, s.b, l, s.a)
	t.Cleanup(func() { // before the station closes
		check(t, s.a.Disconnect())
		for pollOne(s.send) > 0 || pollOne(s.recv) > 0 {
		}
		s.near.drop(s.a)
		check(t, s.send.Destroy())
		check(t, s.recv.Destroy())
	})
	return s
}

func pollOne(q *via.CQ) int {
	var done [1]via.Completion
	return q.Poll(done[:])
}

// arm polls a queue until it sleeps.
func arm(t *testing.T, q *via.CQ) {
	t.Helper()
	for range 100 {
		for pollOne(q) > 0 {
		}
		if q.Arm() && !readable(t, q.FD(), 0) {
			return
		}
	}
	t.Fatal("the queue never sleeps")
}

func wakes(t *testing.T, q *via.CQ, what string) {
	t.Helper()
	if !readable(t, q.FD(), 10*time.Second) {
		t.Fatalf("%s wakes nobody", what)
	}
}

// TestSplitQueuesSleepApart: what one queue does takes no wake-up from the other.
func TestSplitQueuesSleepApart(t *testing.T) {
	s := newSplit(t)
	check(t, s.a.PostRecv(s.near.descriptor(0, via.OpRecv, 1<<20, 64)))
	arm(t, s.recv)
	arm(t, s.send)
	pollOne(s.send) // ends the sleep of one
	arm(t, s.send)
	pollOne(s.send)
	check(t, s.b.PostSend(s.far.descriptor(0, via.OpSend, 1<<20, 64)))
	wakes(t, s.recv, "a message")
	if pollOne(s.recv) != 1 {
		t.Error("no completion")
	}
}

// TestPostWhileArmed: a completion that a post brings about wakes, too.
func TestPostWhileArmed(t *testing.T) {
	s := newSplit(t)
	arm(t, s.recv)
	arm(t, s.send)
	check(t, s.a.PostSend(s.near.descriptor(0, via.OpSend, 1<<20, 64)))
	wakes(t, s.send, "a send")
	arm(t, s.send)
	// Longer than a turn: what remains needs another.
	check(t, s.a.PostSend(s.near.remote(1, via.OpRdmaWrite, 1<<20, 3*rdmaStep, s.far.mem.Addr(), s.far.mem.Handle())))
	wakes(t, s.send, "a long write")
	for pollOne(s.send) == 0 {
		if s.send.Arm() {
			wakes(t, s.send, "the rest of a long write")
		}
	}
}

// TestStallWhileArmed: a post that meets a full ring while its queue is armed is
// carried on with when there is room.
func TestStallWhileArmed(t *testing.T) {
	s := newSplit(t)
	for i := range stationDepth {
		check(t, s.b.PostRecv(s.far.descriptor(i, via.OpRecv, 2<<20, 60<<10)))
	}
	arm(t, s.send)
	for i := range stationDepth {
		check(t, s.a.PostSend(s.near.descriptor(i, via.OpSend, 1<<20, 60<<10)))
	}
	for done := 0; done < stationDepth; {
		if n := pollOne(s.send); n > 0 {
			done += n
			continue
		}
		if !s.send.Arm() {
			continue
		}
		s.far.poll() // makes room
		wakes(t, s.send, "room in the ring")
	}
}

// TestSplitQueueEnds: the receive queue reports the end of a connection that
// breaks in the send queue's turn, and after what the send queue reported.
func TestSplitQueueEnds(t *testing.T) {
	s := newSplit(t)
	arm(t, s.recv)
	arm(t, s.send)
	bad := s.near.remote(0, via.OpRdmaWrite, 1<<20, 64, s.far.mem.Addr(), s.far.mem.Handle()^1<<16)
	check(t, s.a.PostSend(bad))
	wakes(t, s.send, "a refused write")
	if n := pollOne(s.recv); n != 0 || s.a.State() != via.StateConnected {
		t.Fatalf("%d completions and state %v before the send's", n, s.a.State())
	}
	arm(t, s.recv)
	if pollOne(s.send) != 1 || bad.Status()&via.StatusRdmaProtError == 0 {
		t.Fatalf("the write says %v", bad.Status())
	}
	wakes(t, s.recv, "the end of the connection")
	pollOne(s.recv)
	if s.a.State() != via.StateError {
		t.Fatalf("state %v", s.a.State())
	}
	if !s.send.Arm() || !s.recv.Arm() {
		t.Error("a queue with nothing to do does not sleep")
	}
}

// TestConnectWhileArmed: a connection made while its queue is armed wakes for its
// first message.
func TestConnectWhileArmed(t *testing.T) {
	watchLeaks(t)
	near, far := newStation(t, testPatience), newStation(t, testPatience)
	l := near.listen()
	a, b := near.newVI(), far.newVI()
	check(t, a.PostRecv(near.descriptor(0, via.OpRecv, 1<<20, 64)))
	arm(t, near.cq)
	join(t, b, l, a)
	check(t, b.PostSend(far.descriptor(0, via.OpSend, 1<<20, 64)))
	for near.poll() == 0 {
		if near.cq.Arm() {
			wakes(t, near.cq, "the first message")
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
