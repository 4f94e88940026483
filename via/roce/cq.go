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

// cq is a completion queue: its bindings to shards, each with the links that
// have completions. The consumer uses it from one goroutine:
//
//  1. Poll acquires each shard and runs a pass, which lists links (engine.go)
//  2. report takes their completions, up to a quantum of each link
//     (completion.go); the works are the consumer's again
//  3. Arm runs a last pass of each shard; if that finds nothing to do, it
//     requests a wake-up
//  4. the consumer sleeps on an epoll file descriptor that watches the shards'
//     sockets, an eventfd, and a timer for the queue pairs
//  5. the next Poll withdraws the request, drains the eventfd, and stops the
//     timer
type cq struct {
	fd       int // epoll
	wakeFD   int // eventfd
	timerFD  int // timerfd
	bindings []*cqBinding
	next     int  // binding polled first by the next Poll
	armed    bool // and not polled since Arm
	signaled atomic.Bool
	timerAt  time.Duration // expiry of the timer
}

// cqBinding binds a completion queue to a shard: the links of the shard that
// report to the queue.
type cqBinding struct {
	cq      *cq
	shard   *shard
	members []*link // bound links; the consumer's

	reports reports // of the owner of the shard
}

// reports are what a shard has to report to a completion queue. Only the owner
// of the shard accesses them.
type reports struct {
	ready         bindingList
	wakeRequested bool // the consumer sleeps and waits for a wake-up
}

func newCQ() (*cq, error) {
	c := &cq{fd: -1, wakeFD: -1, timerFD: -1, timerAt: never}
	var err error
	if c.fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("create epoll: %w: %w", via.ErrResource, err)
	}
	c.wakeFD, err = eventfd.New()
	if err == nil {
		c.timerFD, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	}
	if err == nil {
		err = errors.Join(watch(c.fd, c.wakeFD), watch(c.fd, c.timerFD))
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

// unwatch removes a file descriptor from the epoll set.
func unwatch(epoll, fd int) { _ = unix.EpollCtl(epoll, unix.EPOLL_CTL_DEL, fd, nil) }

// Close closes the queue, to which no link is bound.
func (c *cq) Close() error {
	var errs []error
	for _, fd := range []int{c.fd, c.wakeFD, c.timerFD} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}

// Resize changes nothing: completions wait in the queue pairs.
func (c *cq) Resize(int) error { return nil }

// FD returns the epoll file descriptor.
func (c *cq) FD() int { return c.fd }

// Poll runs a pass of each shard and reports completions.
func (c *cq) Poll(dst []via.Done) int {
	now := clock()
	if c.armed {
		c.disarm(now)
	}
	n := 0
	for i := range c.bindings {
		n += c.bindings[(c.next+i)%len(c.bindings)].poll(now, dst[n:])
	}
	c.next++
	return n
}

// poll runs a pass of the shard and stores completions.
func (b *cqBinding) poll(now time.Duration, dst []via.Done) (n int) {
	b.shard.activity.consumerPolls.Add(1)
	g := b.shard.acquireWithin(pollTries)
	if g == nil {
		return b.reportFailure(dst)
	}
	defer g.contain()
	b.cancelWakeup()
	g.pass(now, receiveReady)
	n = b.report(dst)
	g.release()
	return n
}

// report stores completions of the listed links.
func (b *cqBinding) report(dst []via.Done) int {
	n := 0
	for n < len(dst) && b.reports.ready.first != nil {
		n += b.reports.ready.pop().report(dst[n:])
	}
	return n
}

// Attempts of Poll and Arm to acquire a shard that another goroutine owns; they
// yield in between.
const (
	pollTries = 10
	armTries  = 50
)

// Arm requests a wake-up. It returns false if a pass of a shard finds
// completions or work to do.
func (c *cq) Arm() bool {
	c.armed = true
	due := never
	for _, b := range c.bindings {
		b.shard.activity.consumerPolls.Add(1)
		g := b.shard.acquireWithin(armTries)
		if g == nil && (b.shard.failed() == nil || b.hasFailure()) {
			return false
		} else if g == nil {
			continue
		}
		at, ok := b.requestWakeup(g)
		if !ok {
			return false
		}
		due = min(due, at)
	}
	return c.setTimer(due)
}

// requestWakeup runs a pass, requests a wake-up if the shard is idle after it,
// and releases the shard. It returns the earliest deadline of a queue pair.
func (b *cqBinding) requestWakeup(g *engine) (due time.Duration, ok bool) {
	defer g.contain()
	b.cancelWakeup()
	g.pass(clock(), receiveUntilEmpty)
	if ok = b.reports.ready.first == nil && !g.more; ok {
		b.reports.wakeRequested = true
		b.shard.activity.sleepers.Add(1)
	}
	due = time.Duration(b.shard.activity.due.Load())
	g.release()
	return due, ok
}

// cancelWakeup withdraws the request for a wake-up.
func (b *cqBinding) cancelWakeup() {
	if b.reports.wakeRequested {
		b.reports.wakeRequested = false
		b.shard.activity.sleepers.Add(-1)
	}
}

// wake wakes the consumer.
func (b *cqBinding) wake() {
	b.cancelWakeup()
	eventfd.Ring(b.cq.wakeFD)
	b.cq.signaled.Store(true) // after Ring: a Poll that misses it leaves the drain to the next
}

// setTimer makes the file descriptor readable at due. It keeps a timer that
// expires earlier.
func (c *cq) setTimer(due time.Duration) bool {
	if due >= c.timerAt {
		return true
	}
	left := max(due-clock(), 1)
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(left.Nanoseconds())}
	if err := unix.TimerfdSettime(c.timerFD, 0, &spec, nil); err != nil {
		return false
	}
	c.timerAt = due
	return true
}

