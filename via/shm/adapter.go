package shm

import (
	"fmt"
	"sync"
	"time"

	"github.com/viablk/viablk/via"
)

// Options configure the provider. The zero value is the default.
type Options struct {
	// AdmitUIDs are the users, beside the process's own and root, whose
	// processes may connect. If there are any, the socket's mode is 0666, and
	// its directory decides who reaches it.
	AdmitUIDs []uint32

	// Sockets, if not nil, are what the process has of the one before, and what
	// it hands over.
	Sockets *Sockets
}

// New returns the provider.
func New(opts Options) via.Provider {
	return provider{opts, timeouts{handshake: 5 * time.Second, access: 2 * time.Second, room: time.Second}}
}

type provider struct {
	opts     Options
	timeouts timeouts
}

// timeouts is how long this end waits for a peer.
type timeouts struct {
	// handshake is the time for a message of the handshake.
	handshake time.Duration
	// access is the time that a peer may be inside a copy after the region was
	// withdrawn. A copy takes some hundred microseconds at most; only a stopped
	// or hostile process takes longer.
	access time.Duration
	// room is the time that the rest of a long unreliable message waits for a
	// peer that reads nothing.
	room time.Duration
}

// Name returns "shm".
func (provider) Name() string { return "shm" }

// Open opens the only device, "".
func (p provider) Open(device string) (via.Adapter, error) {
	if device != "" {
		return nil, fmt.Errorf("no such device: %w", via.ErrInvalidParameter)
	}
	return &adapter{
		opts: p.opts, timeouts: p.timeouts,
		links: make(map[*link]struct{}), exposed: make(map[*via.Memory]struct{}),
	}, nil
}

// adapter is VIA's kernel agent: it holds the links and the regions that are
// exposed to peers.
type adapter struct {
	opts     Options
	timeouts timeouts

	mu sync.Mutex // control path only; nothing blocks under it
	// +checklocks:mu
	links map[*link]struct{}
	// +checklocks:mu
	exposed map[*via.Memory]struct{} // regions with remote access
	// +checklocks:mu
	lingering []*lingeringLink
}

var limits = via.Limits{
	MaxDiscriminatorLen:    via.MaxDiscriminatorLen,
	MaxRegisterBytes:       maxArenaSize, // a peer maps no more
	MaxRegisterRegions:     maxRegions,
	MaxRegisterBlockBytes:  maxArenaSize,
	MaxVI:                  1 << 16,
	MaxDescriptorsPerQueue: 1 << 14,
	MaxSegmentsPerDesc:     1024,
	MaxCQ:                  1 << 16,
	MaxCQEntries:           1 << 20,
	MaxTransferSize:        1 << 30,
	NativeMTU:              maxFragment,
	MaxPtags:               1 << 16,
	ReliabilityLevels:      via.UnreliableDelivery | via.ReliableDelivery | via.ReliableReception,
	RdmaReadLevels:         via.ReliableDelivery | via.ReliableReception,
	PostsCopy:              true,
}

// Limits returns the provider's limits.
func (a *adapter) Limits() via.Limits { return limits }

// MapArena maps a memfd.
func (a *adapter) MapArena(size int) (via.ArenaMemory, error) { return newArena(a, size) }

// NewCQ creates a completion queue.
func (a *adapter) NewCQ(entries int) (via.AdapterCQ, error) { return newCQ(entries) }

// Accessed reports whether a peer may be inside a copy to or from a region that
// was withdrawn from it.
//
// The links of an adapter have exposures of that adapter.
// +checklocksignore
func (a *adapter) Accessed(m *via.Memory) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for l := range a.links {
		if _, ok := l.exposure.exposed[m]; !ok && l.exposure.hazard() == hazardOf(m.Handle()) {
			return true
		}
	}
	return a.lingersLocked(m)
}

// Close closes the lingering links. Arenas, queues and links are closed
// already.
func (a *adapter) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, g := range a.lingering {
		g.close()
	}
	a.lingering = nil
	return nil
}
