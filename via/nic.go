package via

import (
	"fmt"
	"log/slog"
	"sync/atomic"
)

// NIC is an open device: the association of this process with one adapter. Its
// methods are safe for concurrent use. None of them is on the data path.
type NIC struct {
	name    string
	limits  Limits
	agent   *agent
	regions regionTable
	onError atomic.Pointer[func(AsyncError)]
	names   nameService
	notify  notifier
}

// OpenNic opens a device of a provider; "" is its default device (VipOpenNic).
// Each call opens it anew. A device that cannot be opened is ErrResource.
func OpenNic(p Provider, device string) (*NIC, error) {
	if p == nil {
		return nil, fmt.Errorf("open device %q: no provider: %w", device, ErrInvalidParameter)
	}
	a, err := p.Open(device)
	if err != nil {
		return nil, fmt.Errorf("open %s device %q: %w", p.Name(), device, withCode(err, ErrResource))
	}
	n := &NIC{name: p.Name()}
	n.agent = newAgent(a, &n.regions, n.raise)
	n.limits = n.agent.limits
	return n, nil
}

// made reports whether OpenNic made the NIC.
func (n *NIC) made() bool { return n != nil && n.agent != nil }

// Name returns the provider's name.
func (n *NIC) Name() string {
	if n == nil {
		return ""
	}
	return n.name
}

// Limits returns what the NIC can do (VipQueryNic).
func (n *NIC) Limits() Limits {
	if n == nil {
		return Limits{}
	}
	return n.limits
}

// Agent returns the counters of the kernel agent.
func (n *NIC) Agent() *AgentStats {
	if !n.made() {
		return new(AgentStats)
	}
	return &n.agent.stats
}

// Closed reports whether there is no such NIC, or none any more. A NIC that has
// failed is open until it is closed.
func (n *NIC) Closed() bool {
	if !n.made() {
		return true
	}
	n.agent.mu.Lock()
	defer n.agent.mu.Unlock()
	return n.agent.closed
}

// Objects count what a NIC must be rid of before it is closed.
type Objects struct {
	VIs       int
	CQs       int // those of VIs without a completion queue included
	Addresses int // that listeners and peer requests wait at
	Regions   int
}

// Objects returns what there is.
func (n *NIC) Objects() Objects {
	if !n.made() {
		return Objects{}
	}
	return n.agent.objects()
}

// ErrorCallback sets the handler of asynchronous errors (VipErrorCallback); nil
// restores the default, which logs. The handler runs on the goroutine that met
// the error, with no lock held; it may post, and must not wait.
func (n *NIC) ErrorCallback(handler func(AsyncError)) {
	if n == nil {
		return
	}
	if handler == nil {
		n.onError.Store(nil)
		return
	}
	n.onError.Store(&handler)
}

// raise reports an asynchronous error to the handler.
func (n *NIC) raise(e AsyncError) {
	e.NIC = n
	if h := n.onError.Load(); h != nil {
		(*h)(e)
		return
	}
	slog.Warn("via asynchronous error", "event", "provider_error", "nic", n.name, "error", e.Code.String(), "cause", e.Cause)
}

// Close closes the NIC (VipCloseNic). It returns ErrResource while VIs,
// completion queues, listeners or registered memory remain; arenas without
// registered memory are unmapped. Tags go with it.
func (n *NIC) Close() error {
	if !n.made() {
		return noObject("close nic")
	}
	if err := n.agent.close(); err != nil {
		return fmt.Errorf("close %s nic: %w", n.name, err)
	}
	return withCode(n.notify.stop(), ErrResource)
}
