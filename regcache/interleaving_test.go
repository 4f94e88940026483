package regcache

import (
	"errors"
	"reflect"
	"sync"
	"testing"

	"github.com/viablk/viablk/via"
)

// Each test stops the protocol at one point and lets another goroutine act
// there.

// gate stops Register or Deregister of the oracle until it is opened.
type gate struct {
	reached, open chan struct{}
	once          sync.Once
}

func newGate() *gate { return &gate{reached: make(chan struct{}), open: make(chan struct{})} }

// pass stops the first caller; later callers go through.
func (g *gate) pass() {
	g.once.Do(func() {
		close(g.reached)
		<-g.open
	})
}

func TestEvictionBetweenLookupAndUse(t *testing.T) {
	s, cfg := newScripted(Config{MaxRegions: 4})
	r := newRig(t, 4, cfg)
	warm := r.acquire(t, 1) // raises the pressure, so that hits are told
	defer warm.Release()
	l := r.acquire(t, 0)
	l.Release()
	touched := 0
	s.onTouch = func(r *region) { touched++; s.evict(r) }
	for range touchEvery {
		l := r.acquire(t, 0)
		r.o.use(&l)()
		if live, _, _ := r.o.count(); live != 2 {
			t.Fatal("evicted under a lease")
		}
		l.Release()
	}
	r.waitForReaper(t)
	if touched != 1 {
		t.Errorf("the policy was told %d times of %d hits", touched, touchEvery)
	}
	if live, _, _ := r.o.count(); live != 1 || r.region(0) != nil {
		t.Errorf("%d regions are live, want 1", live)
	}
	if s := r.Stats(); s.Evicted != 1 || s.Hits != touchEvery {
		t.Errorf("stats %+v", s)
	}
}

func TestEvictionDuringOffer(t *testing.T) {
	s, cfg := newScripted(Config{})
	r := newRig(t, 1, cfg)
	s.onOffer = func(r *region) bool { s.evict(r); s.evict(r); return true }
	l := r.acquire(t, 0)
	if got := r.region(0).state.Load(); got != 1 {
		t.Errorf("state %#x, want one lease", got)
	}
	r.o.use(&l)()
	l.Release()
	r.waitForReaper(t)
	if live, _, _ := r.o.count(); live != 0 {
		t.Error("the region outlives its lease")
	}
	if s := r.Stats(); s.Evicted != 1 {
		t.Errorf("evicted twice, and counted %d times", s.Evicted)
	}
}

func TestEvictionOfDeadRegion(t *testing.T) {
	s, cfg := newScripted(Config{})
	r := newRig(t, 1, cfg)
	l := r.acquire(t, 0)
	old := l.region
	l.Release()
	if err := r.Invalidate(r.buf(0, 0, 1)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the policy to forget", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.forgot) == 1 && s.forgot[0] == old
	})
	s.evict(old)
	fresh := r.acquire(t, 0)
	s.evict(old) // lands late, while the granule is registered again
	r.o.use(&fresh)()
	fresh.Release()
	if got := r.region(0).state.Load(); got != stateRetained {
		t.Errorf("state %#x of the new region", got)
	}
}

func TestEvictionDuringDeregister(t *testing.T) {
	s, cfg := newScripted(Config{})
	r := newRig(t, 1, cfg)
	l := r.acquire(t, 0)
	old := l.region
	l.Release()
	g := newGate()
	hook := func(*via.Memory) { g.pass() }
	r.o.onDeregister.Store(&hook)
	s.evict(old)
	<-g.reached
	s.evict(old)
	r.reaper.push(old)
	// A lookup that found the region before it was removed.
	if r.hit(old) {
		t.Error("a dead region is leased")
	}
	if got := old.state.Load(); got != stateDead {
		t.Errorf("state %#x after the visitor left", got)
	}
	// Other goroutines wait for the granule, and register anew.
	fresh := make(chan Lease)
	go func() {
		l, err := r.Acquire(r.buf(0, 0, 1), r.tag, RemoteRead)
		if err != nil {
			t.Error(err)
		}
		fresh <- l
	}()
	close(g.open)
	again := <-fresh
	if again.Handle() == old.handle || r.nic.LookupMemory(old.handle) != nil {
		t.Error("the old handle lives on")
	}
	r.o.use(&again)()
	again.Release()
}

