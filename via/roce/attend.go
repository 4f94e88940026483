package roce

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
)

// How often an endpoint's goroutine looks whether lanes are attended: those whose
// consumers poll, and those whose consumers sleep and should wake by themselves.
const (
	lookEvery  = 4 * time.Millisecond
	glanceEach = 100 * time.Millisecond
)

// attention is what the goroutine knows of the lanes.
type attention struct {
	known   []care // by lane
	lookAt  time.Duration
	unheard bool // there may be more for the manager
}

// care is what it knows of a lane.
type care struct {
	polls    uint64 // of its consumers, at the last look
	seen     time.Duration
	attended bool // not by the goroutine
}

// routineAttend is the goroutine of an endpoint: its connection manager, and the
// consumer of lanes that have none.
func (e *endpoint) routineAttend() {
	defer close(e.ended)
	var events [16]unix.EpollEvent
	for {
		now := clock()
		if n, err := unix.EpollWait(e.epoll, events[:], timeout(e.nextAt(now)-now)); err != nil && !errors.Is(err, unix.EINTR) {
			time.Sleep(lookEvery) // it never happens; the lanes are looked at all the same
		} else {
			e.answer(events[:max(n, 0)])
		}
		now = clock()
		e.attention.unheard = !e.hear()
		e.attend(now)
		if e.over(now) {
			return
		}
	}
}

// answer takes what woke the goroutine.
func (e *endpoint) answer(events []unix.EpollEvent) {
	for i := range events {
		if int(events[i].Fd) == e.wake {
			eventfd.Drain(e.wake)
		}
	}
}

// timeout translates a wait to milliseconds, rounded up.
func timeout(d time.Duration) int {
	if d <= 0 {
		return 0
	}
	const most = time.Hour
	return int((min(d, most) + time.Millisecond - 1) / time.Millisecond)
}

// nextAt returns when the goroutine has to do something, packets aside.
func (e *endpoint) nextAt(now time.Duration) time.Duration {
	at := e.attention.lookAt
	if e.attention.unheard {
		at = now
	}
	e.mu.Lock()
	if d, ok := e.manager.Deadline(); ok {
		at = min(at, d)
	}
	e.wakesAt = at
	e.mu.Unlock()
	p := e.provider
	p.mu.Lock()
	if e.users == 0 {
		at = min(at, e.unusedAt+linger)
	}
	p.mu.Unlock()
	for i, c := range e.attention.known {
		if !c.attended {
			at = min(at, time.Duration((*e.lanes.Load())[i].due.Load()))
		}
	}
	return at
}

// attend looks at the lanes. One whose consumers neither polled since the last
// look nor sleep is the goroutine's until they poll again: packets and timers of
// its links wake it.
func (e *endpoint) attend(now time.Duration) {
	a := &e.attention
	lanes := *e.lanes.Load()
	for len(a.known) < len(lanes) {
		a.known = append(a.known, care{attended: true, seen: now})
		a.lookAt = now
	}
	look := now >= a.lookAt
	if look {
		a.lookAt = never
	}
	for i, l := range lanes {
		c := &a.known[i]
		if polls := l.polls.Load(); polls != c.polls {
			c.polls, c.seen = polls, now
			e.leaveTo(l, c)
		}
		if c.attended && look {
			e.glance(l, c, now)
		}
		if c.attended {
			continue
		}
		if !l.try() { // somebody is there, or was stopped there
			c.seen = now
			e.leaveTo(l, c)
			continue
		}
		l.pass(now, lookOut)
		if l.more {
			a.lookAt = now
		}
		l.give()
	}
}

// glance decides about a lane that its consumers attended so far.
func (e *endpoint) glance(l *lane, c *care, now time.Duration) {
	a := &e.attention
	asleep := l.sleepers.Load() > 0
	patience := lookEvery
	if asleep {
		patience = glanceEach
	}
	if now-c.seen < patience {
		a.lookAt = min(a.lookAt, c.seen+patience)
		return
	}
	if asleep && !readable(l.port.FD()) && time.Duration(l.due.Load()) > now-glanceEach {
		a.lookAt = min(a.lookAt, now+glanceEach)
		return
	}
	c.attended = false
	_ = watch(e.epoll, l.port.FD())
}

// leaveTo leaves a lane to its consumers, who are there again.
func (e *endpoint) leaveTo(l *lane, c *care) {
	a := &e.attention
	if !c.attended {
		c.attended = true
		unwatch(e.epoll, l.port.FD())
	}
	a.lookAt = min(a.lookAt, c.seen+lookEvery)
}

// readable reports whether a file descriptor is readable now.
func readable(fd int) bool {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds[:], 0)
	return n > 0 && err == nil
}
