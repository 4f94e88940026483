package roce

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/via"
)

// cq is a completion queue: berths at lanes. Its owner sleeps on an epoll file
// descriptor that watches the lanes, an eventfd, and a timer for the queue pairs.
type cq struct {
	fd       int // epoll
	wake     int // eventfd
	timer    int // timerfd
	berths   []*berth
	next     int  // berth that comes first in the next poll
	armed    bool // and not polled since
	signaled atomic.Bool
	timerAt  time.Duration // when the timer runs out or ran out
}

// berth is a completion queue's place at a lane: the links of that lane that
// report to the queue.
type berth struct {
	cq    *cq
	lane  *lane
	links int // that are bound; of the consumer

	// Of who has the turn of the lane.
	ready  seatList
	asleep bool // the consumer is to be woken
}

func newCQ() (*cq, error) {
	c := &cq{fd: -1, wake: -1, timer: -1, timerAt: never}
	var err error
	if c.fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("create epoll: %w: %w", via.ErrResource, err)
	}
	c.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		c.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	}
	if err == nil {
		err = errors.Join(watch(c.fd, c.wake), watch(c.fd, c.timer))
	}
	if err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("create completion queue: %w: %w", via.ErrResource, err)
	}
	return c, nil
}

// watch makes an epoll file descriptor readable while another one is.
func watch(epoll, fd int) error {
	e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &e); err != nil {
		return fmt.Errorf("watch a file descriptor: %w", err)
	}
	return nil
}

// unwatch undoes watch.
func unwatch(epoll, fd int) { _ = unix.EpollCtl(epoll, unix.EPOLL_CTL_DEL, fd, nil) }

// Close closes the queue. No link is bound to it.
func (c *cq) Close() error {
	var errs []error
	for _, fd := range []int{c.fd, c.wake, c.timer} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}

// Resize changes nothing: what has ended waits in the queue pairs.
func (c *cq) Resize(int) error { return nil }

// FD returns the epoll file descriptor.
func (c *cq) FD() int { return c.fd }

// Poll takes a turn of each lane and reports what has ended.
func (c *cq) Poll(dst []via.Done) int {
	now := clock()
	if c.armed {
		c.disarm(now)
	}
	n := 0
	for i := range c.berths {
		b := c.berths[(c.next+i)%len(c.berths)]
		b.lane.polls.Add(1)
		if !b.lane.tryHard(pollTries) {
			continue
		}
		b.stir()
		b.lane.pass(now, lookIn)
		n += b.report(dst[n:])
		b.lane.give()
	}
	c.next++
	return n
}

// report stores what the links have to report.
func (b *berth) report(dst []via.Done) int {
	n := 0
	for n < len(dst) && b.ready.first != nil {
		n += b.ready.pop().report(dst[n:])
	}
	return n
}

// How often Poll and Arm ask for a turn that somebody has, and let that run in
// between.
const (
	pollTries = 10
	armTries  = 50
)

// Arm asks to be woken. A turn of each lane has shown that there is nothing now.
func (c *cq) Arm() bool {
	c.armed = true
	due := never
	for _, b := range c.berths {
		b.lane.polls.Add(1)
		if !b.lane.tryHard(armTries) {
			return false
		}
		ok := b.sleep()
		due = min(due, time.Duration(b.lane.due.Load()))
		b.lane.give()
		if !ok {
			return false
		}
	}
	return c.setTimer(due)
}

// sleep takes a turn, and asks to be woken if there is nothing to do then.
func (b *berth) sleep() bool {
	b.stir()
	b.lane.pass(clock(), lookOut)
	if b.ready.first != nil || b.lane.more {
		return false
	}
	b.asleep = true
	b.lane.sleepers.Add(1)
	return true
}

// stir takes back the wish to be woken.
func (b *berth) stir() {
	if b.asleep {
		b.asleep = false
		b.lane.sleepers.Add(-1)
	}
}

// rouse wakes the consumer.
func (b *berth) rouse() {
	b.stir()
	eventfd.Ring(b.cq.wake)
	b.cq.signaled.Store(true) // behind it: a poll that does not see it yet leaves it to the next
}

// setTimer makes the file descriptor readable at a time. One that runs out
// earlier is left alone.
func (c *cq) setTimer(due time.Duration) bool {
	if due >= c.timerAt {
		return true
	}
	left := max(due-clock(), 1)
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(left.Nanoseconds())}
	if err := unix.TimerfdSettime(c.timer, 0, &spec, nil); err != nil {
		return false
	}
	c.timerAt = due
	return true
}

// disarm takes what made the file descriptor readable.
func (c *cq) disarm(now time.Duration) {
	c.armed = false
	if c.signaled.Load() {
		c.signaled.Store(false)
		eventfd.Drain(c.wake)
	}
	if c.timerAt <= now {
		eventfd.Drain(c.timer)
		c.timerAt = never
	}
}

// bind makes the completion queues of a link poll its lane.
func (l *link) bind() {
	send, recv := l.cfg.SendCQ.(*cq), l.cfg.RecvCQ.(*cq)
	if send == recv {
		l.seats[0] = seat{link: l, berth: recv.berth(l.lane), sends: true, receives: true}
		return
	}
	l.seats[0] = seat{link: l, berth: send.berth(l.lane), sends: true}
	l.seats[1] = seat{link: l, berth: recv.berth(l.lane), receives: true}
}

// berth returns the queue's berth at a lane, for one link more.
func (c *cq) berth(l *lane) *berth {
	i := slices.IndexFunc(c.berths, func(b *berth) bool { return b.lane == l })
	if i < 0 {
		i = len(c.berths)
		c.berths = append(c.berths, &berth{cq: c, lane: l})
	}
	c.berths[i].links++
	return c.berths[i]
}

// seat makes the lane know the link's berths. A consumer that sleeps did not ask
// this lane to wake it.
func (l *link) seat() {
	for i := range l.seats {
		b := l.seats[i].berth
		if b == nil || slices.Contains(l.lane.berths, b) {
			continue
		}
		l.lane.berths = append(l.lane.berths, b)
		_ = watch(b.cq.fd, l.lane.port.FD())
		b.asleep = true
		l.lane.sleepers.Add(1)
		b.rouse()
	}
}

// unseat takes back what the link has to report.
func (l *link) unseat() {
	for i := range l.seats {
		if s := &l.seats[i]; s.link != nil {
			s.berth.ready.remove(s)
		}
	}
}

// unbind undoes bind, after the link has left its lane. The consumer polls a lane
// no more that has none of its links.
func (l *link) unbind() {
	for i := range l.seats {
		b := l.seats[i].berth
		if b == nil {
			continue
		}
		l.seats[i] = seat{}
		if b.links--; b.links > 0 {
			continue
		}
		b.lane.take()
		b.stir()
		b.lane.berths = slices.DeleteFunc(b.lane.berths, func(x *berth) bool { return x == b })
		unwatch(b.cq.fd, b.lane.port.FD())
		b.lane.give()
		b.cq.berths = slices.DeleteFunc(b.cq.berths, func(x *berth) bool { return x == b })
	}
}
