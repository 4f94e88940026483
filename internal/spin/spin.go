// Package spin decides how long a loop looks for work before it sleeps.
//
// To be awake when the next request comes saves a wake-up, the dearest part of a
// small request. But a loop that spins may hold the processor that its own peer
// needs. So a loop spins only while at most half the processors do, lets others
// run between its looks, and after spins that found nothing it sleeps at once for
// exponentially more times before it tries again.
package spin

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Limits of a spinner's caution.
const (
	maximumMisses = 8                     // skips at most 2^8-1 times
	crowded       = 20 * time.Microsecond // a look that takes longer shared the processor
)

// spinning counts the loops of this process that spin now.
var spinning atomic.Int32

// Spinner is the memory of one loop. One goroutine uses it:
//
//	if s.Start() {
//		for s.Again() {
//			if look() {
//				s.Paid()
//				break
//			}
//		}
//	}
type Spinner struct {
	budget time.Duration
	most   int32 // loops that may spin at a time
	misses uint  // spins in a row that found nothing
	skip   uint  // times to sleep without spinning
	start  time.Time
	last   time.Duration
}

// New returns a spinner that looks for at most budget at a time; 0 or less means
// never.
func New(budget time.Duration) Spinner {
	return Spinner{budget: budget, most: int32(min(runtime.NumCPU(), runtime.GOMAXPROCS(0)) / 2)}
}

// Start reports whether the loop is to spin now. After true the loop calls Again
// until that returns false or a look finds work, which it reports by Paid.
func (s *Spinner) Start() bool {
	if s.budget <= 0 {
		return false
	}
	if s.skip > 0 {
		s.skip--
		return false
	}
	if spinning.Add(1) > s.most {
		spinning.Add(-1)
		return false
	}
	s.start, s.last = time.Now(), 0
	return true
}

// Again lets others run and reports whether to look once more. After false the
// spin is over.
func (s *Spinner) Again() bool {
	if s.last != 0 {
		yield()
	}
	now := time.Since(s.start)
	if now > s.budget || now-s.last > crowded {
		s.misses = min(s.misses+1, maximumMisses)
		s.skip = 1<<s.misses - 1
		spinning.Add(-1)
		return false
	}
	s.last = max(now, 1)
	return true
}

// Paid ends a spin that found work.
func (s *Spinner) Paid() {
	s.misses = 0
	spinning.Add(-1)
}
