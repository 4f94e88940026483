package shm

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
)

const rawHandle = 0x12340007 // of the forged region

func both(addr, length, arena, at uint64) func(p *rawPeer) {
	return func(p *rawPeer) {
		p.entry(rawHandle, entryLive|entryWrite|entryRead, addr, length, arena, at)
	}
}

// TestHostileRegion forges the entry of a region that the victim then uses.
func TestHostileRegion(t *testing.T) {
	const size, addr = 1 << 16, 0x10000
	for name, forge := range map[string]func(p *rawPeer){
		"no entry":                func(*rawPeer) {},
		"not live":                func(p *rawPeer) { p.entry(rawHandle, entryWrite|entryRead, addr, size, 1, 0) },
		"not allowed":             func(p *rawPeer) { p.entry(rawHandle, entryLive, addr, size, 1, 0) },
		"another generation":      func(p *rawPeer) { p.entry(rawHandle+0x10000, entryLive|entryWrite|entryRead, addr, size, 1, 0) },
		"another slot":            func(p *rawPeer) { p.entry(rawHandle+1, entryLive|entryWrite|entryRead, addr, size, 1, 0) },
		"longer than the arena":   both(addr, size+1, 1, 0),
		"behind the arena":        both(addr, size, 1, 8),
		"outside the arena":       both(addr, size, 1, 1<<40),
		"offset wraps":            both(addr, size, 1, ^uint64(0)-7),
		"length all ones":         both(addr, ^uint64(0), 1, 0),
		"length wraps the offset": both(addr, ^uint64(0)-size+2, 1, size),
		"address wraps":           both(^uint64(0)-64, size, 1, 0),
		"address behind":          both(addr+1, size, 1, 0),
		"length short":            both(addr, 63, 1, 0),
		"length 0":                both(addr, 0, 1, 0),
	} {
		for _, op := range []via.Opcode{via.OpRdmaWrite, via.OpRdmaRead} {
			t.Run(name, func(t *testing.T) {
				b := besiege(t)
				_, mem := b.peer.arena(size)
				until(t, "the arena", func() bool { return mapped.Load() >= size+2*stationBytes }, b.station)
				forge(b.peer)
				d := b.remote(0, op, 1<<20, 64, addr, rawHandle)
				check(t, b.vi.PostSend(d))
				if c := b.await(d); c.Status&via.StatusErrorMask != via.StatusRdmaProtError {
					t.Errorf("completed with %v", c.Status)
				}
				for i, v := range mem {
					if v != 0 {
						t.Fatalf("byte %d of the arena was written", i)
					}
				}
				b.loses()
			})
		}
	}
	t.Run("handle behind the table", func(t *testing.T) {
		b := besiege(t)
		d := b.remote(0, via.OpRdmaWrite, 1<<20, 64, 0, 0x1ffff)
		check(t, b.vi.PostSend(d))
		if c := b.await(d); c.Status&via.StatusErrorMask != via.StatusRdmaProtError {
			t.Errorf("completed with %v", c.Status)
		}
		b.loses()
	})
}

// TestRegionBeforeItsArena: an operation waits for an arena that is under way,
// asleep, and for one that never comes without harm to others.
func TestRegionBeforeItsArena(t *testing.T) {
	b := besiege(t)
	both(0x1000, 4096, 1, 0)(b.peer)
	b.mem.Bytes()[2<<20] = 0x5a
	d := b.remote(0, via.OpRdmaWrite, 2<<20, 64, 0x1000, rawHandle)
	check(t, b.vi.PostSend(d))
	b.keeps()
	for b.poll() > 0 {
	}
	armed := b.cq.Arm()
	_, mem := b.peer.arena(4096)
	if armed && !readable(t, b.cq.FD(), 10*time.Second) {
		t.Fatal("the arena wakes nobody")
	}
	if c := b.await(d); c.Status.Failed() || mem[0] != 0x5a {
		t.Errorf("completed with %v", c.Status)
	}
	b.keeps()
	both(0x1000, 4096, 77, 0)(b.peer)
	b.peer.entry(rawHandle+0x10000, entryLive|entryWrite, 0x1000, 4096, 77, 0)
	check(t, b.vi.PostSend(b.remote(1, via.OpRdmaWrite, 1<<20, 64, 0x1000, rawHandle+0x10000)))
	for range 5 {
		b.keeps()
	}
}

// TestRegionChangesInUse rewrites an entry without a pause while the victim uses
// the region: each operation lands inside the arena or is refused.
func TestRegionChangesInUse(t *testing.T) {
	b := besiege(t)
	refused := 0
	for range 40 {
		b.useChangingRegion()
		if b.vi.State() == via.StateError {
			refused++
		}
		b.drop(b.vi)
		b.peer.close()
		b.vi = b.newVI()
		b.peer = attach(t, b.station, b.listener, b.vi)
		b.healthy.check()
	}
	if refused == 0 {
		t.Error("no operation met an invalid entry")
	}
}

