package regcache

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
)

// world is a machine in virtual time: the cost of each operation is computed,
// with noise, from the registrations that the cache performed.
type world struct {
	name                 string
	register, deregister float64           // ns of a granule
	copies               func(int) float64 // ns that a copy adds to an operation
	transfer             func(int) float64 // ns of the rest
}

// worlds are shared memory, UCX's NIC, and Table 1 of CIBR.
func worlds() []world {
	warm := func(n int) float64 { return 60 + 0.07*float64(n) }
	rest := func(n int) float64 { return 1500 + 0.1*float64(n) }
	return []world{
		{"shm", 400, 250, warm, rest},
		{"ucx", 79e3, 39e3, warm, rest},
		{"cibr", 740e3, 370e3, func(n int) float64 { return 4000 + 1.5*float64(n) }, func(n int) float64 { return 20e3 + 2*float64(n) }},
	}
}

const (
	worldGranules = 128
	worldBudget   = 32
)

// places returns a function that yields the offset of the next buffer in the
// arena.
func places(workload string, size int) func() int {
	ring := func(within int) func() int {
		i := -1
		return func() int { i++; return i % max(1, within/size) * size }
	}
	switch workload {
	case "reuse":
		return ring(min(16<<20, 64*size))
	case "no reuse":
		return ring(worldGranules << 20)
	case "zipf":
		step := max(size, 1<<20)
		rng := rand.New(rand.NewPCG(1, 2))
		z := rand.NewZipf(rng, 1.1, 1, uint64(worldGranules<<20/step-1))
		return func() int { return int(z.Uint64())*step + rng.IntN(step/size)*size }
	default:
		a, b, i := places("reuse", size), places("no reuse", size), 0
		return func() int {
			if i++; i%2 == 0 {
				return a()
			}
			return b()
		}
	}
}

// live runs n operations in a mode and returns the virtual time that they take.
func (w *world) live(t *testing.T, r *rig, c *CopyPolicy, dir Direction, size, n int, next func() int, rng *rand.Rand) (total float64) {
	for range n {
		at := next()
		_, up, down := r.o.count()
		cost := w.transfer(size)
		var first Choice
		for off := 0; off < size; off += 1 << 20 {
			buf := r.arena.Bytes()[at+off : at+min(size, off+1<<20)]
			v := c.Choose(buf, r.tag, RemoteRead, dir)
			if off == 0 {
				first = v
			}
			if v.Zero {
				l, err := r.Acquire(buf, r.tag, RemoteRead)
				if err != nil {
					t.Fatal(err)
				}
				l.Release()
				cost += leaseTime
				continue
			}
			copying := w.copies(len(buf))
			cost += copying
			c.Copied(v, len(buf), time.Duration(copying))
		}
		_, upNow, downNow := r.o.count()
		if upNow != up {
			r.waitForReaper(t) // in virtual time the reaper is always done
			_, _, downNow = r.o.count()
		}
		cost += float64(upNow-up)*w.register + float64(downNow-down)*w.deregister
		r.cost.register.ns.Store(int64(w.register))
		r.cost.deregister.ns.Store(int64(w.deregister))
		total += cost
		if first.Timed && size <= 1<<20 {
			noisy := cost * (1 + 0.1*rng.Float64())
			if rng.IntN(20) == 0 {
				noisy += 50e3 // the goroutine was preempted
			}
			c.Finished(first, time.Duration(noisy))
		}
	}
	return total / float64(n)
}

// The decision is at most 5 % slower than the better fixed mode in every
// workload, at every size, in both directions, with every policy and every
// registration cost. The race detector, which would see one goroutine only,
// runs a subset.
func TestDecisionIsNearTheBest(t *testing.T) {
	brief := testing.Short()
	for _, policy := range []Policy{PolicyClock, PolicyRistretto} {
		for _, w := range worlds() {
			step := 2
			switch {
			case brief && (w.name != "ucx" || policy != PolicyClock):
				continue
			case brief:
				step = 32
			case policy == PolicyRistretto:
				step = 4
			}
			for _, workload := range []string{"reuse", "no reuse", "zipf", "mixed"} {
				for _, dir := range []Direction{Out, In} {
					t.Run(fmt.Sprintf("%s, %s, %s, %s", policy, w.name, workload, dir), func(t *testing.T) {
						for size := 512; size <= 4<<20; size *= step {
							w.compare(t, policy, workload, dir, size)
						}
					})
				}
			}
		}
	}
}

// comparisons is how many runs of a cell are judged by their mean, if the first
// one is below the bound: ristretto admits on goroutines of its own, so what it
// keeps differs between runs.
const comparisons = 5

func (w *world) compare(t *testing.T, policy Policy, workload string, dir Direction, size int) {
	t.Helper()
	ns := map[CopyMode]float64{}
	ratio := func(runs int) float64 {
		for range runs {
			for _, mode := range CopyModes() {
				ns[mode] += w.run(t, policy, mode, workload, dir, size)
			}
		}
		r := min(ns[CopyBounce], ns[CopyZero]) / ns[CopyAuto]
		t.Logf("%7d bytes: auto %.0f ns, bounce %.0f, zerocopy %.0f: ratio %.3f", size, ns[CopyAuto], ns[CopyBounce], ns[CopyZero], r)
		return r
	}
	r := ratio(1)
	if r < 0.95 && policy == PolicyRistretto {
		r = ratio(comparisons - 1) // of all
	}
	if r < 0.95 {
		t.Errorf("%s, %s, %s, %s: %d bytes: ratio %.3f", policy, w.name, workload, dir, size, r)
	}
}

// run returns the virtual time of an operation in a mode, once the cache knows
// the workload.
func (w *world) run(t *testing.T, policy Policy, mode CopyMode, workload string, dir Direction, size int) float64 {
	t.Helper()
	r := newRigNoCleanup(t, worldGranules, Config{MaxRegions: worldBudget, Policy: policy, InlineDeregister: true})
	hook := func(*via.Memory) error { return nil }
	r.o.onRegister.Store(&hook)
	c := NewCopyPolicy(r.Cache, mode, Calibration{
		Register: Line{Fixed: w.register}, Deregister: Line{Fixed: w.deregister},
		CopyWarm: Line{PerByte: w.copies(1<<20) / (1 << 20)}, CopyCold: Line{PerByte: w.copies(1<<20) / (1 << 20)},
	})
	rng := rand.New(rand.NewPCG(7, uint64(size)))
	next := places(workload, size)
	n := max(4000, 3*(1<<20)/size)
	w.live(t, r, c, dir, size, n, next, rng)
	ns := w.live(t, r, c, dir, size, n, next, rng)
	if k := &c.classes[1-dir][classOf(size)]; mode == CopyAuto && (k.found != 0 || k.uses != 0) {
		t.Errorf("%d bytes: the other direction learned: %d hits, %g uses", size, k.found, k.uses)
	}
	if mode == CopyAuto {
		t.Logf("%7d bytes: %+v", size, c.Stats())
	}
	r.finish(t)
	return ns
}
