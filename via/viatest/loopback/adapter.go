package loopback

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/viablk/viablk/via"
	"golang.org/x/sys/unix"
)

// adapter is an open device.
type adapter struct {
	net *Network

	mu sync.RWMutex
	// +checklocks:mu
	regions map[uint32]*via.Memory // by handle
}

// Limits returns the device's limits.
func (a *adapter) Limits() via.Limits {
	return via.Limits{
		MaxDiscriminatorLen:    via.MaxDiscriminatorLen,
		MaxRegisterBytes:       1 << 40,
		MaxRegisterRegions:     1 << 16,
		MaxRegisterBlockBytes:  1 << 32,
		MaxVI:                  1 << 12,
		MaxDescriptorsPerQueue: 1 << 12,
		MaxSegmentsPerDesc:     252,
		MaxCQ:                  1 << 12,
		MaxCQEntries:           1 << 20,
		MaxTransferSize:        64 << 20,
		NativeMTU:              64 << 20,
		MaxPtags:               1 << 12,
		ReliabilityLevels:      via.UnreliableDelivery | via.ReliableDelivery | via.ReliableReception,
		RdmaReadLevels:         via.ReliableDelivery | via.ReliableReception,
	}
}

// Register makes a region known.
func (a *adapter) Register(m *via.Memory) error {
	a.mu.Lock()
	a.regions[m.Handle()] = m
	a.mu.Unlock()
	return nil
}

// Update waits for the accesses under the former attributes.
func (a *adapter) Update(*via.Memory) error {
	a.net.access.Lock()
	//lint:ignore SA2001 the empty section is the barrier
	a.net.access.Unlock()
	return nil
}

// Accessed returns false: links move data themselves, under a lock.
func (*adapter) Accessed(*via.Memory) bool { return false }

// Deregister withdraws a region and waits for the accesses to it.
func (a *adapter) Deregister(m *via.Memory) error {
	a.mu.Lock()
	delete(a.regions, m.Handle())
	a.mu.Unlock()
	return a.Update(m)
}

// remote returns the memory that an incoming RDMA operation names, and whether
// the link and the region allow it. An operation of no bytes touches nothing:
// only the connection matters. The caller holds Network.access.
func (a *adapter) remote(l *link, u *unit) ([]byte, bool) {
	if u.length == 0 {
		return nil, true
	}
	a.mu.RLock()
	m := a.regions[u.remoteHandle]
	a.mu.RUnlock()
	if m == nil || !m.Live() || m.Tag() != l.cfg.Tag {
		return nil, false
	}
	write := u.op == via.OpRdmaWrite
	if write && !(l.cfg.RdmaWrite && m.RemoteWrite()) || !write && !(l.cfg.RdmaRead && m.RemoteRead()) {
		return nil, false
	}
	at, size := u.remoteAddr-m.Addr(), uint64(len(m.Bytes()))
	if u.remoteAddr < m.Addr() || at > size || uint64(u.length) > size-at {
		return nil, false
	}
	return m.Bytes()[at : at+uint64(u.length)], true
}

// NewCQ creates a completion queue.
func (a *adapter) NewCQ(int) (via.AdapterCQ, error) { return newQueue() }

// Listen starts to accept requests at a host name.
func (a *adapter) Listen(host string, incoming func(via.Incoming)) (via.Listening, error) {
	return a.net.listen(a, host, incoming)
}

// Connect requests a connection.
func (a *adapter) Connect(ctx context.Context, host string, hello []byte, cfg via.LinkConfig) (via.Link, []byte, error) {
	return a.connect(ctx, host, hello, cfg)
}

// DiscoverHosts returns the host names with a listener.
func (a *adapter) DiscoverHosts(ctx context.Context, _ int) ([]via.DiscoveredHost, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("look for listeners: %w: %w", via.ErrTimeout, err)
	}
	return a.net.discoverHosts(), nil
}

// Close has nothing to release.
func (a *adapter) Close() error { return nil }

// MapArena maps anonymous memory.
func (a *adapter) MapArena(size int) (via.ArenaMemory, error) {
	page := os.Getpagesize()
	size = (size + page - 1) &^ (page - 1)
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("mmap %d bytes: %w", size, err)
	}
	return &arena{b: b}, nil
}

// arena is mapped memory.
type arena struct{ b []byte }

// Bytes returns the memory.
func (m *arena) Bytes() []byte { return m.b }

// Discard gives whole pages back and clears the rest of the range.
func (m *arena) Discard(off, n int) error {
	page := os.Getpagesize()
	first, last := (off+page-1)&^(page-1), (off+n)&^(page-1)
	if first >= last {
		clear(m.b[off : off+n])
		return nil
	}
	clear(m.b[off:first])
	clear(m.b[last : off+n])
	if err := unix.Madvise(m.b[first:last], unix.MADV_DONTNEED); err != nil {
		return fmt.Errorf("discard pages: %w", err)
	}
	return nil
}

// Close unmaps the memory.
func (m *arena) Close() error { return unix.Munmap(m.b) }