func TestConcurrentMissesRegisterOnce(t *testing.T) {
	r := newRig(t, 1, Config{})
	g := newGate()
	hook := func(*via.Memory) error { g.pass(); return nil }
	r.o.onRegister.Store(&hook)
	var wg sync.WaitGroup
	leases := make([]Lease, 4)
	for i := range leases {
		wg.Go(func() {
			l, err := r.Acquire(r.buf(0, i*8, 8), r.tag, RemoteRead)
			if err != nil {
				t.Error(err)
			}
			leases[i] = l
		})
	}
	<-g.reached
	close(g.open)
	wg.Wait()
	if _, registered, _ := r.o.count(); registered != 1 {
		t.Errorf("%d registrations", registered)
	}
	if s := r.Stats(); s.Misses != 1 || s.Hits != 3 || s.LeasedRegions != 1 {
		t.Errorf("stats %+v", s)
	}
	for i := range leases {
		leases[i].Release()
	}
}

// A hit finds a region that is queued for the reaper.
func TestHitRevivesQueuedRegion(t *testing.T) {
	s, cfg := newScripted(Config{})
	r := newRig(t, 2, cfg)
	first, second := r.acquire(t, 0), r.acquire(t, 1)
	one, two := first.region, second.region
	first.Release()
	second.Release()
	g := newGate()
	hook := func(*via.Memory) { g.pass() }
	r.o.onDeregister.Store(&hook)
	s.evict(one)
	<-g.reached // the reaper is busy
	s.evict(two)
	if got := two.state.Load(); got != 0 {
		t.Fatalf("state %#x", got)
	}
	l := r.acquire(t, 1)
	if l.region != two {
		t.Fatal("the region was not revived")
	}
	close(g.open)
	eventually(t, "the reaper to pass it over", func() bool { return !two.queued.Load() })
	r.o.use(&l)()
	l.Release()
	r.waitForReaper(t)
	if live, _, _ := r.o.count(); live != 0 {
		t.Errorf("%d regions are live", live)
	}
}

// The budget stays reserved until the NIC has deregistered. A miss waits for it
// instead of failing or exceeding the limit.
func TestMissWaitsForTheReapersBudget(t *testing.T) {
	s, cfg := newScripted(Config{MaxRegions: 1})
	r := newRig(t, 2, cfg)
	l := r.acquire(t, 0)
	old := l.region
	l.Release()
	g := newGate()
	hook := func(*via.Memory) { g.pass() }
	r.o.onDeregister.Store(&hook)
	s.evict(old)
	<-g.reached
	done := make(chan error)
	go func() {
		l, err := r.Acquire(r.buf(1, 0, 1), r.tag, RemoteRead)
		l.Release()
		done <- err
	}()
	close(g.open)
	if err := <-done; err != nil {
		t.Errorf("Acquire: %v", err)
	}
}

// Without leases a miss always gets budget, whatever the reaper's progress.
func TestReaperBacklogDoesNotRefuseMisses(t *testing.T) {
	s, cfg := newScripted(Config{MaxRegions: 1})
	r := newRig(t, 3, cfg)
	s.onOffer = func(*region) bool { return false }
	for i := range 20000 {
		l := r.acquire(t, i%3)
		l.Release()
	}
}

// acquireAtGate leases memory of the first granule, whose registration has come
// to a gate. The lease follows when the gate is open.
func (r *rig) acquireAtGate(t *testing.T) (*gate, <-chan Lease) {
	t.Helper()
	g := newGate()
	hook := func(*via.Memory) error { g.pass(); return nil }
	r.o.onRegister.Store(&hook)
	leased := make(chan Lease)
	go func() {
		l, err := r.Acquire(r.buf(0, 0, 1), r.tag, RemoteRead)
		if err != nil {
			t.Error(err)
		}
		leased <- l
	}()
	<-g.reached
	return g, leased
}