func (b *besieged) useChangingRegion() {
	const size = 1 << 20
	b.peer.arena(size)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		addrs := []uint64{0, 4096, 1 << 40, ^uint64(0) - 8192}
		lengths := []uint64{size, 4096, ^uint64(0), 1 << 40, 0}
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if i%50 != 0 { // valid ones
				both(uint64(i%2)*4096, 8192, 1, uint64(i%3)*4096)(b.peer)
				continue
			}
			both(addrs[i/50%4], lengths[i/50%5], 1, ^uint64(0)-uint64(i%9000))(b.peer)
		}
	})
	for i := 0; i < 2000 && b.vi.State() == via.StateConnected; i++ {
		check(b.tb, b.vi.PostSend(b.remote(0, via.OpRdmaWrite, 1<<20, 512, 4096, rawHandle)))
		for b.vi.State() == via.StateConnected && len(b.done) == 0 {
			b.poll()
		}
		b.done = b.done[:0]
	}
	close(stop)
	wg.Wait()
}

// TestHazardHeld: a peer that stays inside a region for ever costs a bounded
// time, and the region is never called free while it is inside.
func TestHazardHeld(t *testing.T) {
	p := testPatience
	p.access = 50 * time.Millisecond
	b := besiegeFor(t, p)
	hold := func(m *via.Memory) { b.peer.word(offHazard, hazardOf(m.Handle())) }
	m1, m2, m3 := b.region(), b.region(), b.region()
	hold(m1)
	check(t, m2.Deregister()) // it is inside another
	if err := m1.SetAttributes(b.open); !errors.Is(err, errStillAccessed) {
		t.Fatalf("set attributes: %v", err)
	}
	b.loses() // closing waits no longer than the patience either
	if err := m1.Deregister(); !errors.Is(err, errStillAccessed) {
		t.Errorf("deregister with the peer's ghost inside: %v", err)
	}
	check(t, m3.Deregister())
	b.healthy.check()
}

// TestGhostLeaves: a peer that comes out late, or dies, frees the region.
func TestGhostLeaves(t *testing.T) {
	for name, leave := range map[string]func(p *rawPeer){
		"comes out": func(p *rawPeer) { p.word(offHazard, 0) },
		"dies":      func(p *rawPeer) { _ = p.conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			p := testPatience
			p.access = 50 * time.Millisecond
			b := besiegeFor(t, p)
			m := b.region()
			b.peer.word(offHazard, hazardOf(m.Handle()))
			b.drop(b.vi)
			leave(b.peer)
			check(t, m.Deregister())
			b.healthy.check()
		})
	}
}

// TestDeregisterWhileClosing: a link that waits for its peer to come out still
// counts for Deregister on another goroutine.
func TestDeregisterWhileClosing(t *testing.T) {
	p := testPatience
	p.access = 300 * time.Millisecond
	b := besiegeFor(t, p)
	m := b.region()
	b.peer.word(offHazard, hazardOf(m.Handle()))
	result := make(chan error)
	go func() {
		closing := func() bool {
			b.adapter.mu.Lock()
			defer b.adapter.mu.Unlock()
			for l := range b.adapter.links {
				if l.closing {
					return true
				}
			}
			return false
		}
		for !closing() {
			time.Sleep(time.Millisecond)
		}
		result <- m.Deregister()
	}()
	b.drop(b.vi)
	if err := <-result; !errors.Is(err, errStillAccessed) {
		t.Errorf("deregister: %v", err)
	}
	b.healthy.check()
}

// region registers memory that the peers of the station may access.
func (s *station) region() *via.Memory {
	s.tb.Helper()
	m, err := s.nic.RegisterMem(s.mem.Bytes()[6<<20:7<<20], s.open)
	check(s.tb, err)
	s.tb.Cleanup(func() { _ = m.Deregister() })
	return m
}

// TestDeregisteredStaysWithdrawn changes attributes while the region is
// deregistered: in whatever order, no peer has it afterwards.
func TestDeregisteredStaysWithdrawn(t *testing.T) {
	b := besiege(t)
	for range 300 {
		m := b.region()
		var wg sync.WaitGroup
		wg.Go(func() { _ = m.SetAttributes(b.open) })
		wg.Go(func() { check(t, m.Deregister()) })
		wg.Wait()
		if w := loadWord(b.peer.victim.mem, entryOffset(m.Handle())); w != 0 {
			t.Fatalf("the region's entry is %#x after it was deregistered", w)
		}
		b.adapter.mu.Lock()
		_, kept := b.adapter.exposed[m]
		b.adapter.mu.Unlock()
		if kept {
			t.Fatal("the adapter keeps a deregistered region")
		}
	}
	// The order that matters: an Update that lost the race gives access last.
	m := b.region()
	check(t, m.Deregister())
	check(t, b.adapter.Register(m))
	if w := loadWord(b.peer.victim.mem, entryOffset(m.Handle())); w != 0 {
		t.Errorf("the region's entry is %#x", w)
	}
	b.keeps()
}
