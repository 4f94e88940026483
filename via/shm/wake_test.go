package shm

import (
	"errors"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/memfd"
	"github.com/viablk/viablk/via"
)

// TestBellFlood: a peer that rings without a pause does not stop other links.
func TestBellFlood(t *testing.T) {
	b := attack(t)
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

// TestHostileBell abuses a bell as its peer can. The victim keeps working and
// does not spin.
func TestHostileBell(t *testing.T) {
	fill := func(fd int) {
		for unix.Send(fd, make([]byte, 4096), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) == nil {
		}
	}
	for name, act := range map[string]func(t *testing.T, b *attacked){
		"full": func(_ *testing.T, b *attacked) { fill(b.peer.data) },
		"shut down": func(t *testing.T, b *attacked) {
			check(t, unix.Shutdown(b.peer.data, unix.SHUT_RDWR))
		},
		"full and blocking where the victim rings": func(t *testing.T, b *attacked) {
			// The passed end is one open file with the victim's.
			check(t, unix.SetNonblock(b.peer.local.bells.passedData, false))
			fill(b.peer.local.bells.passedData)
			b.ring(t)
		},
		"closed where the victim rings": func(t *testing.T, b *attacked) {
			b.peer.local.bells.close()
			b.ring(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := attack(t)
			act(t, b)
			b.healthy.check()
			b.quietens(t)
			b.healthy.check()
		})
	}
}

// ring makes the victim ring the hostile peer's bell.
func (b *attacked) ring(t *testing.T) {
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

// quietens checks that the queue sleeps: earlier events wake it at most a few
// times.
func (b *attacked) quietens(t *testing.T) {
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

// TestStoredWordsAreOrdered: of two ends that each store a word of shared
// memory and then load the other's, at least one sees the other's store. A
// sleeper and its peer depend on it.
func TestStoredWordsAreOrdered(t *testing.T) {
	const rounds, line = 300_000, 64
	mem, fd, err := memfd.Create("test", 4*line, 0)
	check(t, err)
	defer func() { check(t, errors.Join(unix.Munmap(mem), unix.Close(fd))) }()
	var saw [2][]uint64
	var wg sync.WaitGroup
	for end := range 2 {
		wg.Go(func() {
			mine, others := end*line, (1-end)*line
			for round := uint64(1); round <= rounds; round++ {
				storeWord(mem, mine+2*line, round) // both begin the round
				for spins := 1; loadWord(mem, others+2*line) < round; spins++ {
					if spins%10_000 == 0 {
						time.Sleep(time.Microsecond) // both may be on one processor
					}
				}
				storeWord(mem, mine, round)
				saw[end] = append(saw[end], loadWord(mem, others))
			}
		})
	}
	wg.Wait()
	for i := range rounds {
		if round := uint64(i + 1); saw[0][i] < round && saw[1][i] < round {
			t.Fatalf("round %d: neither end saw the other's store", round)
		}
	}
}

// TestConnectWhileArmed: a connection made while its queue is armed wakes for
// its first message.
func TestConnectWhileArmed(t *testing.T) {
	watchLeaks(t)
	near, far := newStation(t, testTimeouts), newStation(t, testTimeouts)
	l := near.listen()
	a, b := near.newVI(), far.newVI()
	check(t, far.mem.SetAttributes(via.MemAttributes{Ptag: far.tag})) // passes no arena: its arrival would wake
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

// TestArmDrainsBells: the bell that ended a sleep does not end the next one,
// even if the poll in between returned a completion and did not drain it. The
// peer's agent, which passes arenas, may wake the driver a few more times.
func TestArmDrainsBells(t *testing.T) {
	watchLeaks(t)
	d := newDuo(t)
	for quiet := false; !quiet; { // arenas arrive, which wakes
		for d.a.poll()+d.b.poll() > 0 {
		}
		quiet = d.b.cq.Arm() && !readable(t, d.b.cq.FD(), 0)
	}
	const few = 3
	announced := 0
	for i := range 2 * sleepsUndrained {
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

// TestBellNeverFills: a sleeper is woken however often it was rung before. A
// peer also rings when Arm, which found work, has ended the sleep already; that
// a message gets between Arm's two steps is a race, so the test takes them
// itself. At reliable reception each sleep may be rung twice.
func TestBellNeverFills(t *testing.T) {
	watchLeaks(t)
	d := newDuo(t)
	l := d.b.onlyLink()
	const rings = 2000 // a socket has room for some 300
	for i := range rings {
		check(t, d.vb.PostRecv(d.b.descriptor(i%2, via.OpRecv, 1<<20, 64)))
		l.setWants(l.receiver.cq)
		check(t, d.va.PostSend(d.a.descriptor(i%2, via.OpSend, 1<<20, 64)))
		l.clearWants(l.receiver.cq)
		d.receive(d.b.cq, 1)
		d.receive(d.a.cq, 1)
		if i%100 != 99 {
			continue
		}
		for quiet := false; !quiet; {
			d.b.poll()
			quiet = d.b.cq.Arm() && !readable(t, d.b.cq.FD(), 0)
		}
		check(t, d.vb.PostRecv(d.b.descriptor(0, via.OpRecv, 1<<20, 64)))
		check(t, d.va.PostSend(d.a.descriptor(0, via.OpSend, 1<<20, 64)))
		wakes(t, d.b.cq, "a message")
		d.receive(d.b.cq, 1)
		d.receive(d.a.cq, 1)
	}
	if n := d.va.Stats().Doorbells; n < rings {
		t.Fatalf("%d rings, want %d", n, rings)
	}
}

// watchEdges watches a queue for edges. The function that it returns waits for
// one.
func watchEdges(t *testing.T, cq *via.CQ) (edge func(limit time.Duration) bool) {
	t.Helper()
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	check(t, err)
	t.Cleanup(func() { _ = unix.Close(epoll) })
	check(t, unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, cq.FD(), &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET}))
	return func(limit time.Duration) bool {
		t.Helper()
		var events [1]unix.EpollEvent
		for {
			n, err := unix.EpollWait(epoll, events[:], int(limit/time.Millisecond))
			if errors.Is(err, unix.EINTR) {
				continue
			}
			check(t, err)
			return n == 1
		}
	}
}

// TestEdgesNeverEnd: a consumer that watches for edges is woken in each sleep,
// by each of many links, though nothing drains its file descriptor in between.
func TestEdgesNeverEnd(t *testing.T) {
	watchLeaks(t)
	const links, sleeps = 300, 400 // a socket has room for some 300 rings
	near, far := newStation(t, testTimeouts), newStation(t, testTimeouts)
	l := near.listen()
	var a, b [links]*via.VI
	for i := range links {
		a[i], b[i] = near.newVI(), far.newVI()
		join(t, b[i], l, a[i])
	}
	edge := watchEdges(t, near.cq)
	stayed := 0
	for range sleeps {
		for i := range links {
			check(t, a[i].PostRecv(near.descriptor(i, via.OpRecv, 1<<20, 64)))
		}
		for quiet := false; !quiet; {
			for near.poll()+far.poll() > 0 {
			}
			quiet = near.cq.ArmEdge() && !edge(0)
		}
		if readable(t, near.cq.FD(), 0) {
			stayed++
		}
		for i := range links {
			check(t, b[i].PostSend(far.descriptor(i, via.OpSend, 1<<20, 64)))
		}
		if !edge(time.Minute) {
			t.Fatal("no edge for a minute")
		}
		for got := 0; got < links; {
			got += near.poll()
		}
	}
	if stayed < sleeps/2 {
		t.Errorf("the file descriptor was drained in %d of %d sleeps", sleeps-stayed, sleeps)
	}
	for i := range links {
		if n := b[i].Stats().Doorbells; n < sleeps {
			t.Errorf("link %d: %d rings in %d sleeps", i, n, sleeps)
		}
	}
	for near.poll()+far.poll() > 0 {
	}
	stayed = 0
	for range 3 * edgesUndrained { // Arm, again, leaves nothing of earlier sleeps
		check(t, a[0].PostRecv(near.descriptor(0, via.OpRecv, 1<<20, 64)))
		for !near.cq.ArmEdge() {
			near.poll()
		}
		check(t, b[0].PostSend(far.descriptor(0, via.OpSend, 1<<20, 64)))
		for near.poll() == 0 {
		}
		for far.poll() == 0 {
		}
		if near.cq.Arm() && readable(t, near.cq.FD(), 0) {
			stayed++
		}
	}
	if stayed > 3 {
		t.Errorf("the file descriptor was readable after Arm in %d of %d sleeps", stayed, 3*edgesUndrained)
	}
}

// TestEdgesAfterSleepsThatEndedAtOnce: a peer also rings when ArmEdge finds
// work at once, which no sleep follows. The test takes its steps itself, as
// TestBellNeverFills does.
func TestEdgesAfterSleepsThatEndedAtOnce(t *testing.T) {
	watchLeaks(t)
	d := newDuo(t)
	c := d.b.onlyLink().receiver.cq
	edge := watchEdges(t, d.b.cq)
	const rings = 1000 // a socket has room for some 300
	for i := range rings {
		check(t, d.vb.PostRecv(d.b.descriptor(i%2, via.OpRecv, 1<<20, 64)))
		c.edges = true
		c.drainBells()
		c.publishWants()
		check(t, d.va.PostSend(d.a.descriptor(i%2, via.OpSend, 1<<20, 64)))
		c.withdraw()
		edge(0) // seen before the sleep
		d.receive(d.b.cq, 1)
		d.receive(d.a.cq, 1)
	}
	for quiet := false; !quiet; {
		d.b.poll()
		quiet = d.b.cq.ArmEdge() && !edge(0)
	}
	check(t, d.vb.PostRecv(d.b.descriptor(0, via.OpRecv, 1<<20, 64)))
	check(t, d.va.PostSend(d.a.descriptor(0, via.OpSend, 1<<20, 64)))
	if !edge(time.Minute) {
		t.Fatal("no edge for a minute")
	}
	d.receive(d.b.cq, 1)
	d.receive(d.a.cq, 1)
	if n := d.va.Stats().Doorbells; n < rings {
		t.Fatalf("%d rings, want %d", n, rings)
	}
}

// TestRdmaAtOnce accesses the peer's memory as soon as Connect has returned:
// earlier registrations are exposed, even if the other end is still in Accept.
func TestRdmaAtOnce(t *testing.T) {
	watchLeaks(t)
	near, far := newStation(t, testTimeouts), newStation(t, testTimeouts)
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
		far.disconnect(b)
		near.disconnect(a)
	}
}

// TestManyArenas: a connection outlives any number of arenas, if few exist at a
// time; one too many is an error of its registration, not of the connection.
func TestManyArenas(t *testing.T) {
	watchLeaks(t)
	near, far := newStation(t, testTimeouts), newStation(t, testTimeouts)
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
