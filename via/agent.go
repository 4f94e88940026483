package via

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// agent plays the kernel agent's role for one NIC: it creates and destroys,
// registers and deregisters, connects and disconnects. It alone calls the
// adapter, counts each call, and keeps the inventory of live objects. Posts,
// polls and sleeps go to links and queues directly: in steady state the data
// path makes no call here.
type agent struct {
	adapter Adapter
	limits  Limits
	// +checklocks:mu
	regions *regionTable // the user agent reads it, without a lock
	stats   AgentStats
	raise   func(AsyncError)
	failed  atomic.Bool // the device reported a catastrophe

	mu sync.Mutex // held for bookkeeping only, never across an adapter call
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	ptags map[uint32]*ptagUse
	// +checklocks:mu
	lastPtag uint32
	// +checklocks:mu
	vis map[*VI]struct{}
	// +checklocks:mu
	cqs map[*CQ]struct{}
	// +checklocks:mu
	registered uint64 // bytes
	// +checklocks:mu
	arenas map[*Arena]struct{}
	// +checklocks:mu
	listeners map[string]*hostListener

	joinMu sync.Mutex // of joinDrivers; before a driver's lock and mu
}

// AgentStats count the calls that go through the kernel agent. In steady state
// the data path adds to none of them.
type AgentStats struct {
	Objects          atomic.Uint64 // tags, VIs, completion queues and arenas made and destroyed
	Listens          atomic.Uint64 // listeners opened and closed
	Connects         atomic.Uint64 // requests, acceptances and refusals
	Disconnects      atomic.Uint64
	Registrations    atomic.Uint64
	Deregistrations  atomic.Uint64
	AttributeChanges atomic.Uint64
}

// Calls returns the sum.
func (s *AgentStats) Calls() uint64 {
	return s.Objects.Load() + s.Listens.Load() + s.Connects.Load() + s.Disconnects.Load() +
		s.Registrations.Load() + s.Deregistrations.Load() + s.AttributeChanges.Load()
}

func newAgent(a Adapter, regions *regionTable, raise func(AsyncError)) *agent {
	g := &agent{
		adapter: a, limits: a.Limits(), regions: regions, raise: raise,
		ptags:     make(map[uint32]*ptagUse),
		vis:       make(map[*VI]struct{}),
		cqs:       make(map[*CQ]struct{}),
		arenas:    make(map[*Arena]struct{}),
		listeners: make(map[string]*hostListener),
	}
	g.limits.MaxDescriptorsPerQueue = min(g.limits.MaxDescriptorsPerQueue, maxDepth)
	regions.init(g.limits.MaxRegisterRegions, g.limits.NamesRegions)
	return g
}

// usableLocked returns an error if nothing can be created any more.
//
// +checklocks:g.mu
func (g *agent) usableLocked() error {
	switch {
	case g.closed:
		return fmt.Errorf("nic is closed: %w", ErrInvalidParameter)
	case g.failed.Load():
		return fmt.Errorf("nic has failed: %w", ErrResource)
	}
	return nil
}

// addCQ gives a completion queue the adapter's half.
func (g *agent) addCQ(c *CQ, entries int) error {
	g.mu.Lock()
	err := g.usableLocked()
	if err == nil && len(g.cqs) >= g.limits.MaxCQ {
		err = fmt.Errorf("%d exist: %w", len(g.cqs), ErrResource)
	}
	if err == nil {
		g.cqs[c] = struct{}{}
	}
	g.mu.Unlock()
	if err != nil {
		return err
	}
	g.stats.Objects.Add(1)
	a, err := g.adapter.NewCQ(entries)
	g.noteFailure(err)
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		delete(g.cqs, c)
		return withCode(err, ErrResource)
	}
	c.adapter, c.entries = a, entries
	return nil
}

// resizeCQ changes the size of the adapter's half.
func (g *agent) resizeCQ(c *CQ, entries int) error {
	g.stats.AttributeChanges.Add(1)
	if err := c.adapter.Resize(entries); err != nil {
		return withCode(err, ErrResource)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	c.entries = entries
	return nil
}

// releaseCQ removes a queue from the inventory, if no VI is bound to it.
func (g *agent) releaseCQ(c *CQ) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case c.bound != 0:
		return fmt.Errorf("%d work queues are bound: %w", c.bound, ErrResource)
	case c.entries == 0:
		return fmt.Errorf("already destroyed: %w", ErrInvalidParameter)
	}
	c.entries = 0
	delete(g.cqs, c)
	g.stats.Objects.Add(1)
	return nil
}

