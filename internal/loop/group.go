package loop

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// group is the loops among which tasks are placed and move.
type group struct {
	most  int // loops
	epoch time.Time

	loops  atomic.Pointer[[]*Loop] // nil: there are none yet
	rescue rescue

	mu sync.Mutex // of those who add loops
}

// process is the group of the process.
var process = newGroup(mostLoops())

// mostLoops is one for each processor, as long as goroutines without a loop
// have Ps as well.
func mostLoops() int { return min(runtime.NumCPU(), max(2, runtime.GOMAXPROCS(0)-2), maximumLoops) }

// maximumLoops bounds the loops of a process.
const maximumLoops = 64

func newGroup(most int) *group { return &group{most: most, epoch: time.Now()} }

// Drive has a loop drive a task, and returns when a visit says that the task is
// done. It returns an error if no loop can, or cannot any longer, for want of a
// descriptor or of the kernel's memory; no visit follows.
func Drive(t Task) error { return process.drive(t) }

// Open makes the first loop of the process, so that a later Drive needs no
// descriptor for it.
func Open() error {
	_, err := process.open()
	return err
}

func (g *group) drive(t Task) error {
	if _, err := g.open(); err != nil {
		return err
	}
	e := &entry{task: t, timer: -1, ended: make(chan error, 1), forgotten: make(chan struct{})}
	g.place(e)
	return <-e.ended
}

// now is the time since the group's epoch.
func (g *group) now() time.Duration { return time.Since(g.epoch) }

// open returns the loops, and makes the first one.
func (g *group) open() ([]*Loop, error) {
	if loops := g.loops.Load(); loops != nil {
		return *loops, nil
	}
	return g.grow()
}

// grow makes another loop, unless there are enough, and returns all. They stay:
// without tasks a loop is four descriptors. It returns an error if there is
// none.
func (g *group) grow() ([]*Loop, error) {
	l, err := newLoop(g)
	loops, added := g.add(l)
	if l != nil && !added {
		l.close()
	}
	if len(loops) > 0 {
		return loops, nil
	}
	return nil, err
}

// add adds a loop, which may be nil, unless there are enough.
func (g *group) add(l *Loop) (loops []*Loop, added bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.loops.Load(); p != nil {
		loops = *p
	}
	if l == nil || len(loops) == g.most {
		return loops, false
	}
	loops = append(slices.Clone(loops), l)
	g.loops.Store(&loops)
	return loops, true
}

// place gives a task to the loop that has the fewest, or to another one if all
// have some and there may be more.
func (g *group) place(e *entry) {
	loops := *g.loops.Load()
	if len(loops) < g.most && !slices.ContainsFunc(loops, func(l *Loop) bool { return l.load.Load() == 0 }) {
		loops, _ = g.grow()
	}
	place(loops, e)
}

// place gives a task to the loop that has the fewest.
func place(loops []*Loop, e *entry) {
	for {
		least, n := loops[0], loops[0].load.Load()
		for _, l := range loops[1:] {
			if load := l.load.Load(); load < n {
				least, n = l, load
			}
		}
		if least.load.CompareAndSwap(n, n+1) {
			least.add(e)
			return
		}
	}
}

// balancePeriod is how often a loop compares itself with the others.
const balancePeriod = 10 * time.Millisecond

// activity is how many tasks a loop visited in a period, and when that ended.
type activity int64

const activityBits = 16 // of the number

func newActivity(tasks int, now time.Duration) activity {
	return activity(int64(now/time.Microsecond)<<activityBits | int64(min(tasks, 1<<activityBits-1)))
}

// tasks returns the number, 0 if that is from a period long over.
func (a activity) tasks(now time.Duration) (n int, fresh bool) {
	if now-time.Duration(a>>activityBits)*time.Microsecond > 3*balancePeriod {
		return 0, false
	}
	return int(a & (1<<activityBits - 1)), true
}

// balance hands a task to another loop now and then, if that has at least two
// less to visit.
func (l *Loop) balance() {
	if l.now-l.periodStart < balancePeriod {
		return
	}
	tasks, period := l.periodTasks, l.period
	l.active.Store(int64(newActivity(tasks, l.now)))
	l.periodStart, l.periodTasks = l.now, 0
	l.period++
	l.unshareIdle()
	loops := *l.group.loops.Load()
	if tasks < 2 || len(loops) < 2 {
		return
	}
	least, n := l, tasks
	for _, other := range loops {
		active, fresh := activity(other.active.Load()).tasks(l.now)
		if other == l || !fresh && other.visits.Load()%2 == 1 { // a task blocks it
			continue
		}
		if active < n {
			least, n = other, active
		}
	}
	if tasks-n < 2 {
		return
	}
	for _, e := range l.entries {
		if e.period == period {
			l.move(e, least)
			return
		}
	}
}

// move hands a task to another loop. All that it waits for that is ready wakes
// it there.
func (l *Loop) move(e *entry, to *Loop) {
	if e.queued {
		e.queued = false
		for i, other := range l.ready {
			if other == e {
				l.ready = append(l.ready[:i], l.ready[i+1:]...)
				break
			}
		}
	}
	l.remove(e)
	l.load.Add(-1)
	to.load.Add(1)
	active, _ := activity(to.active.Load()).tasks(l.now)
	to.active.Store(int64(newActivity(active+1, l.now)))
	to.add(e)
}
