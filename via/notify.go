package via

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// notice is an armed notification: a handler that is called once, of a work
// queue or of a completion queue.
type notice struct {
	queue func(vi *VI, d *Descriptor)
	entry func(vi *VI, recv bool)
}

// Notify calls handler once, for the next entry of the queue (VipCQNotify): at
// once if there is one. The entry is taken; its descriptor is still to be taken
// with SendDone or RecvDone. Several may be armed; they are served in order.
//
// Handlers run one at a time and with no lock held, on the goroutine that found
// the entry or on the NIC's, which from now on drives the queue too. They may use
// what shares queues with the one notified: post, arm again, disconnect, destroy.
// They may not wait, nor close the NIC. Destroying the queue cancels them.
func (c *CQ) Notify(handler func(vi *VI, recv bool)) error {
	if !c.made() {
		return noObject("notify")
	}
	if handler == nil {
		return fmt.Errorf("notify: no handler: %w", ErrInvalidParameter)
	}
	t := c.enter()
	defer t.leave()
	if c.ready == nil {
		return fmt.Errorf("notify: completion queue is destroyed: %w", ErrInvalidParameter)
	}
	return c.notify(t, &c.notices, notice{entry: handler})
}

// SendNotify calls handler once, with the next descriptor of the send queue that
// is complete, taken off the queue (VipSendNotify). The rules are those of
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
	t := vi.enter()
	defer t.leave()
	switch {
	case vi.destroyed:
		return fmt.Errorf("notify: vi is destroyed: %w", ErrInvalidParameter)
	case !q.own:
		return fmt.Errorf("notify: the work queue has a completion queue: %w", ErrInvalidParameter)
	}
	return q.cq.notify(t, &q.notices, notice{queue: handler})
}

// notify arms a notification, and serves it if it is due. The caller has the turn.
func (c *CQ) notify(t *turn, list *[]notice, e notice) error {
	if err := c.nic.notify.begin(c.nic); err != nil {
		return fmt.Errorf("notify: %w: %w", ErrResource, err)
	}
	t.share()
	*list = append(*list, e)
	c.settle()
	err := c.nic.notify.serve(c)
	if k := len(*list); err != nil && k > 0 {
		*list = (*list)[:k-1]
	}
	return err
}

// settle leaves due notifications of a queue to the end of the turn.
func (c *CQ) settle() {
	t := c.turn.Load()
	for len(c.notices) > 0 && c.head != c.tail {
		if q := c.pop(); !q.emptied() {
			call := c.notices[0].entry
			c.notices = c.notices[1:]
			t.call(func() { call(q.vi, q.recv) })
		}
	}
	for _, q := range c.queues {
		for q != nil && len(q.notices) > 0 && !q.emptied() {
			call, d := q.notices[0].queue, q.take().desc
			q.notices = q.notices[1:]
			t.call(func() { call(q.vi, d) })
		}
	}
	c.rouse()
}

// waiting reports whether somebody waits for the queue who does not poll it.
func (c *CQ) waiting() bool {
	for _, q := range c.queues {
		if q != nil && len(q.notices) > 0 {
			return true
		}
	}
	return len(c.notices)+len(c.sleepers) > 0
}

// leave ends a turn that polled the queue, which is watched again if somebody
// waits for it.
func (c *CQ) leave(t *turn) {
	if t.shared {
		if err := c.nic.notify.serve(c); err != nil {
			c.raise(AsyncError{CQ: c, Code: AsyncCatastrophic, Cause: err})
		}
	}
	t.leave()
}

// notifier is the goroutine that drives queues with armed notifications while
// their consumers do not.
type notifier struct {
	start   sync.Once
	epoll   int // watches the file descriptors of armed queues, each once
	wake    int // ends the goroutine
	failure error
	ended   chan struct{} // nil if it never began

	mu       sync.Mutex
	armed    map[int32]*CQ // by file descriptor; guarded by mu
	due      []*CQ         // to be looked at now; guarded by mu
	stopping bool          // guarded by mu
}

// serveRounds is how often a turn looks at a queue that never runs dry before the
// goroutine takes over, and handlers run in between.
const serveRounds = 16

// begin starts the goroutine, once.
func (r *notifier) begin(n *NIC) error {
	r.start.Do(func() {
		r.armed = make(map[int32]*CQ)
		if r.epoll, r.failure = unix.EpollCreate1(unix.EPOLL_CLOEXEC); r.failure != nil {
			return
		}
		if r.wake, r.failure = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); r.failure != nil {
			_ = unix.Close(r.epoll)
			return
		}
		e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(r.wake)}
		if r.failure = unix.EpollCtl(r.epoll, unix.EPOLL_CTL_ADD, r.wake, &e); r.failure != nil {
			_ = unix.Close(r.wake)
			_ = unix.Close(r.epoll)
			return
		}
		r.ended = make(chan struct{})
		go r.routineNotify(n)
	})
	return r.failure
}

// serve gives a queue's links their turn until nobody waits for the queue or it is
// dry, and watches it then. The caller has the queue's turn.
func (r *notifier) serve(c *CQ) error {
	for round := 0; c.waiting(); round++ {
		if c.adapter.Arm() {
			return r.watch(c)
		}
		if round == serveRounds {
			r.mu.Lock()
			r.due = append(r.due, c)
			r.mu.Unlock()
			return r.signal()
		}
		c.progress(len(c.done), nil)
	}
	return nil
}

// signal makes the goroutine look up.
func (r *notifier) signal() error {
	if _, err := unix.Write(r.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		return fmt.Errorf("wake notifications: %w: %w", ErrResource, err)
	}
	return nil
}

// watch makes the goroutine look at a queue when it is readable, once.
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

// forget cancels what waits for a queue that is destroyed. The caller has the
// queue's turn; its file descriptor is open.
func (r *notifier) forget(c *CQ, fd int32) {
	c.rouse()
	c.notices, c.sleepers = nil, nil
	r.mu.Lock()
	known := r.armed[fd] == c
	delete(r.armed, fd)
	r.mu.Unlock()
	if known {
		_ = unix.EpollCtl(r.epoll, unix.EPOLL_CTL_DEL, int(fd), nil) // it is there
	}
}

// routineNotify is the NIC's goroutine: it drives queues that somebody waits for
// when they are readable.
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
			found, stop := r.look(e.Fd)
			if stop {
				return
			}
			for _, c := range found {
				t := c.enter()
				c.progress(len(c.done), nil)
				c.leave(t)
			}
		}
	}
}

// look returns the queues that a readable file descriptor stands for, or true at
// the end.
func (r *notifier) look(fd int32) ([]*CQ, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if int(fd) != r.wake {
		if c := r.armed[fd]; c != nil {
			return []*CQ{c}, false
		}
		return nil, false
	}
	var count [8]byte
	_, _ = unix.Read(r.wake, count[:]) // it is readable
	due := r.due
	r.due = nil
	return due, r.stopping
}

// stop ends the goroutine and waits for it. Handlers that run end first; nothing
// begins any more.
func (r *notifier) stop() error {
	r.start.Do(func() { r.failure = ErrInvalidParameter })
	if r.ended == nil {
		return nil
	}
	r.mu.Lock()
	r.stopping = true
	r.mu.Unlock()
	if err := r.signal(); err != nil {
		return err
	}
	<-r.ended
	return errors.Join(unix.Close(r.wake), unix.Close(r.epoll))
}
