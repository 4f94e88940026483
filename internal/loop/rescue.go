package loop

import (
	"sync/atomic"
	"time"
)

// A task that blocks must not stop the others of its loop. So while tasks do
// what may block, a goroutine looks at each loop now and then: one that is in
// the same visit as at the last look gets a new goroutine, which drives the
// other tasks. The goroutine in the visit learns of it at the end of the visit,
// and places its task anew.

const (
	// rescuePeriod is how often the goroutine looks.
	rescuePeriod = 20 * time.Millisecond

	// rescuePolls is how many looks follow the last announcement at least: a
	// call may block for long.
	rescuePolls = 50
)

// rescue is the goroutine that looks, and what it is told.
type rescue struct {
	announced atomic.Bool // since the last look
	running   atomic.Bool
}

// MayBlock announces that the caller, a task, does what may block. It costs
// next to nothing.
func MayBlock() { process.mayBlock() }

func (g *group) mayBlock() {
	r := &g.rescue
	if !r.announced.Load() {
		r.announced.Store(true)
	}
	if !r.running.Load() && r.running.CompareAndSwap(false, true) {
		go g.routineRescue()
	}
}

// routineRescue looks at the loops until no task has done anything that may
// block for a while and none is blocked, or there is no task.
func (g *group) routineRescue() {
	var last [maximumLoops]uint64
	for quiet := 0; quiet < rescuePolls; quiet++ {
		time.Sleep(rescuePeriod)
		if g.rescue.announced.Swap(false) {
			quiet = 0
		}
		loops := g.loops.Load()
		if loops == nil {
			break // the caller is a goroutine of its own
		}
		tasks := int32(0)
		for i, l := range *loops {
			tasks += l.load.Load()
			visit := l.visits.Load()
			if visit%2 == 1 && visit == last[i] {
				quiet = 0
				if l.load.Load() > 1 {
					l.overtake(visit)
				}
			}
			last[i] = visit
		}
		if tasks == 0 {
			break
		}
	}
	g.rescue.running.Store(false)
	if g.rescue.announced.Load() { // meanwhile
		g.mayBlock()
	}
}

// overtake gives the loop to another goroutine, without the task that is in a
// visit, unless that has ended.
func (l *Loop) overtake(visit uint64) {
	if !l.visits.CompareAndSwap(visit, visit+1) {
		return
	}
	e := l.current
	for _, other := range l.unvisited {
		other.queued = false
		l.push(other)
	}
	l.unvisited = nil
	l.remove(e)
	l.load.Add(-1)
	close(e.forgotten)
	go l.routineRun()
}

// resume goes on with a task whose visit ended on a goroutine that has lost its
// loop.
func (g *group) resume(e *entry, next Next) {
	<-e.forgotten
	e.forgotten = make(chan struct{})
	if next.Done {
		e.ended <- nil
		return
	}
	g.place(e)
}
