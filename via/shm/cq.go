package shm

import (
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

// cq is a completion queue: the links bound to it and what is done. One goroutine
// drives it. Its owner sleeps on an epoll file descriptor that watches the bells
// of the links and an eventfd for wake-ups from inside the process. The watches
// are edge-triggered: a bell that a peer leaves ringing wakes once.
type cq struct {
	fd       int        // epoll
	wake     int        // eventfd, never passed to a peer
	links    []*link    // each once, in order of binding
	split    int        // links whose other queue is another
	binding  sync.Mutex // two VIs of the queue may be connecting, to each other
	armed    bool
	signaled bool // wake was written in this sleep
	events   [16]unix.EpollEvent

	ring       []via.Done
	head, tail uint32
}

func newCQ(entries int) (*cq, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("create eventfd: %w", err)
	}
	size := 1
	for size < entries {
		size <<= 1
	}
	c := &cq{fd: fd, wake: wake, ring: make([]via.Done, size)}
	if err := c.watch(wake); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// Close closes the queue.
func (c *cq) Close() error {
	_ = unix.Close(c.wake)
	return unix.Close(c.fd)
}

// FD returns the epoll file descriptor.
func (c *cq) FD() int { return c.fd }

func (c *cq) watch(fd int) error {
	e := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)}
	if err := unix.EpollCtl(c.fd, unix.EPOLL_CTL_ADD, fd, &e); err != nil {
		return fmt.Errorf("watch doorbell: %w", err)
	}
	return nil
}

func (c *cq) unwatch(fd int) { _ = unix.EpollCtl(c.fd, unix.EPOLL_CTL_DEL, fd, nil) }

// bind adds a link. An armed queue did not arm it, so its owner wakes.
func (c *cq) bind(l *link) {
	c.binding.Lock()
	defer c.binding.Unlock()
	c.signal()
	if slices.Contains(c.links, l) {
		return
	}
	c.links = append(c.links, l)
	if l.sendCQ != l.recvCQ {
		c.split++
	}
}

// unbind removes a link and what it reported but nobody polled.
func (c *cq) unbind(l *link) {
	if i := slices.Index(c.links, l); i >= 0 {
		c.links = slices.Delete(c.links, i, i+1)
		if l.sendCQ != l.recvCQ {
			c.split--
		}
	}
	tail := c.head
	for i := c.head; i != c.tail; i++ {
		if d := c.ring[i&c.mask()]; d.Owner != l.cfg.Owner {
			c.ring[tail&c.mask()] = d
			tail++
		}
	}
	for i := tail; i != c.tail; i++ {
		c.ring[i&c.mask()] = via.Done{}
	}
	c.tail = tail
}

func (c *cq) mask() uint32 { return uint32(len(c.ring) - 1) }

func (c *cq) empty() bool { return c.head == c.tail }

// room reports whether another completion fits: a link stops making progress
// while its consumer does not poll.
func (c *cq) room() bool { return c.tail-c.head < uint32(len(c.ring)) }

func (c *cq) push(d via.Done) {
	c.ring[c.tail&c.mask()] = d
	c.tail++
	if c.armed {
		c.signal()
	}
}

// signal wakes the owner if the queue is armed. Only the owner calls it: for
// what its own calls brought about after it armed the queue.
func (c *cq) signal() {
	if c.armed && !c.signaled {
		c.signaled = true
		ringEvent(c.wake)
	}
}

// Poll makes progress on the links and takes what is done.
func (c *cq) Poll(dst []via.Done) int {
	if c.armed {
		c.disarm()
	}
	n := c.take(dst)
	if n == len(dst) {
		c.passOn()
		return n
	}
	for _, l := range c.links {
		l.progress(c)
	}
	n += c.take(dst[n:])
	for _, l := range c.links {
		if n == len(dst) || !c.empty() {
			break // a link's event comes after its completions
		}
		if l.reportable(c) {
			l.reported = true
			dst[n] = via.Done{Owner: l.cfg.Owner, Event: l.event, Broken: true, Cause: l.cause}
			n++
		}
	}
	c.passOn()
	return n
}

// passOn wakes the queue that reports the end of a link once this one, which
// holds the link's sends, is empty.
func (c *cq) passOn() {
	if c.split == 0 || !c.empty() {
		return
	}
	for _, l := range c.links {
		if l.recvCQ != c && l.reportable(l.recvCQ) {
			l.recvCQ.signal()
		}
	}
}

func (c *cq) take(dst []via.Done) int {
	n := 0
	for n < len(dst) && c.head != c.tail {
		e := &c.ring[c.head&c.mask()]
		dst[n] = *e
		*e = via.Done{}
		c.head++
		n++
	}
	return n
}

// Arm asks the peers for a doorbell. The links are looked at again after the
// wish is visible: a peer that published before it saw the wish is not missed.
func (c *cq) Arm() bool {
	if !c.empty() {
		return false
	}
	for _, l := range c.links {
		l.setWants(c)
	}
	for _, l := range c.links {
		if l.hasWork(c) {
			c.withdraw()
			return false
		}
	}
	c.armed = true
	c.passOn()
	return true
}

// disarm ends a sleep: it withdraws the wish and takes what rang.
func (c *cq) disarm() {
	c.armed, c.signaled = false, false
	c.withdraw()
	for _, e := range c.events[:takeEvents(c.fd, &c.events)] {
		if int(e.Fd) != c.wake {
			drainBell(int(e.Fd))
		}
	}
}

func (c *cq) withdraw() {
	for _, l := range c.links {
		l.clearWants(c)
	}
}
