package via

import (
	"fmt"
	"sync/atomic"
	"time"
)

// Completion is a finished descriptor, taken off its queue.
type Completion struct {
	VI         *VI
	Descriptor *Descriptor
	Recv       bool   // of the receive queue
	Status     Status // as in the descriptor
	Length     uint32 // bytes transferred
	Immediate  uint32 // valid with StatusImmediate
}

// CQ merges the completions of work queues. One goroutine at a time drives a CQ
// and the VIs bound to it.
//
// An entry names the work queue whose next descriptor is complete; the result
// stays in that queue until it is taken off. Poll does both for a batch; Done
// leaves the second half to SendDone and RecvDone, as VIPL does.
type CQ struct {
	nic     *NIC
	adapter AdapterCQ
	entries int  // 0 when destroyed; guarded by agent.mu
	bound   int  // work queues; guarded by agent.mu
	private bool // of one VI, for its queues without a completion queue
	driver  atomic.Pointer[driver]
	overrun bool
	touched uint32 // keeps the compiler from removing the loads of touch

	ready      []*workQueue // ring
	head, tail uint32
	done       [64]Done

	queues        [2]*workQueue // of a private queue: those it serves
	notifications []notification

	sleepers []chan struct{} // goroutines that wait while the driver is a lock
}

// CreateCQ creates a completion queue (VipCreateCQ). entries is at least the
// sum of the depths of the work queues bound to it; fewer is the consumer's
// mistake and costs the queue when it overflows. Beyond a limit it is
// ErrResource.
func (n *NIC) CreateCQ(entries int) (*CQ, error) {
	if !n.made() {
		return nil, noObject("create completion queue")
	}
	if entries <= 0 || entries > n.limits.MaxCQEntries {
		return nil, fmt.Errorf("create completion queue of %d entries (limit %d): %w", entries, n.limits.MaxCQEntries, ErrInvalidParameter)
	}
	c, err := n.newCQ(entries)
	if err != nil {
		return nil, fmt.Errorf("create completion queue: %w", err)
	}
	c.ready = make([]*workQueue, powerOfTwo(entries))
	return c, nil
}

func (n *NIC) newCQ(entries int) (*CQ, error) {
	c := &CQ{nic: n}
	c.driver.Store(&driver{})
	if err := n.agent.addCQ(c, entries); err != nil {
		return nil, err
	}
	return c, nil
}

// made reports whether CreateCQ made the queue.
func (c *CQ) made() bool { return c != nil && c.nic != nil }

// Poll takes finished descriptors off their queues and returns how many
// (VipCQDone and VipSendDone or VipRecvDone, for a batch). It also lets the VIs
// bound to the queue make progress. It never blocks and never
// allocates. dst is not empty.
func (c *CQ) Poll(dst []Completion) int {
	if !c.made() {
		return 0
	}
	drv := c.acquire()
	n := c.dequeue(dst)
	if n < len(dst) {
		n += c.progress(len(dst)-n, dst[n:])
		n += c.dequeue(dst[n:])
	}
	c.releaseDriver(drv)
	return n
}

// Done dequeues the oldest entry and returns the queue that it names
// (VipCQDone): the caller then dequeues the descriptor with SendDone or
// RecvDone. It returns ErrNotDone if there is none. It never blocks.
func (c *CQ) Done() (vi *VI, recv bool, err error) {
	if !c.made() {
		return nil, false, ErrInvalidParameter
	}
	drv := c.acquire()
	defer c.releaseDriver(drv)
	if c.ready == nil {
		return nil, false, ErrInvalidParameter
	}
	if c.head == c.tail {
		c.progress(len(c.done), nil)
	}
	for c.head != c.tail {
		if q := c.pop(); !q.emptied() {
			return q.vi, q.recv, nil
		}
	}
	return nil, false, ErrNotDone
}

// Wait is Done that sleeps until there is an entry (VipCQWait). It returns
// ErrTimeout after timeout; [Infinite] is none.
func (c *CQ) Wait(timeout time.Duration) (vi *VI, recv bool, err error) {
	if !c.made() {
		return nil, false, noObject("wait for a completion")
	}
	s := c.sleeper(timeout)
	defer s.end()
	for {
		if vi, recv, err = c.Done(); err != ErrNotDone {
			return vi, recv, err
		}
		if err = s.sleep(); err != nil {
			return nil, false, fmt.Errorf("wait for a completion: %w", err)
		}
	}
}

