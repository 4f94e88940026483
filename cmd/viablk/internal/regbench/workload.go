package regbench

import "math/rand/v2"

// Workload is the order in which buffers of an area are used.
type Workload string

// The workloads.
const (
	Reuse   Workload = "reuse"    // a ring of at most 16 MiB: half of what may be registered
	NoReuse Workload = "no-reuse" // one after the other through the area, four times the budget
	Zipf    Workload = "zipf"     // granules by Zipf's law (1.1), anywhere inside
	Mixed   Workload = "mixed"    // reuse and no-reuse in turn
	Looping Workload = "looping"  // a ring a tenth larger than what is kept: the worst case of recency
)

// Workloads returns those by which the decision is measured.
func Workloads() []Workload { return []Workload{Reuse, NoReuse, Zipf, Mixed} }

// positions returns a function that returns the offset of the next buffer of a
// size.
func (w Workload) positions(size int) func() int {
	ring := func(within int) func() int {
		n := max(1, within/size)
		i := -1
		return func() int { i++; return i % n * size }
	}
	switch w {
	case Reuse:
		return ring(min(16<<20, 64*size))
	case NoReuse:
		return ring(areaSize)
	case Looping:
		return ring(budget + budget/10)
	case Zipf:
		step := max(size, 1<<20)
		rng := rand.New(rand.NewPCG(1, 2))
		z := rand.NewZipf(rng, 1.1, 1, uint64(areaSize/step-1))
		return func() int { return int(z.Uint64())*step + rng.IntN(step/size)*size }
	default:
		a, b := Reuse.positions(size), NoReuse.positions(size)
		round := 0
		return func() int {
			if round++; round%2 == 0 {
				return a()
			}
			return b()
		}
	}
}

// passage is how much a pass over memory registers at once, in bytes: a
// granule.
const passage = 1 << 20

// cycle returns the operations of a workload after which its registrations
// repeat, so that each round of a pass over memory has its share of them.
func (w Workload) cycle(size int) int {
	switch w {
	case NoReuse:
		return max(1, passage/size)
	case Mixed:
		return max(2, 2*passage/size)
	default:
		return 1
	}
}
