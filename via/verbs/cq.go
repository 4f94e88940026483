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

// cq is a completion queue of the device, a completion channel, and an eventfd
// for events of the adapter. Its consumer sleeps on an epoll file descriptor
// that watches both.
type cq struct {
	adapter *adapter
	cq      *C.struct_ibv_cq
	channel *C.struct_ibv_comp_channel
	fd      int // epoll
	wake    int // eventfd
	batch   *batch
	links   map[uint32]*link // started links, by serial
	late    []*link          // with receives that wait for the next poll
	events  []via.Done       // not yet reported
	pending atomic.Bool      // links changed; the adapter's goroutine sets it
	broken  []*link          // broken links, not yet reported

	wcs     []C.struct_shim_wc
	next, n int  // wcs[next:n] are not reported
	empty   bool // the device had no more

	counts counts

	mu       sync.Mutex
	entries  int // of the device's queue
	reserved int // works of links, closed ones included until stale is 0
	stale    int // of reserved: works of closed links
}

// minEntries is the least initial size of the device's queue, completions.
const minEntries = 1024

// NewCQ creates a completion queue. It grows with the links that are bound to
// it, by one entry for each of their works.
func (a *adapter) NewCQ(entries int) (via.AdapterCQ, error) {
	if err := a.usable(); err != nil {
		return nil, err
	}
	c := &cq{
		adapter: a, fd: -1, wake: -1, batch: newBatch(), links: make(map[uint32]*link),
		wcs: make([]C.struct_shim_wc, batchSize), entries: min(max(minEntries, entries), int(a.device.limits.max_cqe)),
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
	if c.wake, err = eventfd.New(); err != nil {
		return err
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
	c.adapter.removeQueue(c)
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

// Resize does nothing: reserve sizes the device's queue.
func (c *cq) Resize(int) error { return nil }

// reserve adds room for a link's works.
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

// unreserve releases the room of a link once the queue is found empty: until
// then its last completions may be in the queue.
func (c *cq) unreserve(works int) {
	c.mu.Lock()
	c.stale += works
	c.mu.Unlock()
}

// releaseStale releases the room of closed links; the queue is empty.
func (c *cq) releaseStale() {
	c.mu.Lock()
	c.reserved -= c.stale
	c.stale = 0
	c.mu.Unlock()
}

// signal makes the next poll inspect the links. It is safe for concurrent use.
func (c *cq) signal() {
	c.pending.Store(true)
	eventfd.Ring(c.wake)
}

// Poll reports completions. One call into C polls the device, and one for each
// link with late receives posts them.
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
		c.setBatch(C.shim_poll(c.cq, &c.wcs[0], batchSize))
		if c.n == 0 {
			break
		}
	}
	if c.next == c.n && c.empty {
		if c.stale > 0 {
			c.releaseStale()
		}
		n += c.reportEvents(dst[n:])
		c.empty = false
	}
	return n
}

// prepare collects the events of links and posts late receives.
func (c *cq) prepare() {
	if c.pending.Load() {
		eventfd.Drain(c.wake)
		c.pending.Store(false)
		c.collectEvents()
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

// setBatch notes how many completions a call stored.
func (c *cq) setBatch(n C.int) {
	c.next, c.n = 0, max(0, int(n))
	c.empty = int(n) < batchSize
}

// Arm requests an event for the next completion.
func (c *cq) Arm() bool {
	c.prepare()
	if c.next < c.n || len(c.events) > 0 || len(c.broken) > 0 {
		return false
	}
	c.counts.arms.Add(1)
	c.setBatch(C.shim_arm(c.cq, c.channel, &c.wcs[0], batchSize, &c.batch.counts[0]))
	c.counts.wakes.Add(uint64(c.batch.counts[0]))
	c.empty = c.n > 0 && c.empty
	return c.n == 0 && !c.pending.Load()
}
