package loop

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/internal/sleepflag"
)

// Loop is a thread that drives tasks. One iteration:
//
//  1. admit    takes tasks that come from elsewhere
//  2. await    sleeps until a file is ready or a time has passed, unless tasks
//     are to be visited; see sharing.go for those that no file announces
//  3. collect  queues the tasks of files that are ready, and those whose time
//     has passed
//  4. visit    visits each of them once
//  5. balance  hands a task to a loop that has less to do
//
// Its goroutine runs while it has tasks. A goroutine that a task blocks loses
// the loop to another one, see rescue.go; so the goroutine owns what is in the
// loop in between visits, and nothing of it within one.
type Loop struct {
	group *group
	epoll int
	bell  int      // eventfd: other goroutines want something
	timer int      // timerfd: ends a rest
	gate  *os.File // between the runtime's poller and epoll; nil: there is none

	entries   []*entry
	current   *entry   // that is visited, or was last
	ready     []*entry // to be visited
	visited   []*entry // in the last iteration: the memory of the next list
	unvisited []*entry // of this iteration, in a visit
	timers    timers
	files     []*watched      // by descriptor
	sharing   []*entry        // whose sources go by flag
	flag      *sleepflag.Flag // nil: there is none
	events    [64]unix.EpollEvent
	slice     timeSlice
	sleeps    sleepTimes
	now       time.Duration // since the group's epoch
	polled    time.Duration // when the events were polled last
	streak    int           // visits of current in a row
	yields    uint64

	period      uint32        // counts balance periods
	periodStart time.Duration // of the present one
	periodTasks int           // tasks visited in it

	// visits is odd in a visit, and even in between. The goroutine that changes
	// it from an odd number to the next has the loop.
	visits atomic.Uint64

	// Any goroutine's.
	load   atomic.Int32 // tasks, with those that are on their way to it
	active atomic.Int64 // tasks visited in the latest period, and when it ended; see activity

	mu sync.Mutex
	// +checklocks:mu
	inbox []*entry // tasks on their way to the loop
	// +checklocks:mu
	running bool // there is a goroutine
}

// newLoop returns a loop without tasks.
func newLoop(g *group) (_ *Loop, err error) {
	l := &Loop{group: g, epoll: -1, bell: -1, timer: -1}
	defer func() {
		if err != nil {
			l.close()
			err = fmt.Errorf("create a loop: %w", err)
		}
	}()
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, err
	}
	if l.bell, err = eventfd.New(); err != nil {
		return nil, err
	}
	if l.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return nil, err
	}
	if err = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, l.bell, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(l.bell)}); err != nil {
		return nil, err
	}
	// Edge-triggered: it need not be drained.
	if err = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, l.timer, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(l.timer)}); err != nil {
		return nil, err
	}
	l.gate = newGate()
	l.flag = newFlag()
	return l, nil
}

// close closes the descriptors of a loop that never had a task.
func (l *Loop) close() {
	if l.gate != nil {
		_ = l.gate.Close()
	}
	if l.flag != nil {
		l.flag.Release()
	}
	for _, fd := range []int{l.bell, l.timer, l.epoll} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// add gives the loop a task. Its load counts it already.
func (l *Loop) add(e *entry) {
	l.mu.Lock()
	l.inbox = append(l.inbox, e)
	start := !l.running
	l.running = true
	l.mu.Unlock()
	if start {
		go l.routineRun()
	} else {
		eventfd.Ring(l.bell)
	}
}

// routineRun runs iterations until the loop has no tasks, or is another
// goroutine's.
func (l *Loop) routineRun() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	debug.SetPanicOnFault(true) // tasks contain faults in what they map
	for l.admit() && l.iterate() {
	}
}

// admit takes the tasks of the inbox. It returns false if the loop has none:
// then the goroutine ends.
func (l *Loop) admit() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.inbox {
		e.index, e.visited = len(l.entries), never
		l.entries = append(l.entries, e)
		l.push(e)
	}
	clear(l.inbox)
	l.inbox = l.inbox[:0]
	l.running = len(l.entries) > 0
	if !l.running {
		l.slice.end()
	}
	return l.running
}

// iterate is one iteration. It returns false if the loop is another
// goroutine's.
func (l *Loop) iterate() bool {
	l.collect(l.await())
	ready := l.ready
	l.ready, l.visited = l.visited[:0], ready
	for i, e := range ready {
		ready[i] = nil
		e.queued = false
		if !l.visit(e, ready[i+1:]) {
			return false
		}
	}
	l.balance()
	return true
}

// push queues a task to be visited.
func (l *Loop) push(e *entry) {
	if !e.queued {
		e.queued = true
		l.ready = append(l.ready, e)
	}
}

