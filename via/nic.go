package via

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
)

// NIC is an open device: the association of this process with one adapter. Its
// methods are safe for concurrent use. None of them is on the data path.
type NIC struct {
	name    string
	adapter Adapter
	limits  Limits
	regions regionTable
	agent   AgentStats
	onError atomic.Pointer[func(AsyncError)]

	mu         sync.Mutex // held for bookkeeping only, never across an adapter call
	closed     bool
	ptags      map[uint32]*ptagUse
	lastPtag   uint32
	vis, cqs   int
	registered uint64 // bytes
	arenas     map[*Arena]struct{}
	listeners  map[string]*hostListener
}

// AgentStats count the calls that go through the kernel agent's path. In steady
// state the data path adds to none of them.
type AgentStats struct {
	Connects, Disconnects         atomic.Uint64
	Registrations, Deregistration atomic.Uint64
	AttributeChanges              atomic.Uint64
}

// OpenNic opens a device of a provider; "" is its default device (VipOpenNic).
func OpenNic(p Provider, device string) (*NIC, error) {
	a, err := p.Open(device)
	if err != nil {
		return nil, fmt.Errorf("open %s device %q: %w", p.Name(), device, err)
	}
	n := &NIC{
		name: p.Name(), adapter: a, limits: a.Limits(),
		ptags:     make(map[uint32]*ptagUse),
		arenas:    make(map[*Arena]struct{}),
		listeners: make(map[string]*hostListener),
	}
	n.regions.init(n.limits.MaxRegisterRegions)
	return n, nil
}

// Name returns the provider's name.
func (n *NIC) Name() string { return n.name }

// Limits returns what the NIC can do (VipQueryNic).
func (n *NIC) Limits() Limits { return n.limits }

// Agent returns the counters of the kernel agent's path.
func (n *NIC) Agent() *AgentStats { return &n.agent }

// ErrorCallback sets the handler of asynchronous errors (VipErrorCallback); nil
// restores the default, which logs. The handler runs on the goroutine that met
// the error, with no lock held; it may post, and must not wait.
func (n *NIC) ErrorCallback(handler func(AsyncError)) {
	if handler == nil {
		n.onError.Store(nil)
		return
	}
	n.onError.Store(&handler)
}

// raise reports an asynchronous error.
func (n *NIC) raise(e AsyncError) {
	e.NIC = n
	if h := n.onError.Load(); h != nil {
		(*h)(e)
		return
	}
	slog.Warn("via asynchronous error", "nic", n.name, "error", e.Code.String(), "cause", e.Cause)
}

// Close closes the NIC (VipCloseNic). It returns ErrResource while VIs,
// completion queues, listeners or registered memory remain; arenas without
// registered memory are unmapped.
func (n *NIC) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return fmt.Errorf("close nic: already closed: %w", ErrInvalidParameter)
	}
	if n.vis != 0 || n.cqs != 0 || len(n.listeners) != 0 || n.regions.live() != 0 {
		n.mu.Unlock()
		return fmt.Errorf("close nic: %d vis, %d completion queues, %d listeners, %d regions remain: %w",
			n.vis, n.cqs, len(n.listeners), n.regions.live(), ErrResource)
	}
	n.closed = true
	arenas := n.arenas
	n.arenas = nil
	n.mu.Unlock()
	var first error
	for a := range arenas {
		if err := a.unmap(); err != nil && first == nil {
			first = err
		}
	}
	if err := n.adapter.Close(); err != nil && first == nil {
		first = fmt.Errorf("close %s device: %w", n.name, err)
	}
	return first
}