// progress polls the adapter, which lets its links progress, and handles up to
// limit reports. It stores completions in dst, which may be nil, as long as no
// entry precedes them, and returns how many; for the others it adds entries.
func (c *CQ) progress(limit int, dst []Completion) int {
	n := 0
	k := c.adapter.Poll(c.done[:min(len(c.done), limit)])
	if k > 1 && c.done[0].Work != nil && c.done[k-1].Work != nil && c.done[0].Work.queue.vi != c.done[k-1].Work.queue.vi {
		c.touch(c.done[:k])
	}
	for i := range c.done[:k] {
		d := &c.done[i]
		if d.Work == nil {
			d.Event.Owner.linkEvent(d.Event)
			continue
		}
		q := d.Work.queue
		if q.head == q.next || uint16(q.head) != d.Work.place {
			continue // flushed meanwhile
		}
		if q.completed(d.Work, dst[n:]) {
			n++
		}
		q.refill()
	}
	return n
}

// touch loads the cache lines that completing the works needs, so that the
// misses overlap instead of following one another: with many VIs, few of the
// lines are cached.
func (c *CQ) touch(done []Done) {
	sum := uint32(0)
	for i := range done {
		if w := done[i].Work; w != nil {
			sum += w.queue.head + w.queue.next
		}
	}
	for i := range done {
		if w := done[i].Work; w != nil {
			if d := w.queue.at(w.queue.head).desc; d != nil {
				sum += uint32(d.addr)
			}
		}
	}
	c.touched = sum
}

// deliver stores what completed at the head of a queue, without an entry. It
// returns false where an entry is needed: other entries precede it, or the
// caller passed no destination.
func (c *CQ) deliver(dst []Completion, q *workQueue, p *post, status Status, length, immediate uint32) bool {
	if len(dst) == 0 || c.head != c.tail || q.taken+1 != q.head || len(c.notifications) != 0 {
		return false
	}
	e := &dst[0]
	e.VI, e.Descriptor, e.Recv = q.vi, p.desc, q.recv
	e.Status, e.Length, e.Immediate = status, length, immediate
	q.taken++
	return true
}

// push adds an entry and returns whether there was room for it.
func (c *CQ) push(q *workQueue) bool {
	if c.tail-c.head == uint32(len(c.ready)) {
		if !c.overrun {
			c.overrun = true
			c.raise(AsyncError{
				CQ: c, VI: q.vi, Code: AsyncCatastrophic,
				Cause: fmt.Errorf("completion queue with room for %d entries overflowed", len(c.ready)),
			})
		}
		return false
	}
	c.ready[c.tail&uint32(len(c.ready)-1)] = q
	c.tail++
	return true
}

func (c *CQ) pop() *workQueue {
	q := c.ready[c.head&uint32(len(c.ready)-1)]
	c.head++
	return q
}

// dequeue moves completions to dst.
func (c *CQ) dequeue(dst []Completion) int {
	n := 0
	for n < len(dst) && c.head != c.tail {
		q := c.pop()
		if q.emptied() {
			continue // taken off with SendDone or RecvDone already
		}
		p := q.pop()
		e := &dst[n]
		e.VI, e.Descriptor, e.Recv = q.vi, p.desc, q.recv
		e.Status, e.Length, e.Immediate = p.status, p.length, p.immediate
		n++
	}
	return n
}

// purge removes the entries of a VI that is destroyed.
func (c *CQ) purge(vi *VI) {
	tail := c.head
	for i := c.head; i != c.tail; i++ {
		if q := c.ready[i&uint32(len(c.ready)-1)]; q.vi != vi {
			c.ready[tail&uint32(len(c.ready)-1)] = q
			tail++
		}
	}
	c.tail = tail
	for i := range c.ready { // dequeued entries are still there
		if q := c.ready[i]; q != nil && q.vi == vi {
			c.ready[i] = nil
		}
	}
	clear(c.done[:]) // so are the last reports
}

// raise reports an asynchronous error, with no lock held.
func (c *CQ) raise(e AsyncError) { c.driver.Load().deferCall(func() { c.nic.raise(e) }) }

// Arm prepares to sleep: it returns false if Poll has something to return now;
// otherwise FD becomes readable at the next completion.
func (c *CQ) Arm() bool {
	if !c.made() {
		return true
	}
	drv := c.acquire()
	ok := c.head == c.tail && c.adapter.Arm()
	drv.release()
	return ok
}

// Edges reports whether ArmEdge saves system calls.
func (c *CQ) Edges() bool {
	if !c.made() {
		return false
	}
	_, ok := c.adapter.(EdgeArmer)
	return ok
}

