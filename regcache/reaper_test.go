package regcache

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
)

// What gathers while the reaper is busy is deregistered in one call of the NIC, up to
// 16 regions at a time, two of one granule included.
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
	r.settle(t)
	eventually(t, "the counters", func() bool { return r.Stats().Deregistrations == 25 })
	// One for the first, two for the 24 others; a granule's second comes by itself if it
	// is in the batch of the first.
	if n := r.Stats().DeregisterBatches; n != 3 {
		t.Errorf("25 regions are deregistered in %d batches", n)
	}
	if live, _, down := r.o.count(); live != 0 || down != 25 {
		t.Errorf("%d live, %d deregistered", live, down)
	}
}

// A batch in which the device fails ends all its regions nevertheless.
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
	r.settle(t)
	eventually(t, "the budget", func() bool { return r.Stats().Regions == 0 })
	if s := r.Stats(); s.DeregisterFailures == 0 || s.DeregisterFailures > 4 || s.Deregistrations != 4 {
		t.Errorf("%+v", s)
	}
	r.nicFails(nil)
}

// nicFails has the oracle report an error of each deregistration, after it.
func (r *rig) nicFails(err error) {
	r.o.mu.Lock()
	defer r.o.mu.Unlock()
	r.o.complaint = err
}

// What the policy calls returns although every lock of the cache is taken and the
// reaper waits for the NIC: it clears a bit, and leaves the rest to the reaper.
func TestCallbackOfThePolicyWaitsForNothing(t *testing.T) {
	s, cfg := newScripted(Config{})
	r := newRig(t, 8, cfg)
	r.trial.init(40, 32) // four places
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
	for i := 1; i < 8; i++ { // that of the first has the reaper
		r.arena.slots[i].mu.Lock()
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
		r.arena.slots[i].mu.Unlock()
	}
	r.mu.Unlock()
	r.live.mu.Unlock()
	close(g.open)
	r.settle(t)
	for _, x := range all {
		if x.state.Load()&stateRetained != 0 && x.state.Load()&stateDead == 0 {
			t.Errorf("granule %d is retained still", x.index)
		}
	}
}

// The policy learns of an end from the reaper, not from the miss that needed the room.
func TestMissDoesNotWaitForThePolicy(t *testing.T) {
	s, cfg := newScripted(Config{MaxRegions: 1, InlineDeregister: true})
	r := newRig(t, 2, cfg)
	l := r.acquire(t, 0)
	old := l.region
	l.Release()
	s.mu.Lock() // a policy that is behind
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

// Ristretto is charged what is pinned: the last granule of adopted memory may be short.
func TestRistrettoIsChargedWhatIsPinned(t *testing.T) {
	var kept atomic.Int64
	a := must(newRistrettoAdviser(2, DefaultGranule, func(*region) { kept.Add(-1) }))(t)
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
