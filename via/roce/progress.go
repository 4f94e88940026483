package roce

import (
	"time"

	"golang.org/x/sys/unix"
)

// Intervals at which an endpoint's goroutine checks that consumers poll their
// shards, or that sleeping consumers wake up. The interval of a shard grows
// while its consumers poll.
const (
	checkInterval      = 4 * time.Millisecond
	maxCheckInterval   = 4 * checkInterval
	sleepCheckInterval = 100 * time.Millisecond
)

// progressState is the goroutine's state of the shards.
type progressState struct {
	shards   []shardState // by index
	checkAt  time.Duration
	madsLeft bool // the last receiveMADs stopped early
}

// shardState is the goroutine's state of one shard.
type shardState struct {
	consumerPolls uint64 // activity.consumerPolls at the last check
	lastPoll      time.Duration
	timeout       time.Duration // consumers that have not polled for so long are inactive
	attended      bool          // consumers drive the shard, not the goroutine
}

// routineProgress is the goroutine of an endpoint: it drives the connection
// manager, and the shards whose consumers are inactive.
func (e *endpoint) routineProgress() {
	defer close(e.ended)
	defer e.portChecks.end()
	for !e.round() {
	}
}

// round waits for an event and handles it. It returns true at the end of the
// endpoint.
func (e *endpoint) round() (ended bool) {
	defer e.containRound()
	now := clock()
	if !e.poller.wait(e.nextAt(now) - now) {
		time.Sleep(checkInterval) // not expected; the shards are checked nevertheless
	}
	now = clock()
	e.progress.madsLeft = !e.receiveMADs()
	e.progressShards(now)
	return e.closeUnused(now)
}

// nextAt returns the goroutine's next deadline.
func (e *endpoint) nextAt(now time.Duration) time.Duration {
	at := e.progress.checkAt
	if e.progress.madsLeft {
		at = now
	}
	at = e.setWakeAt(at)
	p := e.provider
	p.mu.Lock()
	if e.users == 0 {
		at = min(at, e.unusedAt+disconnectTimeout)
	}
	p.mu.Unlock()
	for i, c := range e.progress.shards {
		if !c.attended {
			at = min(at, time.Duration((*e.shards.Load())[i].activity.due.Load()))
		}
	}
	return at
}

// setWakeAt sets the goroutine's deadline for the manager's timers.
func (e *endpoint) setWakeAt(at time.Duration) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.containManager()
	if d, ok := e.manager.Deadline(); ok {
		at = min(at, d)
	}
	e.wakeAt = at
	return at
}

// progressShards checks the shards. The goroutine drives a shard whose
// consumers neither polled since the last check nor sleep, until they poll
// again: packets and timers of its links wake the goroutine.
func (e *endpoint) progressShards(now time.Duration) {
	a := &e.progress
	shards := *e.shards.Load()
	for len(a.shards) < len(shards) {
		a.shards = append(a.shards, shardState{attended: true, lastPoll: now, timeout: checkInterval})
		a.checkAt = now
	}
	checkDue := now >= a.checkAt
	if checkDue {
		a.checkAt = never
	}
	for i, s := range shards {
		c := &a.shards[i]
		if polls := s.activity.consumerPolls.Load(); polls != c.consumerPolls {
			if now-c.lastPoll >= c.timeout {
				c.timeout = min(2*c.timeout, maxCheckInterval)
			}
			c.consumerPolls, c.lastPoll = polls, now
			e.handBack(s, c)
		}
		if c.attended && checkDue {
			e.maybeTakeOver(s, c, now)
		}
		if c.attended {
			continue
		}
		if !e.runPass(s, now) {
			c.lastPoll = now
			e.handBack(s, c)
		}
	}
}

// runPass runs a pass of a shard. It returns false if a consumer owns the
// shard, perhaps one that is suspended, or if the shard has failed.
func (e *endpoint) runPass(s *shard, now time.Duration) bool {
	g := s.tryAcquire()
	if g == nil {
		return false
	}
	defer g.contain()
	g.pass(now, receiveUntilEmpty)
	if g.more {
		e.progress.checkAt = now
	}
	g.release()
	return true
}

// maybeTakeOver takes over a shard whose consumers have become inactive.
func (e *endpoint) maybeTakeOver(s *shard, c *shardState, now time.Duration) {
	a := &e.progress
	asleep := s.activity.sleepers.Load() > 0
	timeout := c.timeout
	if asleep {
		timeout = sleepCheckInterval
	}
	if now-c.lastPoll < timeout {
		a.checkAt = min(a.checkAt, c.lastPoll+timeout)
		return
	}
	if asleep && !readable(s.port.FD()) && time.Duration(s.activity.due.Load()) > now-sleepCheckInterval {
		a.checkAt = min(a.checkAt, now+sleepCheckInterval)
		return
	}
	c.attended, c.timeout = false, checkInterval
	_ = watch(e.poller.epoll, s.port.FD())
}

// handBack returns a shard to its consumers, which poll again.
func (e *endpoint) handBack(s *shard, c *shardState) {
	a := &e.progress
	if !c.attended {
		c.attended = true
		unwatch(e.poller.epoll, s.port.FD())
	}
	a.checkAt = min(a.checkAt, c.lastPoll+c.timeout)
}

// readable reports whether a file descriptor is readable now.
func readable(fd int) bool {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds[:], 0)
		if err != unix.EINTR {
			return n > 0 && err == nil
		}
	}
}
