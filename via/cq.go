package via

import "fmt"

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
type CQ struct {
	nic     *NIC
	adapter AdapterCQ
	entries int // 0 when destroyed; guarded by nic.mu
	bound   int // work queues; guarded by nic.mu
	overrun bool

	ready      []Completion // ring
	head, tail uint32
	done       [64]Done
}

// CreateCQ creates a completion queue (VipCreateCQ). entries is at least the sum
// of the depths of the work queues bound to it; fewer is the consumer's mistake
// and costs the queue when it overflows.
func (n *NIC) CreateCQ(entries int) (*CQ, error) {
	if entries <= 0 || entries > n.limits.MaxCQEntries {
		return nil, fmt.Errorf("create completion queue of %d entries (limit %d): %w", entries, n.limits.MaxCQEntries, ErrInvalidParameter)
	}
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil, fmt.Errorf("create completion queue: nic is closed: %w", ErrInvalidParameter)
	}
	if n.cqs >= n.limits.MaxCQ {
		n.mu.Unlock()
		return nil, fmt.Errorf("create completion queue: %d exist: %w", n.cqs, ErrResource)
	}
	n.cqs++
	n.mu.Unlock()
	a, err := n.adapter.NewCQ(entries)
	if err != nil {
		n.mu.Lock()
		n.cqs--
		n.mu.Unlock()
		return nil, fmt.Errorf("create completion queue: %w", err)
	}
	size := 1
	for size < entries {
		size <<= 1
	}
	return &CQ{nic: n, adapter: a, entries: entries, ready: make([]Completion, size)}, nil
}

// Poll takes finished descriptors off their queues and returns how many
// (VipCQDone and VipSendDone or VipRecvDone, for a batch). It also gives the VIs
// bound to the queue their turn to make progress. It never blocks and never
// allocates. dst is not empty.
func (c *CQ) Poll(dst []Completion) int {
	n := c.take(dst)
	if n == len(dst) {
		return n
	}
	k := c.adapter.Poll(c.done[:min(len(c.done), len(dst)-n)])
	for i := range c.done[:k] {
		c.handle(&c.done[i])
		c.done[i] = Done{}
	}
	return n + c.take(dst[n:])
}

// handle turns what the provider reports into completions and state.
func (c *CQ) handle(d *Done) {
	if d.Work == nil {
		d.Owner.linkEvent(d)
		return
	}
	s := d.Work.slot
	vi := s.vi
	q := vi.queue(d.Work.Op == OpRecv)
	if q.head == q.next || q.at(q.head) != s {
		return // flushed meanwhile
	}
	q.finish(s, d.Status, d.Length, d.Immediate)
	if d.Broken {
		vi.breakLink(AsyncConnectionLost, d.Cause, false)
		return
	}
	vi.resume(q)
}

// push adds a completion and returns whether there was room for it.
func (c *CQ) push(e Completion) bool {
	if c.tail-c.head == uint32(len(c.ready)) {
		if !c.overrun {
			c.overrun = true
			c.nic.raise(AsyncError{
				CQ: c, VI: e.VI, Code: AsyncCatastrophic,
				Cause: fmt.Errorf("completion queue with room for %d entries overflowed", len(c.ready)),
			})
		}
		return false
	}
	c.ready[c.tail&uint32(len(c.ready)-1)] = e
	c.tail++
	return true
}

// take moves completions to dst.
func (c *CQ) take(dst []Completion) int {
	n := 0
	for n < len(dst) && c.head != c.tail {
		dst[n] = c.ready[c.head&uint32(len(c.ready)-1)]
		dst[n].VI.queue(dst[n].Recv).untaken--
		c.head++
		n++
	}
	return n
}

// Arm prepares to sleep: it returns false if Poll has something to return now;
// otherwise FD becomes readable at the next completion.
func (c *CQ) Arm() bool {
	return c.head == c.tail && c.adapter.Arm()
}

// FD returns a file descriptor to poll for reading after Arm. Poll consumes what
// makes it readable. It is the same during the queue's life.
func (c *CQ) FD() int { return c.adapter.FD() }

// Destroy destroys the queue (VipDestroyCQ). It returns ErrResource while a VI
// is bound to it.
func (c *CQ) Destroy() error {
	c.nic.mu.Lock()
	if c.bound != 0 {
		c.nic.mu.Unlock()
		return fmt.Errorf("destroy completion queue: %d work queues are bound: %w", c.bound, ErrResource)
	}
	if c.entries == 0 {
		c.nic.mu.Unlock()
		return fmt.Errorf("destroy completion queue: already destroyed: %w", ErrInvalidParameter)
	}
	c.entries = 0
	c.nic.cqs--
	c.nic.mu.Unlock()
	a := c.adapter
	c.adapter = noCQ{}
	if err := a.Close(); err != nil {
		return fmt.Errorf("destroy completion queue: %w", err)
	}
	return nil
}

// noCQ stands in for the provider's half of a destroyed queue: its file
// descriptor's number may be another's by now.
type noCQ struct{}

func (noCQ) Poll([]Done) int { return 0 }
func (noCQ) Arm() bool       { return true }
func (noCQ) FD() int         { return -1 }
func (noCQ) Close() error    { return nil }