// ArmEdge is Arm for a consumer that watches FD for edges (EPOLLET): FD may
// stay readable, and the next completion is an edge of it all the same. Where
// Edges is false it is Arm.
func (c *CQ) ArmEdge() bool {
	if !c.made() {
		return true
	}
	drv := c.acquire()
	defer drv.release()
	if c.head != c.tail {
		return false
	}
	if a, ok := c.adapter.(EdgeArmer); ok {
		return a.ArmEdge()
	}
	return c.adapter.Arm()
}

// Share has the peers of a queue that ArmEdge has armed go by a flag of this
// process which says whether a thread sleeps, see [SleepSharer]. It returns
// false where the provider or a peer cannot.
func (c *CQ) Share(flag int) bool {
	if !c.made() {
		return false
	}
	drv := c.acquire()
	defer drv.release()
	s, ok := c.adapter.(SleepSharer)
	return ok && (flag < 0 || !drv.shared) && s.Share(flag)
}

// Pending reports whether Poll has something to return or to do, where Share
// has succeeded.
func (c *CQ) Pending() bool {
	if !c.made() {
		return false
	}
	drv := c.acquire()
	defer drv.release()
	if c.head != c.tail {
		return true
	}
	s, ok := c.adapter.(SleepSharer)
	return ok && s.Pending()
}

// Disarm says that the consumer is awake, though FD may not be readable: it
// calls Poll or Arm before it sleeps. A consumer that posts after Arm saves
// system calls with it, its own and the peer's.
func (c *CQ) Disarm() {
	if !c.made() {
		return
	}
	drv := c.acquire()
	defer c.releaseDriver(drv)
	if a, ok := c.adapter.(Disarmer); ok {
		a.Disarm()
	}
}

// FD returns a file descriptor to poll for reading after Arm. A Poll that
// returns nothing, or the next Arm, consumes what makes it readable, unless
// ArmEdge was the last to arm. It is the same during the queue's life, and -1
// when there is no queue.
func (c *CQ) FD() int {
	if !c.made() {
		return -1
	}
	return c.adapter.FD()
}

// Resize changes the number of entries (VipResizeCQ). Entries in the queue
// stay: a size below their number is ErrResource, one below 1 or beyond the
// limit ErrInvalidParameter.
func (c *CQ) Resize(entries int) error {
	if !c.made() {
		return noObject("resize completion queue")
	}
	n := c.nic
	drv := c.acquire()
	defer drv.release()
	switch {
	case c.ready == nil:
		return fmt.Errorf("resize completion queue: it is destroyed: %w", ErrInvalidParameter)
	case entries <= 0 || entries > n.limits.MaxCQEntries:
		return fmt.Errorf("resize completion queue to %d entries (limit %d): %w", entries, n.limits.MaxCQEntries, ErrInvalidParameter)
	case entries < int(c.tail-c.head):
		return fmt.Errorf("resize completion queue to %d entries: %d are in it: %w", entries, c.tail-c.head, ErrResource)
	}
	if err := n.agent.resizeCQ(c, entries); err != nil {
		return fmt.Errorf("resize completion queue: %w", err)
	}
	ready := make([]*workQueue, powerOfTwo(entries))
	k := uint32(0)
	for c.head != c.tail {
		ready[k] = c.pop()
		k++
	}
	c.ready, c.head, c.tail, c.overrun = ready, 0, k, false
	return nil
}

// Destroy destroys the queue and cancels its notifications (VipDestroyCQ). It
// returns ErrResource while a VI is bound to it.
func (c *CQ) Destroy() error {
	if !c.made() {
		return noObject("destroy completion queue")
	}
	drv := c.acquire()
	defer drv.release()
	return c.destroy()
}

func (c *CQ) destroy() error {
	a := c.adapter
	if err := c.nic.agent.releaseCQ(c); err != nil {
		return fmt.Errorf("destroy completion queue: %w", err)
	}
	c.nic.notify.forget(c, int32(a.FD()))
	c.adapter, c.ready, c.head, c.tail = noCQ{}, nil, 0, 0
	if err := a.Close(); err != nil {
		return fmt.Errorf("destroy completion queue: %w", withCode(err, ErrResource))
	}
	return nil
}

// noCQ stands in for the provider's half of a destroyed queue: its file
// descriptor's number may be another's by now.
type noCQ struct{}

func (noCQ) Poll([]Done) int  { return 0 }
func (noCQ) Arm() bool        { return true }
func (noCQ) FD() int          { return -1 }
func (noCQ) Resize(int) error { return ErrInvalidParameter }
func (noCQ) Close() error     { return nil }
