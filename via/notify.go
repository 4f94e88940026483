package via

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
)

// notification is an armed notification: a handler that is called once, of a
// work queue or of a completion queue.
type notification struct {
	queue func(vi *VI, d *Descriptor)
	entry func(vi *VI, recv bool)
}

// Notify calls handler once, for the next entry of the queue (VipCQNotify): at
// once if there is one. The entry is dequeued; the handler dequeues its
// descriptor with SendDone or RecvDone. Several may be armed; they are served
// in order.
//
// Handlers run one at a time and with no lock held, on the goroutine that found
// the entry or on the NIC's, which from now on drives the queue too. They may
// use what shares queues with the one notified: post, arm again, disconnect,
// destroy. They may not wait, nor close the NIC. Destroying the queue cancels
// them. Beyond a limit it is ErrResource.
func (c *CQ) Notify(handler func(vi *VI, recv bool)) error {
	if !c.made() {
		return noObject("notify")
	}
	if handler == nil {
		return fmt.Errorf("notify: no handler: %w", ErrInvalidParameter)
	}
	drv := c.acquire()
	defer drv.release()
	if c.ready == nil {
		return fmt.Errorf("notify: completion queue is destroyed: %w", ErrInvalidParameter)
	}
	return c.notify(drv, &c.notifications, notification{entry: handler})
}

// SendNotify calls handler once, with the next descriptor of the send queue
// that is complete, taken off the queue (VipSendNotify). The rules are those of
// [CQ.Notify]; the queue has no completion queue.
func (vi *VI) SendNotify(handler func(vi *VI, d *Descriptor)) error {
	if !vi.made() {
		return noObject("notify")
	}
	return vi.notify(&vi.send, handler)
}

// RecvNotify is SendNotify for the receive queue (VipRecvNotify).
func (vi *VI) RecvNotify(handler func(vi *VI, d *Descriptor)) error {
	if !vi.made() {
		return noObject("notify")
	}
	return vi.notify(&vi.recv, handler)
}

func (vi *VI) notify(q *workQueue, handler func(vi *VI, d *Descriptor)) error {
	if handler == nil {
		return fmt.Errorf("notify: no handler: %w", ErrInvalidParameter)
	}
	drv := vi.acquire()
	defer drv.release()
	switch {
	case vi.destroyed:
		return fmt.Errorf("notify: vi is destroyed: %w", ErrInvalidParameter)
	case !q.private:
		return fmt.Errorf("notify: the work queue has a completion queue: %w", ErrInvalidParameter)
	}
	return q.cq.notify(drv, &q.notifications, notification{queue: handler})
}

// notify arms a notification, and serves it if it is due. The caller owns the
// driver.
func (c *CQ) notify(drv *driver, list *[]notification, e notification) error {
	if err := c.nic.notify.begin(c.nic); err != nil {
		return fmt.Errorf("notify: %w: %w", ErrResource, err)
	}
	drv.share()
	*list = append(*list, e)
	c.deliverNotices()
	err := c.nic.notify.serve(c)
	if k := len(*list); err != nil && k > 0 {
		*list = (*list)[:k-1]
	}
	return err
}

// deliverNotices defers the handlers of due notifications until the driver is
// released.
func (c *CQ) deliverNotices() {
	drv := c.driver.Load()
	for len(c.notifications) > 0 && c.head != c.tail {
		if q := c.pop(); !q.emptied() {
			call := c.notifications[0].entry
			c.notifications = c.notifications[1:]
			drv.deferCall(func() { call(q.vi, q.recv) })
		}
	}
	for _, q := range c.queues {
		for q != nil && len(q.notifications) > 0 && !q.emptied() {
			call, d := q.notifications[0].queue, q.pop().desc
			q.notifications = q.notifications[1:]
			drv.deferCall(func() { call(q.vi, d) })
		}
	}
	c.wakeSleepers()
}

// waiting reports whether a notification or a sleeping goroutine waits for the
// queue.
func (c *CQ) waiting() bool {
	for _, q := range c.queues {
		if q != nil && len(q.notifications) > 0 {
			return true
		}
	}
	return len(c.notifications)+len(c.sleepers) > 0
}

// releaseDriver releases the driver after a poll of the queue, and watches the
// queue again if a notification or a sleeper waits for it.
func (c *CQ) releaseDriver(drv *driver) {
	if drv.shared {
		if err := c.nic.notify.serve(c); err != nil {
			c.raise(AsyncError{CQ: c, Code: AsyncCatastrophic, Cause: err})
		}
	}
	drv.release()
}

