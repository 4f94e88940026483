package rdmahost

import (
	"net/netip"
	"sync"
	"sync/atomic"
)

// Bounds of the requests that a listener's consumer holds. It sets up a
// connection for each, even for a spoofed source address.
const (
	MaxRequests        = 128
	MaxRequestsPerAddr = 16
)

// Places counts the requests that a consumer holds, by source address and in
// total. It is safe for concurrent use; the zero value has no request.
type Places struct {
	mu sync.Mutex
	// +checklocks:mu
	byAddr map[netip.Addr]int
	// +checklocks:mu
	taken int
}

// Place is the place of one request.
type Place struct {
	places   *Places
	from     netip.Addr
	released atomic.Bool
}

// Acquire counts a request, and returns nil if a bound does not allow it.
func (p *Places) Acquire(from netip.Addr) *Place {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken >= MaxRequests || p.byAddr[from] >= MaxRequestsPerAddr {
		return nil
	}
	if p.byAddr == nil {
		p.byAddr = make(map[netip.Addr]int)
	}
	p.byAddr[from]++
	p.taken++
	return &Place{places: p, from: from}
}

// Release counts the request no longer. It is idempotent, and does nothing to
// a nil Place.
func (p *Place) Release() {
	if p == nil || p.released.Swap(true) {
		return
	}
	s := p.places
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if s.byAddr[p.from]--; s.byAddr[p.from] == 0 {
		delete(s.byAddr, p.from)
	}
}
