package hook

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/via"
)

// Plan says how a Fault misbehaves. The zero Plan does not. Two runs with the
// same plan and the same calls misbehave alike.
type Plan struct {
	Seed uint64 // of what is drawn below

	FailRegistration int           // this registration of the provider fails, 1 is the first; 0 none
	RefuseConnects   int           // so many connects fail as not reachable, from the first
	DelayConnects    time.Duration // every connect waits so long, or until its context ends

	// RefusePosts is the share, between 0 and 1, of offers of sends that find no
	// room. Only a link with a send outstanding has no room: the user agent offers
	// again when that completes.
	RefusePosts float64

	// HoldCompletions is the most polls for which a report is held back. Order is
	// kept: what comes after waits as well.
	HoldCompletions int

	// SeverAt cuts every link at its n-th step, a post or a completion: both ends
	// lose the connection, what was staged is lost. 0 never.
	SeverAt int

	// BreakAt reports every link broken after its n-th completion, while the fabric
	// still works. 0 never.
	BreakAt int
}

// FaultProvider is a provider that misbehaves. Its methods are safe for
// concurrent use.
type FaultProvider struct {
	layer
	t faultTap
}

// Fault returns a provider that does what p does, less well.
func Fault(p via.Provider, plan Plan) *FaultProvider {
	f := &FaultProvider{t: faultTap{plan: plan}}
	f.t.random = rand.New(rand.NewPCG(plan.Seed, 0x6661756c74))
	f.Provider, f.tap = p, &f.t
	return f
}

// Injected returns how often the provider misbehaved.
func (f *FaultProvider) Injected() uint64 { return f.t.injected.Load() }

var (
	errCut    = errors.New("fault: the link is cut")
	errBroken = errors.New("fault: the link is reported broken")
)

type faultTap struct {
	passive
	plan          Plan
	injected      atomic.Uint64
	registrations atomic.Int64
	connects      atomic.Int64

	mu     sync.Mutex // for random
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
	if t.connects.Add(1) <= int64(t.plan.RefuseConnects) {
		t.injected.Add(1)
		return fmt.Errorf("fault: host %q: %w", host, via.ErrNotReachable)
	}
	if t.plan.DelayConnects == 0 {
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

// faulty is what a link keeps for Fault.
type faulty struct {
	cut         bool
	remains     remains
	outstanding int // sends
	steps       int
	completions int
}

// remains stands in for a link that was cut. It takes posts, which are flushed
// when the user agent hears that the link is gone.
type remains struct{ stats via.LinkStats }

func (*remains) PostSend(*via.Work) bool { return true }
func (*remains) PostRecv(*via.Work)      {}
func (*remains) Doorbell()               {}
func (*remains) Close() error            { return nil }
func (r *remains) Stats() via.LinkStats  { return r.stats }

// holding is what a queue keeps for Fault: reports in order, each with the
// polls for which it waits once it is the first.
type holding struct {
	reports []held
	batch   [64]via.Done
}

type held struct {
	done via.Done
	link *link
	wait int
}

func (t *faultTap) offer(l *link, _ *via.Work) bool {
	if t.plan.RefusePosts > 0 && l.fault.outstanding > 0 && !l.fault.cut && t.chance(t.plan.RefusePosts) {
		t.injected.Add(1)
		return false
	}
	return true
}

func (t *faultTap) posted(l *link, k *ticket, w *via.Work) {
	if w.Op != via.OpRecv {
		l.fault.outstanding++
	}
	t.step(l)
}

// step counts a step of a link and cuts it if the plan says so.
func (t *faultTap) step(l *link) {
	l.fault.steps++
	if t.plan.SeverAt == 0 || l.fault.steps != t.plan.SeverAt {
		return
	}
	t.injected.Add(1)
	l.fault.remains.stats = l.Link.Stats()
	l.fault.cut = true
	_ = l.Link.Close() // the cut is the point
	l.recv.report(l, via.Done{Owner: l.cfg.Owner, Event: via.AsyncConnectionLost, Broken: true, Cause: errCut}, 0)
}

// report adds a report to those that wait.
func (q *queue) report(l *link, d via.Done, wait int) {
	q.hold.reports = append(q.hold.reports, held{d, l, wait})
}

// poll takes the inner queue's reports into those that wait, and returns the
// ones whose time has come.
func (t *faultTap) poll(q *queue, dst []via.Done) int {
	h := &q.hold
	n := q.AdapterCQ.Poll(h.batch[:])
	for i := range h.batch[:n] {
		l, _ := q.of(&h.batch[i])
		if l == nil {
			continue // of a link that is closed
		}
		wait := 0
		if t.plan.HoldCompletions > 0 {
			if wait = t.draw(t.plan.HoldCompletions + 1); wait > 0 {
				t.injected.Add(1)
			}
		}
		q.report(l, h.batch[i], wait)
	}
	out := 0
	for out < len(dst) && len(h.reports) > 0 {
		first := &h.reports[0]
		if first.wait > 0 {
			first.wait--
			break
		}
		dst[out] = first.done
		out++
		l, work := first.link, first.done.Work
		h.reports = h.reports[:copy(h.reports, h.reports[1:])]
		if work != nil {
			t.completed(q, l, work)
		}
	}
	return out
}

// completed counts a completion that is about to be returned.
func (t *faultTap) completed(q *queue, l *link, w *via.Work) {
	k := q.tickets[w]
	k.out = false
	if k.op != via.OpRecv {
		l.fault.outstanding--
	}
	if l.fault.completions++; l.fault.completions == t.plan.BreakAt {
		t.injected.Add(1)
		q.report(l, via.Done{Owner: l.cfg.Owner, Event: via.AsyncConnectionLost, Broken: true, Cause: errBroken}, 0)
	}
	t.step(l)
}

// arm refuses to sleep while a report waits.
func (t *faultTap) arm(q *queue) bool { return len(q.hold.reports) == 0 && q.AdapterCQ.Arm() }

// closed drops the reports of a link.
func (t *faultTap) closed(l *link) {
	for _, q := range []*queue{l.send, l.recv} {
		kept := q.hold.reports[:0]
		for _, r := range q.hold.reports {
			if r.link != l {
				kept = append(kept, r)
			}
		}
		clear(q.hold.reports[len(kept):])
		q.hold.reports = kept
	}
}
