package target

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
)

// idleBeat is how often an idle I/O connection looks after itself.
const idleBeat = time.Minute

// loop serves the connection until it ends.
func (c *conn) loop() {
	now := time.Now()
	c.nextBeat = now.Add(loginPatience)
	for !c.finished() {
		if c.look.Load() {
			c.look.Store(false)
			c.attend()
		}
		if c.turn() {
			continue
		}
		if c.spin() {
			continue
		}
		c.sleep()
	}
}

// attend does what a change in the session asks for.
func (c *conn) attend() {
	c.dropClosed()
	if c.parting && !c.leaving && c.session.alone() {
		c.depart()
	}
}

// finished reports whether the worker is to end.
func (c *conn) finished() bool {
	halt := c.halt.Load()
	switch {
	case c.failure != nil || halt == stopNow:
		return true
	case !c.carrier.Connected():
		if c.busy > 0 || !c.leaving && !c.parting {
			c.fail(errPeerLost)
		}
		return true
	case c.leaving:
		return c.busy == 0 && c.carrier.Idle()
	case halt == stopDrain:
		// The control connection outlives the others: it would take them along.
		return c.busy == 0 && c.carrier.Idle() && !c.parting &&
			(c.role != wire.RoleControl || c.session.alone())
	}
	return false
}

var errPeerLost = errors.New("the initiator is gone")

// turn does everything there is to do, in the order in which a request travels,
// and rings one doorbell. It reports whether there was anything.
func (c *conn) turn() bool {
	if c.turns++; c.turns%publishTurns == 0 {
		c.publish()
	}
	n := c.carrier.Poll(c.done[:])
	for i := range c.done[:n] {
		if c.failure != nil {
			break // nothing that came after a broken rule is looked at
		}
		c.completion(&c.done[i])
	}
	worked := n > 0
	for _, q := range c.queues {
		if q.active > 0 && c.reap(q) {
			worked = true
		}
	}
	if worked {
		c.retry()
		c.carrier.Doorbell()
	}
	return worked
}

// completion handles what the VI finished.
func (c *conn) completion(e *via.Completion) {
	switch {
	case e.Status.Failed():
		if e.Status&via.StatusFlushed == 0 {
			c.fail(fmt.Errorf("transfer failed: %v", e.Status))
		}
	case e.Recv:
		c.heard = true
		c.message(e)
	default:
		c.sent(c.carrier.Sent(e))
	}
}

// spin looks for work for a short time before a sleep, if that has paid lately.
func (c *conn) spin() bool {
	if !c.idle.Start(false) {
		return false
	}
	c.stats.Spins++
	for c.idle.Again() {
		if c.turn() {
			c.stats.SpinsPaid++
			c.idle.Paid()
			return true
		}
	}
	return false
}

// sleep waits for the VI, a backend, a stop, or the next beat.
func (c *conn) sleep() {
	c.publish()
	if c.holding > 0 {
		c.beatSoon()
	}
	wait := time.Until(c.nextBeat)
	if wait <= 0 {
		c.beat()
		return
	}
	if !c.carrier.Arm() {
		return
	}
	c.polls = append(c.polls[:0], unix.PollFd{Fd: int32(c.wake), Events: unix.POLLIN}, unix.PollFd{Fd: int32(c.carrier.FD()), Events: unix.POLLIN})
	for _, q := range c.queues {
		d, ok := q.queue.Arm()
		if !ok {
			return
		}
		if d >= 0 && d < wait {
			wait = d
		}
		if fd := q.queue.FD(); fd >= 0 {
			c.polls = append(c.polls, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		}
	}
	if c.look.Load() || c.halt.Load() != 0 && c.finished() {
		return
	}
	c.stats.Sleeps++
	timeout := unix.NsecToTimespec(int64(wait))
	if _, err := unix.Ppoll(c.polls, &timeout, nil); err != nil && !errors.Is(err, unix.EINTR) {
		c.fail(fmt.Errorf("wait for work: %w", err))
	}
	if c.polls[0].Revents != 0 {
		eventfd.Drain(c.wake)
	}
	for _, q := range c.queues {
		if q.active == 0 {
			q.queue.Reap(c.reaped[:]) // its turn; nothing is under way
		}
	}
}

// beat counts the peer's silence. A peer that is not logged in after the first
// beat, or whose control connection is silent for several, is dead. An I/O
// connection may be silent: its owner may have nothing to do for as long as it
// likes, and its life is the session's. But it does not keep others waiting.
func (c *conn) beat() {
	switch c.role {
	case 0:
		c.fail(errors.New("no login arrived in time"))
		return
	case wire.RoleIO:
		c.nextBeat = time.Now().Add(idleBeat)
		c.beatHolding()
		return
	}
	if c.heard {
		c.missed = 0
	} else {
		c.missed++
	}
	c.heard = false
	c.nextBeat = time.Now().Add(c.server.cfg.Heartbeat)
	if c.missed >= missedBeats {
		c.fail(fmt.Errorf("the initiator was silent for %d heartbeats of %v", c.missed, c.server.cfg.Heartbeat))
		return
	}
	if err := c.watchSizes(); err != nil {
		c.fail(fmt.Errorf("tell of a size: %w", err))
		return
	}
	c.carrier.Doorbell()
}
