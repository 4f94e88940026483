package loop

import "github.com/viablk/viablk/internal/sleepflag"

// Tasks that are busy share the loop's sleep flag: while the loop runs, their
// peers make no system call for any of them, and the first that finds it
// asleep wakes it for all. So the loop polls the sources of these tasks itself,
// in each iteration and between setting its flag and the sleep. A task that is
// not busy does not share: a loop with many idle tasks would poll them for
// nothing.
//
// A source goes by the flag only while its task waits in this loop: a peer may
// ring over any of them, and nothing but the loop polls the others then.

const (
	// busyTime is how long ago the visit before the last may be for a task to
	// share.
	busyTime = balancePeriod

	never = -1 << 62 // when a new task was visited

	// mostSharing bounds the sources that the loop polls.
	mostSharing = 64
)

// newFlag returns a flag of the process, nil if there is none left.
func newFlag() *sleepflag.Flag {
	page, err := sleepflag.Process()
	if err != nil {
		return nil
	}
	flag, err := page.Acquire()
	if err != nil {
		return nil
	}
	return flag
}

// share has the source of a task, which was visited, go by the flag.
func (l *Loop) share(e *entry, source Source) {
	if source == nil || l.flag == nil || len(l.sharing) == mostSharing || !source.Share(l.flag.Index()) {
		return
	}
	e.source, e.sharing = source, len(l.sharing)
	l.sharing = append(l.sharing, e)
}

// unshare ends that: the task is about to be visited, by this loop or another
// one.
func (l *Loop) unshare(e *entry) {
	if e.source != nil {
		e.source.Disarm()
		l.removeSharing(e)
	}
}

func (l *Loop) removeSharing(e *entry) {
	last := len(l.sharing) - 1
	moved := l.sharing[last]
	l.sharing[e.sharing], moved.sharing = moved, e.sharing
	l.sharing[last] = nil
	l.sharing = l.sharing[:last]
	e.source = nil
}

// unshareIdle ends it for tasks that are not busy any more.
func (l *Loop) unshareIdle() {
	for i := len(l.sharing) - 1; i >= 0; i-- {
		e := l.sharing[i]
		if l.now-e.visited <= busyTime {
			continue
		}
		e.source.Share(-1)
		if e.source.Pending() {
			l.push(e)
		}
		l.removeSharing(e)
	}
}

// pollSources queues the tasks whose sources have something.
func (l *Loop) pollSources() {
	for _, e := range l.sharing {
		if !e.queued && e.source.Pending() {
			l.push(e)
		}
	}
}

// fallAsleep sets the flag. It returns false if a task is to be visited after
// all.
func (l *Loop) fallAsleep() bool {
	if len(l.sharing) == 0 {
		return true
	}
	l.flag.Sleep()
	l.pollSources()
	if len(l.ready) > 0 {
		l.flag.Wake()
		return false
	}
	return true
}

// wakeUp clears the flag. The next iteration polls the sources whose peers
// were silent because another one had rung.
func (l *Loop) wakeUp() {
	if len(l.sharing) > 0 {
		l.flag.Wake()
	}
}
