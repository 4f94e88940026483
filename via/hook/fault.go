package hook

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/via"
)

// Plan says how a Fault misbehaves. The zero Plan does not. Two runs with the
// same plan and the same calls misbehave alike.
type Plan struct {
	Seed uint64 // of what is drawn below

	FailRegistration    int           // this registration of the provider fails, 1 is the first; 0 none
	RefuseConnects      int           // so many connects fail as not reachable, from the first
	FabricFailsConnects int           // so many of the next fail with a *via.FabricError
	DelayConnects       time.Duration // every other connect waits so long, or until its context ends

	// Faults are what the fabric does to the n-th Send or RDMA operation of
	// every link, 1 is the first.
	Faults map[int]via.Fault

	// Chances are the shares, of all Sends and RDMA operations, that suffer a
	// fault where Faults says nothing. They add up to 1 at most.
	Chances map[via.Fault]float64

	// RefusePosts is the share, between 0 and 1, of offers of sends that find
	// no room. Only a link with a send outstanding has no room: the user agent
	// offers again when that completes.
	RefusePosts float64

	// HoldCompletions is the most polls for which a report is held back. Order
	// is kept: what comes after waits as well.
	HoldCompletions int

	// SeverAt cuts every link at its n-th step, a post or a completion: both
	// ends lose the connection, what was staged is lost. 0 never.
	SeverAt int

	// BreakAt reports every link broken after its n-th completion, while the
	// fabric still works. 0 never.
	BreakAt int

	// FailNicAt makes every device fail at its n-th step, a post or a
	// completion of any of its links: all of them report a catastrophe, their
	// peers lose the connection, and nothing can be made of the device any
	// more. 0 never.
	FailNicAt int
}

// FaultProvider is a provider that misbehaves. Its methods are safe for
// concurrent use.
type FaultProvider struct {
	layer
	t faultTap
}

// Fault returns a provider that does what p does, less well.
func Fault(p via.Provider, plan Plan) *FaultProvider {
	f := &FaultProvider{t: faultTap{plan: plan, kinds: slices.Sorted(maps.Keys(plan.Chances))}}
	f.t.random = rand.New(rand.NewPCG(plan.Seed, 0x6661756c74))
	f.Provider, f.tap = p, &f.t
	return f
}

// Injected returns how often the provider misbehaved.
func (f *FaultProvider) Injected() uint64 { return f.t.injected.Load() }

var (
	errCut    = errors.New("fault: the link is cut")
	errBroken = errors.New("fault: the link is reported broken")
	errFabric = errors.New("fault: a connect fails in the fabric")
)

type faultTap struct {
	passive
	plan          Plan
	kinds         []via.Fault // of plan.Chances, in the order in which they are drawn
	injected      atomic.Uint64
	registrations atomic.Int64
	connects      atomic.Int64
	wires         atomic.Uint64 // links configured so far

	mu sync.Mutex // for random
	// +checklocks:mu
	random *rand.Rand
}

// draw returns a random number below n.
func (t *faultTap) draw(n int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.random.IntN(n)
}

func (t *faultTap) chance(p float64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.random.Float64() < p
}

func (t *faultTap) register(*adapter, *via.Memory) error {
	if n := t.registrations.Add(1); t.plan.FailRegistration == 0 || n != int64(t.plan.FailRegistration) {
		return nil
	}
	t.injected.Add(1)
	return fmt.Errorf("fault: registration %d: %w", t.plan.FailRegistration, via.ErrResource)
}

func (t *faultTap) connect(ctx context.Context, host string) error {
	switch n := int(t.connects.Add(1)) - t.plan.RefuseConnects; {
	case n <= 0:
		t.injected.Add(1)
		return fmt.Errorf("fault: host %q: %w", host, via.ErrNotReachable)
	case n <= t.plan.FabricFailsConnects:
		t.injected.Add(1)
		return &via.FabricError{Cause: errFabric}
	case t.plan.DelayConnects == 0:
		return nil
	}
	t.injected.Add(1)
	timer := time.NewTimer(t.plan.DelayConnects)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("fault: connect is delayed: %w: %w", via.ErrTimeout, context.Cause(ctx))
	}
}
