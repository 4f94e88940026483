//go:build verbs && cgo

package verbs

// #cgo noescape shim_poll
// #cgo nocallback shim_poll
// #cgo noescape shim_arm
// #cgo nocallback shim_arm
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/via"
)

// cq is a completion queue of the device, a completion channel, and an eventfd for
// what comes by other ways. Its owner sleeps on an epoll file descriptor that watches
// both.
type cq struct {
	adapter *adapter
	cq      *C.struct_ibv_cq
	channel *C.struct_ibv_comp_channel
	fd      int // epoll
	wake    int // eventfd
	batch   *batch
	links   map[uint32]*link // that have started, by serial
	late    []*link          // with receives that no doorbell has announced
	events  []via.Done       // that wait to be reported
	news    atomic.Bool      // of links: the adapter's goroutine sets it
	leaving []*link          // that are broken

	wcs     []C.struct_shim_wc
	next, n int  // wcs[next:n] are not reported
	empty   bool // the device had no more

	counts counts

	mu       sync.Mutex
	entries  int // of the device's queue
	reserved int // works of links, and what those that are closed may have left
	stale    int // of these, of links that are closed
}

// leastEntries is how many completions a queue has room for at first, at least.
const leastEntries = 1024

// NewCQ creates a completion queue. It grows with the links that are bound to it: each
// may have as many completions in it as it has works.
func (a *adapter) NewCQ(entries int) (via.AdapterCQ, error) {
	if err := a.usable(); err != nil {
		return nil, err
	}
	c := &cq{
		adapter: a, fd: -1, wake: -1, batch: newBatch(), links: make(map[uint32]*link),
		wcs: make([]C.struct_shim_wc, batchSize), entries: min(max(leastEntries, entries), int(a.device.limits.max_cqe)),
	}
	if err := c.open(); err != nil {
		_ = c.Close()
		return nil, a.refused("create a completion queue", err)
	}
	a.mu.Lock()
	a.queues[c] = struct{}{}
	a.mu.Unlock()
	return c, nil
}

func (c *cq) open() error {
	var err error
	if c.fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("create epoll: %w", err)
	}
	if c.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("create eventfd: %w", err)
	}
	context := c.adapter.device.context
	if c.channel, err = C.ibv_create_comp_channel(context); c.channel == nil {
		return fmt.Errorf("create completion channel: %w", err)
	}
	if err := unix.SetNonblock(int(c.channel.fd), true); err != nil {
		return fmt.Errorf("set completion channel not to block: %w", err)
	}
	if c.cq, err = C.ibv_create_cq(context, C.int(c.entries), nil, c.channel, 0); c.cq == nil {
		return fmt.Errorf("create queue of %d entries: %w", c.entries, err)
	}
	for _, fd := range []int{c.wake, int(c.channel.fd)} {
		e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
		if err := unix.EpollCtl(c.fd, unix.EPOLL_CTL_ADD, fd, &e); err != nil {
			return fmt.Errorf("watch a file descriptor: %w", err)
		}
	}
	return nil
}

// Close closes the queue. No link is bound to it.
func (c *cq) Close() error {
	c.adapter.drop(c)
	var errs []error
	if c.cq != nil {
		C.shim_take(c.cq, c.channel)
		if code := C.ibv_destroy_cq(c.cq); code != 0 && !c.adapter.failed.Load() {
			errs = append(errs, fmt.Errorf("destroy completion queue: %w", errno(code)))
		}
	}
	if c.channel != nil {
		if code := C.ibv_destroy_comp_channel(c.channel); code != 0 {
			errs = append(errs, fmt.Errorf("destroy completion channel: %w", errno(code)))
		}
	}
	for _, fd := range []int{c.fd, c.wake} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}

// FD returns the epoll file descriptor.
func (c *cq) FD() int { return c.fd }

// Resize changes nothing: the device's queue has room for what its links may have.
func (c *cq) Resize(int) error { return nil }

// reserve makes room for a link's works.
func (c *cq) reserve(works int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	need := c.reserved + works
	most := int(c.adapter.device.limits.max_cqe)
	if need > most {
		return fmt.Errorf("completion queue for %d works, RDMA device %s has %d: %w", need, c.adapter.device.name, most, via.ErrResource)
	}
	if need > c.entries {
		entries := min(2*need, most)
		if code := C.ibv_resize_cq(c.cq, C.int(entries)); code != 0 {
			return c.adapter.refused(fmt.Sprintf("resize a completion queue to %d entries", entries), errno(code))
		}
		c.entries = entries
	}
	c.reserved = need
	return nil
}

// unreserve gives the room of a link back, once the queue was found empty: what the
// link has left in it takes room until then.
func (c *cq) unreserve(works int) {
	c.mu.Lock()
	c.stale += works
	c.mu.Unlock()
}

// settle is the news that the queue was found empty.
func (c *cq) settle() {
	c.mu.Lock()
	c.reserved -= c.stale
	c.stale = 0
	c.mu.Unlock()
}

// signal makes the queue look at its links. It is safe for concurrent use.
func (c *cq) signal() {
	c.news.Store(true)
	eventfd.Ring(c.wake)
}

// Poll reports what is done. One call into C takes completions, and one for each link
// with receives that nobody has announced posts these.
func (c *cq) Poll(dst []via.Done) int {
	c.prepare()
	n := 0
	for n < len(dst) {
		if c.next < c.n {
			n += c.report(dst[n:])
			continue
		}
		if c.empty && n > 0 {
			break
		}
		c.counts.polls.Add(1)
		c.take(C.shim_poll(c.cq, &c.wcs[0], batchSize))
		if c.n == 0 {
			break
		}
	}
	if c.next == c.n && c.empty {
		if c.stale > 0 {
			c.settle()
		}
		n += c.reportEvents(dst[n:])
		c.empty = false
	}
	return n
}

// prepare takes the news and posts late receives.
func (c *cq) prepare() {
	if c.news.Load() {
		eventfd.Drain(c.wake)
		c.news.Store(false)
		c.look()
	}
	if len(c.late) > 0 {
		for i, l := range c.late {
			if l.qp != nil {
				l.flush(false)
			}
			c.late[i] = nil
		}
		c.late = c.late[:0]
	}
}

// take notes what a call has stored.
func (c *cq) take(n C.int) {
	c.next, c.n = 0, max(0, int(n))
	c.empty = int(n) < batchSize
}

// Arm asks for an event.
func (c *cq) Arm() bool {
	c.prepare()
	if c.next < c.n || len(c.events) > 0 || len(c.leaving) > 0 {
		return false
	}
	c.counts.arms.Add(1)
	c.take(C.shim_arm(c.cq, c.channel, &c.wcs[0], batchSize, &c.batch.counts[0]))
	c.counts.wakes.Add(uint64(c.batch.counts[0]))
	c.empty = c.n > 0 && c.empty
	return c.n == 0 && !c.news.Load()
}
