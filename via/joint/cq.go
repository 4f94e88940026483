package joint

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

// cq is a completion queue of each part. A link reports to that of its part.
// The consumer sleeps on an epoll file descriptor, which watches theirs.
type cq struct {
	parts   []via.AdapterCQ
	fd      int // epoll
	entries int
	first   int // part that the next Poll visits first
}

// NewCQ creates a completion queue at each part.
func (a *adapter) NewCQ(entries int) (via.AdapterCQ, error) {
	c := &cq{fd: -1, entries: entries}
	err := c.open(a, entries)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *cq) open(a *adapter, entries int) (err error) {
	if c.fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("create epoll: %w: %w", via.ErrResource, err)
	}
	for i := range a.parts {
		q, err := a.parts[i].NewCQ(entries)
		if err != nil {
			return a.of(i, err)
		}
		c.parts = append(c.parts, q)
		e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(q.FD())}
		if err := unix.EpollCtl(c.fd, unix.EPOLL_CTL_ADD, q.FD(), &e); err != nil {
			return a.of(i, fmt.Errorf("watch a completion queue: %w: %w", via.ErrResource, err))
		}
	}
	return nil
}

// Poll visits the parts in turn, so that one that fills dst each time keeps no
// other from making progress.
func (c *cq) Poll(dst []via.Done) int {
	n, at := 0, c.first
	for range c.parts {
		if n == len(dst) {
			break
		}
		n += c.parts[at].Poll(dst[n:])
		if at++; at == len(c.parts) {
			at = 0
		}
	}
	if c.first++; c.first == len(c.parts) {
		c.first = 0
	}
	return n
}

// Arm arms all parts. One that has something to do is the first of the next
// Poll, which visits, and so withdraws from, those that were armed before.
func (c *cq) Arm() bool {
	for i, q := range c.parts {
		if !q.Arm() {
			c.first = i
			return false
		}
	}
	return true
}

// Disarm implements [via.Disarmer] for the parts that do.
func (c *cq) Disarm() {
	for _, q := range c.parts {
		if d, ok := q.(via.Disarmer); ok {
			d.Disarm()
		}
	}
}

// FD returns the epoll file descriptor.
func (c *cq) FD() int { return c.fd }

// Resize resizes the queues of all parts, or none.
func (c *cq) Resize(entries int) error {
	for i, q := range c.parts {
		err := q.Resize(entries)
		if err == nil {
			continue
		}
		for _, before := range c.parts[:i] {
			err = errors.Join(err, before.Resize(c.entries))
		}
		return err
	}
	c.entries = entries
	return nil
}

// Close closes the queues of all parts.
func (c *cq) Close() error {
	var err error
	if c.fd >= 0 {
		err = unix.Close(c.fd)
	}
	for _, q := range c.parts {
		err = errors.Join(err, q.Close())
	}
	return err
}
