package regcache

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
)

// The reaper deregisters the regions queued while it was busy in calls of up to
// 16, including two regions of one granule.
func TestReaperDeregistersInBatches(t *testing.T) {
	s, cfg := newScripted(Config{})
	r := newRig(t, 24, cfg)
	var all []*region
	for g := range 24 {
		l := r.acquire(t, g)
		all = append(all, l.region)
		l.Release()
	}
	l := must(r.Acquire(r.buf(23, 0, 1), r.tag, RemoteWrite))(t)
	all = append(all, l.region)
	l.Release()
	g := newGate()
	hook := func(*via.Memory) { g.pass() }
	r.o.onDeregister.Store(&hook)
	s.evict(all[0])
	<-g.reached
	for _, x := range all[1:] {
		s.evict(x)
	}
	close(g.open)
	r.waitForReaper(t)
	eventually(t, "the counters", func() bool { return r.Stats().Deregistrations == 25 })
	// One call for the first, two for the 24 others; the second region of a
	// granule needs its own call if it is in the batch of the first.
	if n := r.Stats().DeregisterBatches; n != 3 {
		t.Errorf("25 regions are deregistered in %d batches", n)
	}
	if live, _, down := r.o.count(); live != 0 || down != 25 {
		t.Errorf("%d live, %d deregistered", live, down)
	}
}

// A batch with a device error ends all its regions.
func TestBatchThatFails(t *testing.T) {
	s, cfg := newScripted(Config{})
	r := newRig(t, 4, cfg)
	r.nicFails(errors.New("stuck"))
	for g := range 4 {
		l := r.acquire(t, g)
		x := l.region
		l.Release()
		s.evict(x)
	}
	r.waitForReaper(t)
	eventually(t, "the budget", func() bool { return r.Stats().Regions == 0 })
	if s := r.Stats(); s.DeregisterFailures == 0 || s.DeregisterFailures > 4 || s.Deregistrations != 4 {
		t.Errorf("%+v", s)
	}
	r.nicFails(nil)
}

// nicFails makes the oracle return an error from each deregistration, after
// performing it.
func (r *rig) nicFails(err error) {
	r.o.mu.Lock()
	defer r.o.mu.Unlock()
	r.o.complaint = err
}

// The eviction callback returns although every lock of the cache is held and
// the reaper waits for the NIC.
func TestEvictionCallbackDoesNotBlock(t *testing.T) {
	s, cfg := newScripted(Config{})
	r := newRig(t, 8, cfg)
	r.probation.init(40, 32) // four entries
	var all []*region
	for g := range 8 {
		l := r.acquire(t, g)
		all = append(all, l.region)
		l.Release()
	}
	g := newGate()
	hook := func(*via.Memory) { g.pass() }
	r.o.onDeregister.Store(&hook)
	if err := r.Invalidate(nil); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		s.evict(all[0])
	}
	<-g.reached
	r.live.mu.Lock()
	r.mu.Lock()
	for i := 1; i < 8; i++ { // the reaper holds the first
		r.arena.granules[i].mu.Lock()
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, x := range all[1:] {
			s.evict(x)
			s.evict(x)
		}
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Error("the callback waits")
	}
	for i := 1; i < 8; i++ {
		r.arena.granules[i].mu.Unlock()
	}
	r.mu.Unlock()
	r.live.mu.Unlock()
	close(g.open)
	r.waitForReaper(t)
	for _, x := range all {
		if x.state.Load()&stateRetained != 0 && x.state.Load()&stateDead == 0 {
			t.Errorf("granule %d is still retained", x.index)
		}
	}
}

// The reaper, not the miss that needed room, tells the policy of an end.
func TestMissDoesNotBlockOnPolicy(t *testing.T) {
	s, cfg := newScripted(Config{MaxRegions: 1, InlineDeregister: true})
	r := newRig(t, 2, cfg)
	l := r.acquire(t, 0)
	old := l.region
	l.Release()
	s.mu.Lock() // a policy that blocks
	done := make(chan error)
	s.unlocked.Store(true)
	go func() {
		l, err := r.Acquire(r.buf(1, 0, 1), r.tag, RemoteRead)
		l.Release()
		done <- err
	}()
	if err := <-done; err != nil {
		t.Errorf("Acquire: %v", err)
	}
	s.unlocked.Store(false)
	s.mu.Unlock()
	eventually(t, "the policy to forget", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.forgot) == 1 && s.forgot[0] == old
	})
}

// Ristretto's cost is the pinned bytes: the last granule of adopted memory may
// be short.
func TestRistrettoCostIsPinnedBytes(t *testing.T) {
	var kept atomic.Int64
	a := must(newRistrettoPolicy(2, DefaultGranule, func(*region) { kept.Add(-1) }))(t)
	arena := &Arena{}
	for i := range 40 {
		r := &region{arena: arena, index: i, bytes: DefaultGranule / 16}
		if a.offer(r) {
			kept.Add(1)
		}
		a.cache.Wait()
	}
	if n := kept.Load(); n != 32 {
		t.Errorf("%d regions of a sixteenth are kept in the room of 2 granules", n)
	}
	a.close()
	if n := kept.Load(); n != 0 {
		t.Errorf("%d after close", n)
	}
}
