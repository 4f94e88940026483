package loop

import (
	"runtime"
	"sync/atomic"
	"time"
)

// The monitor of the Go runtime sleeps for 20 µs at a time, or for up to 10 ms
// if it finds nothing to do. It compares the scheduler's tick of each processor
// of the runtime (P) with the one that it saw 10 ms before. A loop that never
// passes through the scheduler leaves the tick as it is. So from its first 10
// ms on, the monitor takes the P from the loop in each of its system calls that
// it meets, falls asleep because all Ps are idle, and is woken by the end of
// the system call: two or more wake-ups of the monitor for each one of the
// loop. A loop that passes through the scheduler often enough is left alone.
const (
	// monitorPeriod is the longest sleep of the monitor, and how long a
	// goroutine runs before the monitor wants another one to.
	monitorPeriod = 10 * time.Millisecond

	// margin is how much earlier a loop passes through the scheduler.
	margin = 2 * time.Millisecond
)

// renewing counts the loops of this process that pass through the scheduler.
// Each keeps its P while it sleeps.
var renewing atomic.Int32

// offloads counts the batches of work for other goroutines.
var offloads atomic.Uint32

// Offload tells the loops that goroutines without a loop have work. They need
// Ps, and it is the monitor that takes these from sleeping loops: it has to be
// quick. So no loop passes through the scheduler because of its time slice
// before goroutines had no work for a while.
func Offload() { offloads.Add(1) }

// timeSlice is the time that the Go scheduler gives a loop. One goroutine uses
// it: before each sleep it asks due, and after true it calls yield. The zero
// timeSlice is ready.
type timeSlice struct {
	begun    time.Time
	last     time.Time // sleep
	offloads uint32
	active   bool // counted by renewing
}

// due reports whether the time slice would end in the next sleep, if that is as
// long as the last one, and begins another one. It is false
//
//   - of a loop that sleeps for long: the monitor takes its P, then sleeps;
//   - if other loops hold all other Ps but one, which is for goroutines
//     without a thread of their own;
//   - if goroutines had work of a loop meanwhile (Offload).
func (s *timeSlice) due(now time.Time) bool {
	passed := now.Sub(s.last)
	s.last = now
	if passed >= monitorPeriod {
		s.begun, s.offloads = now, offloads.Load()
		s.end()
		return false
	}
	if now.Sub(s.begun)+passed < monitorPeriod-margin {
		return false
	}
	s.begun = now
	offloaded := offloads.Load()
	if offloaded != s.offloads {
		s.offloads = offloaded
		s.end()
		return false
	}
	if s.active {
		return true
	}
	if int(renewing.Add(1)) >= runtime.GOMAXPROCS(0) {
		renewing.Add(-1)
		return false
	}
	s.active = true
	return true
}

// end ends the time slice of a loop that ends.
func (s *timeSlice) end() {
	if s.active {
		s.active = false
		renewing.Add(-1)
	}
}

// yield passes through the scheduler. The goroutine is locked to its thread,
// and may be locked to another one afterwards: the scheduler would hand its P
// to a second thread and back if the lock stayed.
func yield() {
	runtime.UnlockOSThread()
	runtime.Gosched()
	runtime.LockOSThread()
}
