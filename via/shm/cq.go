package shm

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

// cq is a completion queue: the links bound to it, what is done, and an eventfd
// that peers write when they know that its owner sleeps. One goroutine drives it.
type cq struct {
	fd    int
	links []*link // each once, in order of binding
	armed bool

	ring       []via.Done
	head, tail uint32
}

func newCQ(entries int) (*cq, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create eventfd: %w", err)
	}
	size := 1
	for size < entries {
		size <<= 1
	}
	return &cq{fd: fd, ring: make([]via.Done, size)}, nil
}

// Close closes the queue.
func (c *cq) Close() error { return unix.Close(c.fd) }

// FD returns the eventfd.
func (c *cq) FD() int { return c.fd }

func (c *cq) bind(l *link) {
	if !slices.Contains(c.links, l) {
		c.links = append(c.links, l)
	}
}

// unbind removes a link and what it reported but nobody polled.
func (c *cq) unbind(l *link) {
	if i := slices.Index(c.links, l); i >= 0 {
		c.links = slices.Delete(c.links, i, i+1)
	}
	tail := c.head
	for i := c.head; i != c.tail; i++ {
		if d := c.ring[i&c.mask()]; d.Owner != l.cfg.Owner {
			c.ring[tail&c.mask()] = d
			tail++
		}
	}
	c.tail = tail
}

func (c *cq) mask() uint32 { return uint32(len(c.ring) - 1) }

// room reports whether another completion fits: a link stops making progress
// while its consumer does not poll.
func (c *cq) room() bool { return c.tail-c.head < uint32(len(c.ring)) }

func (c *cq) push(d via.Done) {
	c.ring[c.tail&c.mask()] = d
	c.tail++
}

// Poll makes progress on the links and takes what is done.
func (c *cq) Poll(dst []via.Done) int {
	if c.armed {
		c.disarm()
	}
	n := c.take(dst)
	if n == len(dst) {
		return n
	}
	for _, l := range c.links {
		l.progress(c)
	}
	n += c.take(dst[n:])
	for _, l := range c.links {
		if n == len(dst) || c.head != c.tail {
			break // a link's event comes after its completions
		}
		if l.broken && !l.reported && l.cfg.RecvCQ == via.AdapterCQ(c) {
			l.reported = true
			dst[n] = via.Done{Owner: l.cfg.Owner, Event: l.event, Broken: true, Cause: l.cause}
			n++
		}
	}
	return n
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
	if c.head != c.tail {
		return false
	}
	for _, l := range c.links {
		l.setWants(c)
	}
	for _, l := range c.links {
		if l.hasWork(c) {
			c.disarmLinks()
			return false
		}
	}
	c.armed = true
	return true
}

// disarm ends a sleep: it withdraws the wish and empties the eventfd.
func (c *cq) disarm() {
	c.armed = false
	c.disarmLinks()
	drainEvent(c.fd)
}

func (c *cq) disarmLinks() {
	for _, l := range c.links {
		l.clearWants()
	}
}
