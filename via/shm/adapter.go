package shm

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

// Options configure the provider. The zero value is the default.
type Options struct {
	// AdmitUIDs are the users, beside the process's own and root, whose processes
	// may connect.
	AdmitUIDs []uint32
}

// New returns the provider.
func New(opts Options) via.Provider { return provider{opts} }

type provider struct{ opts Options }

// Name returns "shm".
func (provider) Name() string { return "shm" }

// Open opens the only device, "".
func (p provider) Open(device string) (via.Adapter, error) {
	if device != "" {
		return nil, fmt.Errorf("no such device: %w", via.ErrInvalidParameter)
	}
	return &adapter{opts: p.opts, links: make(map[*link]struct{}), exposed: make(map[*via.Memory]struct{})}, nil
}

// adapter is the kernel agent's part: it knows the links and the regions that
// are exposed to peers.
type adapter struct {
	opts Options

	mu      sync.Mutex // control path only
	links   map[*link]struct{}
	exposed map[*via.Memory]struct{} // regions with remote access
}

var limits = via.Limits{
	MaxDiscriminatorLen:    via.MaxDiscriminatorLen,
	MaxRegisterBytes:       1 << 46,
	MaxRegisterRegions:     regionSlots,
	MaxRegisterBlockBytes:  1 << 46,
	MaxVI:                  1 << 16,
	MaxDescriptorsPerQueue: 1 << 14,
	MaxSegmentsPerDesc:     1024,
	MaxCQ:                  1 << 16,
	MaxCQEntries:           1 << 20,
	MaxTransferSize:        1 << 30,
	NativeMTU:              maxFragment,
	MaxPtags:               1 << 16,
	ReliabilityLevels:      via.ReliableDelivery,
	RdmaReadLevels:         via.ReliableDelivery,
}

// Limits returns the provider's limits.
func (a *adapter) Limits() via.Limits { return limits }

// MapArena maps a memfd.
func (a *adapter) MapArena(size int) (via.ArenaMemory, error) { return newArena(size) }

// NewCQ creates a completion queue.
func (a *adapter) NewCQ(entries int) (via.AdapterCQ, error) { return newCQ(entries) }

// Close has nothing left to release: arenas, queues and links are gone.
func (a *adapter) Close() error { return nil }

// Register exposes a region with remote access to the peers of its tag.
func (a *adapter) Register(m *via.Memory) error {
	if !m.RemoteRead() && !m.RemoteWrite() {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.exposed[m] = struct{}{}
	for l := range a.links {
		if l.cfg.Tag == m.Tag() {
			l.expose(m)
		}
	}
	return nil
}

// Deregister withdraws a region from every peer.
func (a *adapter) Deregister(m *via.Memory) error {
	a.mu.Lock()
	delete(a.exposed, m)
	links := a.withdrawLocked(m)
	a.mu.Unlock()
	return awaitAccess(m, links)
}

// Update withdraws the region, waits for accesses under way, and exposes it
// under its present attributes.
func (a *adapter) Update(m *via.Memory) error {
	if err := a.Deregister(m); err != nil {
		return err
	}
	return a.Register(m)
}

// withdrawLocked clears the region's entry at every link and returns them.
//
// +checklocks:a.mu
func (a *adapter) withdrawLocked(m *via.Memory) []*link {
	var links []*link
	for l := range a.links {
		if _, ok := l.exposed[m]; ok {
			delete(l.exposed, m)
			storeWord(l.own.mem, entryOffset(m.Handle()), 0)
			links = append(links, l)
		}
	}
	return links
}

// accessPatience is how long Deregister waits for a peer that is inside a copy.
// A copy takes at most some hundred microseconds; only a stopped or hostile
// process takes longer.
const accessPatience = 2 * time.Second

// errStillAccessed means that the memory must not be used again.
var errStillAccessed = errors.New("a peer is still accessing the region")

// awaitAccess waits until no peer is inside a copy to or from the region. A peer
// that does not come out loses its connection.
func awaitAccess(m *via.Memory, links []*link) error {
	hazard := uint64(m.Handle()) | 1<<63
	deadline := time.Now().Add(accessPatience)
	var err error
	for _, l := range links {
		for l.peerHazard() == hazard && !l.gone.Load() {
			if time.Now().After(deadline) {
				_ = l.conn.CloseWrite()
				err = errStillAccessed
				break
			}
			time.Sleep(10 * time.Microsecond)
		}
	}
	return err
}

// peerHazard loads the region that the peer is accessing. It may be called while
// the link closes: the list's lock keeps the mapping.
func (l *link) peerHazard() uint64 {
	l.adapter.mu.Lock()
	defer l.adapter.mu.Unlock()
	if _, ok := l.adapter.links[l]; !ok {
		return 0
	}
	return loadWord(l.peer.mem, offHazard)
}

// expose enters a region in the link's table; its arena goes first. The
// adapter's lock is held: this is not the data path.
func (l *link) expose(m *via.Memory) {
	mem, ok := m.Arena().Memory().(*arena)
	if !ok || m.Handle()&0xffff >= regionSlots {
		return
	}
	if _, ok := l.sentArenas[mem.id]; !ok {
		if err := l.sendArena(mem); err != nil {
			return // the connection is gone; the agent goroutine reports it
		}
		l.sentArenas[mem.id] = struct{}{}
	}
	l.exposed[m] = struct{}{}
	word := uint64(m.Handle())<<32 | entryLive
	if m.RemoteWrite() {
		word |= entryWrite
	}
	if m.RemoteRead() {
		word |= entryRead
	}
	at := entryOffset(m.Handle())
	storeWord(l.own.mem, at+offEntryAddr, m.Addr())
	storeWord(l.own.mem, at+offEntryLength, uint64(len(m.Bytes())))
	storeWord(l.own.mem, at+offEntryArena, mem.id)
	storeWord(l.own.mem, at+offEntryAt, m.Addr()-addressOf(mem.mem))
	storeWord(l.own.mem, at, word)
}

// add makes a link known and exposes to it what its tag allows.
func (a *adapter) add(l *link) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.links[l] = struct{}{}
	for m := range a.exposed {
		if m.Live() && m.Tag() == l.cfg.Tag {
			l.expose(m)
		}
	}
}

// revoke withdraws everything that is exposed to a link, waits until its peer is
// out of every copy, and forgets the link.
func (a *adapter) revoke(l *link) error {
	a.mu.Lock()
	for m := range l.exposed {
		storeWord(l.own.mem, entryOffset(m.Handle()), 0)
	}
	clear(l.exposed)
	delete(a.links, l)
	a.mu.Unlock()
	deadline := time.Now().Add(accessPatience)
	for loadWord(l.peer.mem, offHazard) != 0 && !l.gone.Load() {
		if time.Now().After(deadline) {
			return errStillAccessed
		}
		time.Sleep(10 * time.Microsecond)
	}
	return nil
}

func closeEvents(fds ...int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
