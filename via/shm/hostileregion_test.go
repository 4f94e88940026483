package shm

import (
	"errors"
	"fmt"
	"os"
	"strings"
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
		"another entry":           func(p *rawPeer) { p.entry(rawHandle+1, entryLive|entryWrite|entryRead, addr, size, 1, 0) },
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
				b := attack(t)
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
		b := attack(t)
		d := b.remote(0, via.OpRdmaWrite, 1<<20, 64, 0, 0x1ffff)
		check(t, b.vi.PostSend(d))
		if c := b.await(d); c.Status&via.StatusErrorMask != via.StatusRdmaProtError {
			t.Errorf("completed with %v", c.Status)
		}
		b.loses()
	})
}

// TestRegionBeforeItsArena: an operation waits for an arena that is in flight,
// asleep, and for one that never comes without harm to others.
func TestRegionBeforeItsArena(t *testing.T) {
	b := attack(t)
	both(0x1000, 4096, 1, 0)(b.peer)
	b.mem.Bytes()[2<<20] = 0x5a
	d := b.remote(0, via.OpRdmaWrite, 2<<20, 64, 0x1000, rawHandle)
	check(t, b.vi.PostSend(d))
	b.keeps()
	for b.poll() > 0 {
	}
	armed := b.cq.Arm()
	_, mem := b.peer.arena(4096)
	if armed && !readable(t, b.cq.FD(), time.Minute) {
		t.Fatal("the arena does not wake the queue's owner")
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

// TestRegionChangesInUse rewrites an entry without a pause while the victim
// uses the region: each operation lands inside the arena or is refused.
func TestRegionChangesInUse(t *testing.T) {
	b := attack(t)
	refused := 0
	for range 40 {
		b.useChangingRegion()
		if b.vi.State() == via.StateError {
			refused++
		}
		b.disconnect(b.vi)
		b.peer.close()
		b.vi = b.newVI()
		b.peer = attach(t, b.station, b.listener, b.vi)
		b.healthy.check()
	}
	if refused == 0 {
		t.Error("no operation met an invalid entry")
	}
}

func (b *attacked) useChangingRegion() {
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

// shortTimeouts are of a victim that soon gives up on a peer.
func shortTimeouts() timeouts {
	p := testTimeouts
	p.access = 50 * time.Millisecond
	return p
}

// holdHazard makes the peer claim to be inside a region, for good.
func (b *attacked) holdHazard(m *via.Memory) { b.peer.word(offHazard, hazardOf(m.Handle())) }

// disconnectInside disconnects the VI of a peer that stays inside.
func (b *attacked) disconnectInside() {
	b.tb.Helper()
	err := b.vi.Disconnect()
	if !errors.Is(err, via.ErrStillAccessed) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
		b.tb.Fatalf("disconnect with a peer inside: %v", err)
	}
	if s := b.vi.State(); s != via.StateIdle {
		b.tb.Fatalf("the vi is %v", s)
	}
}

// TestHazardHeld: a peer that stays inside a region for ever costs a bounded
// time, and the region is never called free while it is inside.
func TestHazardHeld(t *testing.T) {
	b := attackFor(t, shortTimeouts())
	m1, m2, m3 := b.region(), b.region(), b.region()
	b.holdHazard(m1)
	check(t, m2.Deregister()) // it is inside another
	if m2.Accessed() {
		t.Error("a region is accessed that the peer is not inside")
	}
	if err := m1.SetAttributes(b.open); !errors.Is(err, via.ErrStillAccessed) {
		t.Fatalf("set attributes: %v", err)
	}
	if !m1.Accessed() {
		t.Error("the region is not accessed while its link is severed")
	}
	b.loses() // closing waits no longer than the timeout either
	b.disconnectInside()
	if err := m1.Deregister(); !errors.Is(err, via.ErrStillAccessed) {
		t.Errorf("deregister with a lingering peer inside: %v", err)
	}
	if !m1.Accessed() {
		t.Error("the region is not accessed")
	}
	check(t, m3.Deregister())
	b.healthy.check()
}

// TestLingeringPeerLeaves: a peer that comes out late, or dies, frees the
// region, whether it is registered or not.
func TestLingeringPeerLeaves(t *testing.T) {
	for name, leave := range map[string]func(p *rawPeer){
		"comes out": func(p *rawPeer) { p.word(offHazard, 0) },
		"dies":      func(p *rawPeer) { _ = p.conn.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			b := attackFor(t, shortTimeouts())
			m, old := b.region(), b.region()
			b.holdHazard(m)
			b.disconnectInside()
			check(t, b.vi.Disconnect()) // it has told
			if !m.Accessed() || old.Accessed() {
				t.Errorf("accessed: the region %v, another one %v", m.Accessed(), old.Accessed())
			}
			leave(b.peer)
			if m.Accessed() {
				t.Error("the region is accessed by a peer that is out")
			}
			check(t, m.Deregister())
			b.healthy.check()
		})
	}
}

// TestHazardWithoutMemory: a peer that never got memory is inside none: it
// costs neither time nor memory.
func TestHazardWithoutMemory(t *testing.T) {
	watchLeaks(t)
	s := newStation(t, timeouts{handshake: time.Minute, access: time.Hour})
	check(t, s.mem.SetAttributes(via.MemAttributes{Ptag: s.tag}))
	l := s.listen()
	vi := s.newVI()
	p := attach(t, s, l, vi)
	p.word(offHazard, hazardOf(s.mem.Handle()))
	check(t, vi.Disconnect())
	if s.mem.Accessed() {
		t.Error("the memory is accessed")
	}
}

// TestManyLinger: with as many lingering links as allowed no connection is
// made, for none may be forgotten, until one ends.
func TestManyLinger(t *testing.T) {
	p := shortTimeouts()
	p.access = time.Millisecond
	b := attackFor(t, p)
	m := b.region()
	peers := []*rawPeer{b.peer}
	for len(peers) < maxLingering {
		b.holdHazard(m)
		b.disconnectInside()
		b.peer = attach(t, b.station, b.listener, b.vi)
		peers = append(peers, b.peer)
	}
	b.holdHazard(m)
	b.disconnectInside()
	far, accepted := b.healthy.far.listen(), make(chan error)
	go func() { accepted <- acceptNext(t, far, b.healthy.far.newVI()) }()
	if _, err := b.vi.Connect(t.Context(), far.Addr()); !errors.Is(err, via.ErrResource) {
		t.Fatalf("one more connection: %v", err)
	}
	if err := <-accepted; err == nil {
		t.Error("the peer of a connection that was refused has it")
	}
	b.healthy.check()
	for i, peer := range peers {
		if !m.Accessed() {
			t.Fatalf("the region is free while %d peers are inside", len(peers)-i)
		}
		peer.word(offHazard, 0)
	}
	if m.Accessed() {
		t.Error("the region is accessed by peers that are out")
	}
	b.peer = attach(t, b.station, b.listener, b.vi)
	b.keeps()
}

// TestReadOfWithdrawnRegion: an RDMA Read whose region the peer withdraws
// during the copy fails, for the memory may be another's by now. The bytes
// that it copies are the withdrawal: its local memory is the peer's table.
func TestReadOfWithdrawnRegion(t *testing.T) {
	const size = 4096
	for _, at := range []int{0, 64} { // the entry, and beside it
		b := attack(t)
		b.peer.arena(size)
		until(t, "the arena", func() bool { return mapped.Load() >= size+2*stationBytes }, b.station)
		both(0, size, 1, 0)(b.peer)
		entry := entryOffset(rawHandle)
		page := entry &^ (size - 1)
		table := b.mem.Bytes()[1<<20 : 1<<20+size]
		check(t, mapTwice(table, b.peer.local.segment.mem[page:page+size]))
		d := b.remote(0, via.OpRdmaRead, 1<<20+entry-page+at, 64, 0, rawHandle)
		check(t, b.vi.PostSend(d))
		c := b.await(d)
		if at != 0 {
			if c.Status.Failed() {
				t.Errorf("a read of a region that stays: %v", c.Status)
			}
			b.keeps()
			continue
		}
		if c.Status&via.StatusErrorMask != via.StatusRdmaProtError {
			t.Errorf("a read of a region that was withdrawn meanwhile: %v", c.Status)
		}
		b.loses()
	}
}

// TestDeregisterWhileClosing: a link that waits for its peer to come out still
// counts for Deregister on another goroutine.
func TestDeregisterWhileClosing(t *testing.T) {
	p := testTimeouts
	p.access = time.Second
	b := attackFor(t, p)
	m := b.region()
	b.peer.word(offHazard, hazardOf(m.Handle()))
	result := make(chan error)
	go func() {
		closing := func() bool {
			b.adapter.mu.Lock()
			defer b.adapter.mu.Unlock()
			for l := range b.adapter.links {
				if l.exposure.closing {
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
	b.disconnectInside()
	if err := <-result; !errors.Is(err, via.ErrStillAccessed) {
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
	b := attack(t)
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
