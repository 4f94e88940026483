package roce

import (
	"time"

	"golang.org/x/sys/unix"
)

// How often an endpoint's goroutine looks whether lanes are attended: those whose
// consumers poll, and those whose consumers sleep and should wake by themselves.
// A lane that is polled at every look is looked at less often.
const (
	lookEvery  = 4 * time.Millisecond
	lookRarely = 4 * lookEvery
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
	patience time.Duration // after which consumers that do not poll are taken for absent
	attended bool          // not by the goroutine
}

// routineAttend is the goroutine of an endpoint: its connection manager, and the
// consumer of lanes that have none.
func (e *endpoint) routineAttend() {
	defer close(e.ended)
	for {
		now := clock()
		if !e.waiting.until(e.nextAt(now) - now) {
			time.Sleep(lookEvery) // it never happens; the lanes are looked at all the same
		}
		now = clock()
		e.attention.unheard = !e.hear()
		e.attend(now)
		if e.over(now) {
			return
		}
	}
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
		a.known = append(a.known, care{attended: true, seen: now, patience: lookEvery})
		a.lookAt = now
	}
	look := now >= a.lookAt
	if look {
		a.lookAt = never
	}
	for i, l := range lanes {
		c := &a.known[i]
		if polls := l.polls.Load(); polls != c.polls {
			if now-c.seen >= c.patience {
				c.patience = min(2*c.patience, lookRarely)
			}
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
	patience := c.patience
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
	c.attended, c.patience = false, lookEvery
	_ = watch(e.waiting.epoll, l.port.FD())
}

// leaveTo leaves a lane to its consumers, who are there again.
func (e *endpoint) leaveTo(l *lane, c *care) {
	a := &e.attention
	if !c.attended {
		c.attended = true
		unwatch(e.waiting.epoll, l.port.FD())
	}
	a.lookAt = min(a.lookAt, c.seen+c.patience)
}

// readable reports whether a file descriptor is readable now.
func readable(fd int) bool {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds[:], 0)
	return n > 0 && err == nil
}