// notifier is the goroutine that drives queues with armed notifications while
// their consumers do not.
type notifier struct {
	start   sync.Once
	epoll   int // watches the file descriptors of armed queues, each once
	wake    int // ends the goroutine
	failure error
	ended   chan struct{} // nil if it never began

	mu sync.Mutex
	// +checklocks:mu
	armed map[int32]*CQ // by file descriptor
	// +checklocks:mu
	due []*CQ // to poll now
	// +checklocks:mu
	stopping bool
}

// serveRounds is how often a driver polls a queue that never runs empty before
// the NIC's goroutine takes over, and handlers run in between.
const serveRounds = 16

// begin starts the goroutine, once.
//
// The Once orders it before all other uses.
// +checklocksignore
func (r *notifier) begin(n *NIC) error {
	r.start.Do(func() {
		r.armed = make(map[int32]*CQ) // +checklocksfail
		if r.epoll, r.failure = unix.EpollCreate1(unix.EPOLL_CLOEXEC); r.failure != nil {
			return
		}
		if r.wake, r.failure = eventfd.New(); r.failure != nil {
			_ = unix.Close(r.epoll)
			return
		}
		e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(r.wake)}
		if r.failure = unix.EpollCtl(r.epoll, unix.EPOLL_CTL_ADD, r.wake, &e); r.failure != nil {
			_ = eventfd.Close(r.wake)
			_ = unix.Close(r.epoll)
			return
		}
		r.ended = make(chan struct{})
		go r.routineNotify(n)
	})
	return r.failure
}

// serve polls a queue's links until no notification or sleeper waits for the
// queue, or until the queue is empty, and then watches it. The caller owns its
// driver.
func (r *notifier) serve(c *CQ) error {
	for round := 0; c.waiting(); round++ {
		if c.adapter.Arm() {
			return r.watch(c)
		}
		if round == serveRounds {
			r.mu.Lock()
			r.due = append(r.due, c)
			r.mu.Unlock()
			eventfd.Ring(r.wake)
			return nil
		}
		c.progress(len(c.done), nil)
	}
	return nil
}

// watch makes the goroutine poll a queue when it is readable, once.
func (r *notifier) watch(c *CQ) error {
	fd := int32(c.adapter.FD())
	e := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: fd}
	r.mu.Lock()
	op := unix.EPOLL_CTL_MOD
	if r.armed[fd] == nil {
		op = unix.EPOLL_CTL_ADD
	}
	r.armed[fd] = c
	r.mu.Unlock()
	if err := unix.EpollCtl(r.epoll, op, int(fd), &e); err != nil {
		return fmt.Errorf("watch completion queue: %w: %w", ErrResource, err)
	}
	return nil
}

// forget cancels notifications and sleepers of a queue that is destroyed. The
// caller owns the queue's driver; its file descriptor is open.
func (r *notifier) forget(c *CQ, fd int32) {
	c.wakeSleepers()
	c.notifications, c.sleepers = nil, nil
	r.mu.Lock()
	known := r.armed[fd] == c
	delete(r.armed, fd)
	r.mu.Unlock()
	if known {
		_ = unix.EpollCtl(r.epoll, unix.EPOLL_CTL_DEL, int(fd), nil) // it is there
	}
}

// routineNotify is the NIC's goroutine: it drives queues with notifications or
// sleepers when they are readable.
func (r *notifier) routineNotify(n *NIC) {
	defer close(r.ended)
	var events [16]unix.EpollEvent
	for {
		k, err := unix.EpollWait(r.epoll, events[:], -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			n.raise(AsyncError{Code: AsyncCatastrophic, Cause: fmt.Errorf("wait for notifications: %w", err)})
			return
		}
		for _, e := range events[:max(k, 0)] {
			found, stop := r.readyQueues(e.Fd)
			if stop {
				return
			}
			for _, c := range found {
				drv := c.acquire()
				c.progress(len(c.done), nil)
				c.releaseDriver(drv)
			}
		}
	}
}

// readyQueues returns the queues that a readable file descriptor belongs to, or
// true when the goroutine stops.
func (r *notifier) readyQueues(fd int32) ([]*CQ, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if int(fd) != r.wake {
		if c := r.armed[fd]; c != nil {
			return []*CQ{c}, false
		}
		return nil, false
	}
	eventfd.Drain(r.wake)
	due := r.due
	r.due = nil
	return due, r.stopping
}

// stop ends the goroutine and waits for it. Handlers that run end first;
// nothing begins any more.
func (r *notifier) stop() error {
	r.start.Do(func() { r.failure = ErrInvalidParameter })
	if r.ended == nil {
		return nil
	}
	r.mu.Lock()
	r.stopping = true
	r.mu.Unlock()
	eventfd.Ring(r.wake)
	<-r.ended
	return errors.Join(eventfd.Close(r.wake), unix.Close(r.epoll))
}