// pollPeriod is how long tasks that share may keep the loop from polling for
// events of others, beside their visits: most often there are none.
const pollPeriod = 50 * time.Microsecond

// await returns how many events there are, after a sleep if no task is to be
// visited.
func (l *Loop) await() int {
	again := len(l.ready) > 0
	l.pollSources()
	if again {
		return l.pollFiles()
	}
	now := time.Now()
	l.now = now.Sub(l.group.epoch)
	if l.slice.due(now) {
		yield()
		l.yields++
	}
	if len(l.ready) > 0 || !l.fallAsleep() {
		if l.now-l.polled < pollPeriod {
			return 0
		}
		return l.pollFiles()
	}
	wait := time.Duration(-1)
	if deadline, ok := l.timers.next(); ok {
		wait = max(deadline-l.now, 0)
	}
	n, rested := 0, false
	if l.sleeps.seldom(l.now) && wait != 0 {
		n, rested = l.rest(wait)
	}
	if !rested {
		n = awaitEvents(l.epoll, l.events[:], wait)
	}
	l.wakeUp()
	l.now = l.group.now()
	l.polled = l.now
	return n
}

// pollFiles returns how many events there are now.
func (l *Loop) pollFiles() int {
	n := pollEvents(l.epoll, l.events[:])
	l.now = l.group.now()
	l.polled = l.now
	return n
}

// collect queues the tasks of n events, and those whose time has passed.
func (l *Loop) collect(n int) {
	for i := range l.events[:n] {
		event := &l.events[i]
		if event.Fd == int32(l.bell) {
			eventfd.Drain(l.bell)
			continue
		}
		w := l.fileAt(event.Fd)
		if w == nil {
			continue
		}
		const gone = unix.EPOLLHUP | unix.EPOLLERR
		f := w.file
		f.Ready = f.Ready || event.Events&(unix.EPOLLIN|unix.EPOLLRDHUP|gone) != 0
		f.Writable = f.Writable || event.Events&(unix.EPOLLOUT|gone) != 0
		f.Closed = f.Closed || event.Events&(unix.EPOLLRDHUP|gone) != 0
		f.Gone = f.Gone || event.Events&gone != 0
		l.push(w.entry)
	}
	for len(l.timers) > 0 && l.timers[0].deadline <= l.now {
		e := l.timers[0]
		l.timers.unset(e)
		l.push(e)
	}
}

// aloneAfter is how many visits in a row one task gets before it counts as
// alone.
const aloneAfter = 8

// visit visits a task. The rest is to be visited after it: if another goroutine
// has the loop by then, that one does, and visit returns false.
func (l *Loop) visit(e *entry, rest []*entry) bool {
	if l.current != e {
		l.current, l.streak = e, 0
	}
	l.streak++
	if e.period != l.period {
		e.period = l.period
		l.periodTasks++
	}
	l.unshare(e)
	busy := l.now-e.visited <= busyTime
	e.visited = l.now
	round := Round{Alone: len(l.entries) == 1 || l.streak >= aloneAfter, Yielded: e.yields != l.yields}
	e.yields = l.yields
	l.unvisited = rest
	files := e.files // read before another goroutine may get the loop
	visit := l.visits.Add(1)
	next := e.task.Visit(round)
	for _, w := range files {
		w.file.clear()
	}
	if !l.visits.CompareAndSwap(visit, visit+1) {
		l.group.resume(e, next)
		return false
	}
	l.unvisited = nil
	var err error
	switch {
	case next.Done:
	case next.Again:
		l.push(e)
		return true
	default:
		if err = l.watch(e, next.Files); err == nil {
			l.setTimer(e, next.Wait)
			if busy {
				l.share(e, next.Source)
			}
			return true
		}
	}
	l.remove(e)
	l.load.Add(-1)
	e.ended <- err
	return true
}

// setTimer has the task visited after a time.
func (l *Loop) setTimer(e *entry, wait time.Duration) {
	if wait < 0 {
		l.timers.unset(e)
		return
	}
	now := l.group.now()
	l.timers.set(e, now+min(wait, math.MaxInt64-now))
}

// remove takes a task out of the loop.
func (l *Loop) remove(e *entry) {
	l.unshare(e)
	last := len(l.entries) - 1
	moved := l.entries[last]
	l.entries[e.index], moved.index = moved, e.index
	l.entries[last] = nil
	l.entries = l.entries[:last]
	l.timers.unset(e)
	for _, w := range e.files {
		l.unwatchFile(w)
	}
	e.files, e.period, e.yields = nil, 0, 0
	if l.current == e {
		l.current, l.streak = nil, 0
	}
}
