package roce

import (
	"net/netip"
	"sync"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/arena"
)

// adapter is an open device: regions, and endpoints that it connects from.
type adapter struct {
	provider *Provider
	local    netip.AddrPort // connections come from; no address is what the route says, port 0 a free one
	frames   *frames        // that it sends and receives itself; nil leaves that to the provider
	regions  regions

	mu       sync.Mutex // after provider.mu
	outgoing map[netip.Addr]*endpoint
	used     map[*endpoint]struct{} // that Close waits for, if nobody else needs them
}

var limits = via.Limits{
	MaxDiscriminatorLen:    via.MaxDiscriminatorLen,
	MaxRegisterBytes:       arena.MaxSize,
	MaxRegisterRegions:     1 << 16,
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
}

// Limits returns the provider's limits.
func (a *adapter) Limits() via.Limits { return limits }

// MapArena maps anonymous memory.
func (a *adapter) MapArena(size int) (via.ArenaMemory, error) { return arena.New(size) }

// NewCQ creates a completion queue. Entries are the queue pairs' to hold: it
// needs none.
func (a *adapter) NewCQ(int) (via.AdapterCQ, error) { return newCQ() }

// Close lets go of the endpoints, and waits for those that nobody needs any more.
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

// endpoint returns an endpoint of the device, for one user more.
func (a *adapter) endpoint(local netip.AddrPort) (*endpoint, error) {
	if a.frames != nil {
		return a.provider.endpoint(local, a.frames.open)
	}
	return a.provider.endpoint(local, nil)
}

// use notes that the device used an endpoint.
func (a *adapter) use(e *endpoint) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.used != nil {
		a.used[e] = struct{}{}
	}
}
