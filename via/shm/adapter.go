package shm

import (
	"fmt"
	"sync"
	"time"

	"github.com/viablk/viablk/via"
)

// Options configure the provider. The zero value is the default.
type Options struct {
	// AdmitUIDs are the users, beside the process's own and root, whose processes
	// may connect. With any, the socket's mode is 0666 and its directory decides who
	// reaches it.
	AdmitUIDs []uint32
}

// New returns the provider.
func New(opts Options) via.Provider {
	return provider{opts, patience{handshake: 5 * time.Second, access: 2 * time.Second, room: time.Second}}
}

type provider struct {
	opts     Options
	patience patience
}

// patience is how long this end waits for a peer.
type patience struct {
	// handshake is the time for a message of the handshake.
	handshake time.Duration
	// access is the time that a peer may be inside a copy after the region was
	// withdrawn. A copy takes at most some hundred microseconds; only a stopped or
	// hostile process takes longer.
	access time.Duration
	// room is the time that the rest of a long unreliable message waits for a peer
	// that does not move.
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
		opts: p.opts, patience: p.patience,
		links: make(map[*link]struct{}), exposed: make(map[*via.Memory]struct{}),
	}, nil
}

// adapter is the kernel agent's part: it knows the links and the regions that
// are exposed to peers.
type adapter struct {
	opts     Options
	patience patience

	mu      sync.Mutex // control path only; nothing blocks under it
	links   map[*link]struct{}
	exposed map[*via.Memory]struct{} // regions with remote access
	ghosts  []*ghost
}

var limits = via.Limits{
	MaxDiscriminatorLen:    via.MaxDiscriminatorLen,
	MaxRegisterBytes:       maxArenaSize, // a peer maps no more
	MaxRegisterRegions:     regionSlots,
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

// Close lets go of ghosts; arenas, queues and links are gone.
func (a *adapter) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, g := range a.ghosts {
		g.close()
	}
	a.ghosts = nil
	return nil
}
