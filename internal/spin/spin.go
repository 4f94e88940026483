// Package spin decides how long a loop busy-polls before it sleeps: the loop of
// an NBD connection, of a worker of the target, of an end of a benchmark. Each
// loop owns a [Spinner]; all of the process share a count of those that spin.
//
// To be awake when the next request comes saves a wake-up, the most expensive
// part of a small request. But a loop that spins may hold the processor that
// its own peer needs. So a loop spins only while at most half the processors
// do, lets others run between its looks, and after spins that found nothing it
// sleeps at once for exponentially more times before it tries again; they take
// a tenth of its time at most. And it measures whether its clients gain by
// spins (gain.go): if not, it does not spin.
package spin

import (
	"runtime"
	"sync/atomic"
	"time"
)

// Limits of a spinner's caution.
const (
	maximumMisses = 8 // skips at most 2^8-1 times
	maximumGap    = 20 * time.Microsecond

	missShare = 10 // spins that find nothing take one part of so many of a loop's time
	missBurst = 8  // budgets that they may take at once, after a time without any
)

// spinning counts the loops of this process that spin now.
var spinning atomic.Int32

// Loops have numbers; latest is that of the loop that ran out of work last.
var loops, latestIdle atomic.Uint32

// Spinner is the memory of one loop. One goroutine uses it:
//
//	if s.Start(false, served) {
//		for s.Continue() {
//			if poll() {
//				s.Hit()
//				break
//			}
//		}
//	}
type Spinner struct {
	budget          time.Duration
	maximumGap      time.Duration // a poll that takes longer shared the processor
	brief           bool          // the present spin is
	maximumSpinning int32         // loops that may spin at a time
	misses          uint          // spins in a row that found nothing
	skip            uint          // times to sleep without spinning
	allowance       time.Duration // for spins that find nothing
	spent           time.Duration // in spins
	gain            gain
	epoch, start    time.Time
	idle            time.Time // the latest moment when it might spin
	last            time.Duration
	id              uint32
}

// New returns a spinner that looks for at most budget at a time; 0 or less
// means never.
func New(budget time.Duration) Spinner {
	most := int32(min(runtime.NumCPU(), runtime.GOMAXPROCS(0)) / 2)
	now := time.Now()
	return Spinner{
		id: loops.Add(1), budget: budget, maximumGap: maximumGap, maximumSpinning: most,
		gain: newGain(gainLimit * budget), epoch: now, idle: now, allowance: missBurst * budget,
	}
}

// briefDivisor is how much shorter a brief spin is.
const briefDivisor = 4

// gainLimit is how many budgets count for a request at most, see gain.
const gainLimit = 2

// Start reports whether the loop, which has served so many requests since its
// beginning, is to spin now. After true the loop calls Continue until that
// returns false or a poll finds work, which it reports by Hit.
//
// The spin is brief if the loop is amidst work, that is, waits for the rest of
// something long: that comes soon, and looks disturb who brings it. And it is
// brief if another loop ran out of work since this one did: there are several
// at work, and threads enough for the processors.
func (s *Spinner) Start(partial bool, served uint64) bool {
	if s.budget <= 0 {
		return false
	}
	others := latestIdle.Swap(s.id) != s.id
	now := time.Now()
	if !s.gain.polls(now.Sub(s.epoch), served) {
		return false
	}
	if most := missBurst * s.budget; s.allowance < most {
		s.allowance = min(s.allowance+now.Sub(s.idle)/missShare, most)
	}
	s.idle = now
	if s.skip > 0 {
		s.skip--
		return false
	}
	if s.allowance < 0 {
		return false
	}
	if spinning.Add(1) > s.maximumSpinning {
		spinning.Add(-1)
		return false
	}
	s.start, s.last, s.brief = now, 0, partial || others
	return true
}

// Continue lets others run and reports whether to look once more. After false
// the spin is over.
func (s *Spinner) Continue() bool {
	if s.last != 0 {
		yield()
	}
	now, budget := time.Since(s.start), s.budget
	if s.brief {
		budget /= briefDivisor
	}
	if now > budget || now-s.last > s.maximumGap {
		s.allowance -= now
		s.spent += now
		s.misses = min(s.misses+1, maximumMisses)
		s.skip = 1<<s.misses - 1
		spinning.Add(-1)
		return false
	}
	s.last = max(now, 1)
	return true
}

// Latest returns when Continue returned true for the last time.
func (s *Spinner) Latest() time.Time { return s.start.Add(s.last) }

// Spent returns how long all spins cost.
func (s *Spinner) Spent() time.Duration { return s.spent }

// Hit ends a spin that found work.
func (s *Spinner) Hit() {
	s.spent += s.last
	s.misses = 0
	spinning.Add(-1)
}