// disarm drains the eventfd and stops the timer that made the file descriptor
// readable. A timer that is due may expire a little later.
func (c *cq) disarm(now time.Duration) {
	c.armed = false
	if c.signaled.Load() {
		c.signaled.Store(false)
		eventfd.Drain(c.wakeFD)
	}
	if c.timerAt <= now {
		_ = unix.TimerfdSettime(c.timerFD, 0, new(unix.ItimerSpec), nil)
		c.timerAt = never
	}
}

// bound are the bindings of a link: of its sends, and of its receives unless
// they complete to the same queue.
type bound [2]*cqBinding

// bind binds the completion queues of a link to its shard.
func (b *bound) bind(l *link) {
	send, recv := l.cfg.SendCQ.(*cq), l.cfg.RecvCQ.(*cq)
	b[0] = send.bind(l)
	if send != recv {
		b[1] = recv.bind(l)
	}
}

// reports reports whether the link reports its end to a binding.
func (b *bound) reports(to *cqBinding) bool { return b[1] == to || b[1] == nil && b[0] == to }

// bind returns the queue's binding to the shard of one more link.
func (c *cq) bind(l *link) *cqBinding {
	i := slices.IndexFunc(c.bindings, func(b *cqBinding) bool { return b.shard == l.shard })
	if i < 0 {
		i = len(c.bindings)
		c.bindings = append(c.bindings, &cqBinding{cq: c, shard: l.shard})
	}
	c.bindings[i].members = append(c.bindings[i].members, l)
	return c.bindings[i]
}

// attach has a link report to its bindings, and adds these to the shard. A
// consumer that already sleeps has not requested a wake-up from this shard, so
// it is woken.
func (g *engine) attach(t *transport, to *bound) {
	for i, b := range to {
		if b == nil {
			continue
		}
		t.completions.bindings[i] = linkBinding{transport: t, binding: b, sends: i == 0, receives: i == 1 || to[1] == nil}
		if slices.Contains(g.bindings, b) {
			continue
		}
		g.bindings = append(g.bindings, b)
		_ = watch(b.cq.fd, g.port.FD())
		b.reports.wakeRequested = true
		b.shard.activity.sleepers.Add(1)
		b.wake()
	}
}

// unlistReports unlists the link's completions.
func (t *transport) unlistReports() {
	for i := range t.completions.bindings {
		if s := &t.completions.bindings[i]; s.transport != nil {
			s.binding.reports.ready.remove(s)
		}
	}
}

// unbind removes the bindings after the link has left its shard. The consumer
// stops polling a shard without links of its own.
func (b *bound) unbind(l *link) {
	for i, x := range b {
		if x == nil {
			continue
		}
		b[i] = nil
		x.members = slices.DeleteFunc(x.members, func(y *link) bool { return y == l })
		if len(x.members) == 0 {
			_ = x.shard.asOwner(func(g *engine) { g.detach(x) }) // a failed one has done so
			x.cq.bindings = slices.DeleteFunc(x.cq.bindings, func(y *cqBinding) bool { return y == x })
		}
		if len(x.cq.bindings) == 0 {
			x.cq.disarm(never) // its consumer may sleep without another Poll
		}
	}
}

// detach removes a binding from the shard.
func (g *engine) detach(b *cqBinding) {
	b.cancelWakeup()
	g.bindings = slices.DeleteFunc(g.bindings, func(x *cqBinding) bool { return x == b })
	unwatch(b.cq.fd, g.port.FD())
}
