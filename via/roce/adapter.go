package roce

import (
	"net/netip"
	"sync"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/arena"
)

// adapter is an open device: its regions, and the endpoints it connects from.
type adapter struct {
	provider *Provider
	// source of connections; without an address the route decides, port 0 picks
	// a free one
	local   netip.AddrPort
	frames  *frames // the device's Ethernet link; nil uses the provider's ports
	regions regions

	mu sync.Mutex // after provider.mu
	// +checklocks:mu
	outgoing map[netip.Addr]*endpoint
	// +checklocks:mu
	used map[*endpoint]struct{} // Close waits for these once they have no user
}

var limits = via.Limits{
	MaxDiscriminatorLen:    via.MaxDiscriminatorLen,
	MaxRegisterBytes:       arena.MaxSize,
	MaxRegisterRegions:     maxRegions,
	MaxRegisterBlockBytes:  arena.MaxSize,
	MaxVI:                  1 << 14,
	MaxDescriptorsPerQueue: 1 << 14,
	MaxSegmentsPerDesc:     252,
	MaxCQ:                  1 << 14,
	MaxCQEntries:           1 << 20,
	MaxTransferSize:        1 << 30,
	NativeMTU:              4096,
	MaxPtags:               1 << 16,
	ReliabilityLevels:      via.UnreliableDelivery | via.ReliableDelivery | via.ReliableReception,
	RdmaReadLevels:         via.ReliableDelivery | via.ReliableReception,
	NamesRegions:           true, // R_Keys are random
}

// maxRegions bounds the regions of a device.
const maxRegions = 1 << 16

// Limits returns the provider's limits.
func (a *adapter) Limits() via.Limits { return limits }

// MapArena maps anonymous memory.
func (a *adapter) MapArena(size int) (via.ArenaMemory, error) { return arena.New(size) }

// NewCQ creates a completion queue. Queue pairs hold the completions, so it has
// no entries of its own.
func (a *adapter) NewCQ(int) (via.AdapterCQ, error) { return newCQ() }

// Close releases the endpoints, and waits until those without users have ended.
func (a *adapter) Close() error {
	a.mu.Lock()
	outgoing, used := a.outgoing, a.used
	a.outgoing, a.used = nil, nil
	a.mu.Unlock()
	for _, e := range outgoing {
		e.release()
	}
	for e := range used {
		e.awaitEnd()
	}
	return nil
}

// endpoint returns an endpoint of the device and counts one more user.
func (a *adapter) endpoint(local netip.AddrPort) (*endpoint, error) {
	e, err := a.openEndpoint(local)
	if err == nil {
		e.start()
	}
	return e, err
}

// openEndpoint is endpoint for a caller that calls start.
func (a *adapter) openEndpoint(local netip.AddrPort) (*endpoint, error) {
	if a.frames != nil {
		return a.provider.endpoint(local, a.frames.open)
	}
	return a.provider.endpoint(local, nil)
}

// use records an endpoint that Close waits for.
func (a *adapter) use(e *endpoint) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.used != nil {
		a.used[e] = struct{}{}
	}
}