// addVi registers a VI and counts it at its tag and its queues.
func (g *agent) addVi(vi *VI, send, recv *CQ) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.usableLocked(); err != nil {
		return err
	}
	use := g.ptagUseLocked(vi.attrs.Ptag)
	switch {
	case use == nil:
		return ErrInvalidPtag
	case len(g.vis) >= g.limits.MaxVI:
		return fmt.Errorf("%d exist: %w", len(g.vis), ErrResource)
	case send.entries == 0 || recv.entries == 0:
		return fmt.Errorf("completion queue is destroyed: %w", ErrInvalidParameter)
	}
	use.count++
	g.vis[vi] = struct{}{}
	send.bound++
	recv.bound++
	g.stats.Objects.Add(1)
	return nil
}

// removeVi undoes addVi, once.
func (g *agent) removeVi(vi *VI) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.vis[vi]; !ok {
		return fmt.Errorf("already destroyed: %w", ErrInvalidParameter)
	}
	delete(g.vis, vi)
	g.ptags[vi.attrs.Ptag.id].count--
	vi.send.cq.bound--
	vi.recv.cq.bound--
	g.stats.Objects.Add(1)
	return nil
}

// retag moves a VI to another tag.
func (g *agent) retag(vi *VI, to Ptag) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	use := g.ptagUseLocked(to)
	if _, ok := g.vis[vi]; !ok {
		return fmt.Errorf("vi is destroyed: %w", ErrInvalidParameter)
	}
	if use == nil {
		return ErrInvalidPtag
	}
	use.count++
	g.ptags[vi.attrs.Ptag.id].count--
	g.stats.AttributeChanges.Add(1)
	return nil
}

// connect asks for a connection.
func (g *agent) connect(ctx context.Context, host string, hello []byte, cfg LinkConfig) (Link, []byte, error) {
	g.stats.Connects.Add(1)
	link, reply, err := g.adapter.Connect(ctx, host, hello, cfg)
	g.noteFailure(err)
	return link, reply, err
}

// accept answers a request with a connection.
func (g *agent) accept(ctx context.Context, in Incoming, reply []byte, cfg LinkConfig) (Link, error) {
	g.stats.Connects.Add(1)
	link, err := in.Accept(ctx, reply, cfg)
	g.noteFailure(err)
	return link, err
}

// confirm answers a request before there is a VI.
func (g *agent) confirm(ctx context.Context, in Confirmer, reply []byte, level ReliabilityLevel) error {
	g.stats.Connects.Add(1)
	err := in.Confirm(ctx, reply, level)
	g.noteFailure(err)
	return err
}

// refuse answers a request with a reason, and perhaps with one of the consumer.
func (g *agent) refuse(in Incoming, reason ...byte) error {
	g.stats.Connects.Add(1)
	return withCode(in.Refuse(reason), ErrNotReachable)
}

// disconnect ends a connection. The error wraps ErrStillAccessed: no caller
// handles another one of a connection that is given up.
func (g *agent) disconnect(l Link) error {
	g.stats.Disconnects.Add(1)
	if err := l.Close(); errors.Is(err, ErrStillAccessed) {
		return err
	}
	return nil
}

// fail marks the device as failed, and moves every VI without a connection,
// which no link event reaches, to the error state. It returns false after the
// first call.
func (g *agent) fail() bool {
	if !g.failed.CompareAndSwap(false, true) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for vi := range g.vis {
		for s := vi.State(); s == StateIdle || s == StatePending; s = vi.State() {
			vi.state.CompareAndSwap(int32(s), int32(StateError))
		}
	}
	return true
}

// noteFailure learns from an adapter's error that the device has failed. No
// lock is held.
func (g *agent) noteFailure(err error) {
	if errors.Is(err, ErrDeviceFailed) && g.fail() {
		g.raise(AsyncError{Code: AsyncCatastrophic, Cause: err})
	}
}

// objects counts what exists.
func (g *agent) objects() Objects {
	g.mu.Lock()
	defer g.mu.Unlock()
	o := Objects{VIs: len(g.vis), CQs: len(g.cqs), Regions: g.regions.live()}
	for _, h := range g.listeners {
		o.Addresses += len(h.waiters)
	}
	return o
}

// close checks that nothing is left and closes the device.
func (g *agent) close() error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return fmt.Errorf("already closed: %w", ErrInvalidParameter)
	}
	if len(g.vis) != 0 || len(g.cqs) != 0 || len(g.listeners) != 0 || g.regions.live() != 0 {
		defer g.mu.Unlock()
		return fmt.Errorf("%d vis, %d completion queues, %d listeners, %d regions remain: %w",
			len(g.vis), len(g.cqs), len(g.listeners), g.regions.live(), ErrResource)
	}
	g.closed = true
	arenas := g.arenas
	g.arenas = nil
	g.mu.Unlock()
	var first error
	for a := range arenas {
		if err := a.unmap(); err != nil && first == nil {
			first = err
		}
	}
	if err := g.adapter.Close(); err != nil && first == nil {
		first = err
	}
	return withCode(first, ErrResource)
}