// Two misses of different granules compete for budget for one.
func TestBudgetHeldByPendingRegistration(t *testing.T) {
	r := newRig(t, 2, Config{MaxRegions: 1})
	g, done := r.acquireAtGate(t)
	if _, err := r.Acquire(r.buf(1, 0, 1), r.tag, RemoteRead); err != ErrBudget {
		t.Errorf("second registration: %v", err)
	}
	close(g.open)
	l := <-done
	l.Release()
}

// Close runs during a registration: the miss finishes first, and its lease is
// valid.
func TestCloseDuringRegister(t *testing.T) {
	r := newRig(t, 1, Config{})
	g, leased := r.acquireAtGate(t)
	closed := make(chan error)
	go func() { closed <- r.Close() }()
	eventually(t, "Close to begin", func() bool { return r.closed.Load() })
	close(g.open)
	l := <-leased
	r.o.use(&l)()
	if err := <-closed; !errors.Is(err, ErrInUse) {
		t.Errorf("Close: %v", err)
	}
	if got := l.region.state.Load(); got != 1 {
		t.Errorf("state %#x of the leased region, want one lease", got)
	}
	l.Release()
}

// If deregistration is cheap, a miss ends the victim of the clock inline: when
// Acquire returns no goroutine has been woken, and none needs to be.
func TestMissEndsItsVictimInline(t *testing.T) {
	const budget, granules = 40, 400
	r := newRig(t, granules, Config{MaxRegions: budget, Policy: PolicyClock, InlineDeregister: true})
	for i := range granules {
		l := r.acquire(t, i)
		l.Release()
		if n := len(r.live.selected(func(r *region) bool { return r.state.Load() == 0 })); n != 0 || len(r.reaper.wake) != 0 {
			t.Fatalf("after miss %d: %d regions wait for the reaper, woken: %d", i, n, len(r.reaper.wake))
		}
	}
	if s := r.Stats(); s.Evicted == 0 || s.DeregisterBatches != 0 {
		t.Errorf("%+v", s)
	}
}

// SuitedTo selects a policy by the NIC's costs if none is configured.
func TestSuitedTo(t *testing.T) {
	takes := func(register, deregister float64) *Calibration {
		return &Calibration{Register: Line{Fixed: register}, Deregister: Line{Fixed: deregister}}
	}
	for _, x := range []struct {
		name   string
		config Config
		cost   *Calibration
		want   Config
	}{
		{"tables", Config{}, takes(400, 250), Config{Policy: PolicyClock, InlineDeregister: true}},
		{"slower than a Release may be", Config{}, takes(20e3, 20e3), Config{Policy: PolicyClock}},
		{"UCX's NIC", Config{}, takes(79e3, 39e3), Config{}},
		{"of the larger granule", Config{Granule: HugeGranule}, &Calibration{Register: Line{PerByte: 0.04}}, Config{Granule: HugeGranule}},
		{"chosen", Config{Policy: PolicyRistretto}, takes(400, 250), Config{Policy: PolicyRistretto}},
	} {
		if got := x.config.SuitedTo(x.cost); !reflect.DeepEqual(got, x.want) {
			t.Errorf("%s: %+v, want %+v", x.name, got, x.want)
		}
	}
}

func TestInlineDeregister(t *testing.T) {
	s, cfg := newScripted(Config{InlineDeregister: true})
	r := newRig(t, 1, cfg)
	s.onOffer = func(*region) bool { return false }
	l := r.acquire(t, 0)
	l.Release()
	if live, registered, deregistered := r.o.count(); live != 0 || registered != 1 || deregistered != 1 {
		t.Errorf("%d live, %d registered, %d deregistered after Release", live, registered, deregistered)
	}
	if s := r.Stats(); s.Refused != 1 || s.Regions != 0 {
		t.Errorf("stats %+v", s)
	}
}
