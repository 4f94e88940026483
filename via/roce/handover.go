package roce

import (
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via/roce/port"
)

// Socket is the UDP socket of an address whose listeners move to another
// process, or come from one. Connections do not move: packets for their queue
// pairs are those for unknown ones, as after a restart.
type Socket struct {
	Local netip.AddrPort
	FD    int
}

// Sockets are those of another process that this one takes over from. Its
// methods are safe for concurrent use.
type Sockets struct {
	mu sync.Mutex
	// +checklocks:mu
	given map[netip.AddrPort]int
}

// NewSockets returns the sockets of another process. It owns the descriptors.
func NewSockets(given []Socket) *Sockets {
	s := &Sockets{given: make(map[netip.AddrPort]int)}
	for _, x := range given {
		if before, ok := s.given[x.Local]; ok {
			_ = unix.Close(before)
		}
		s.given[x.Local] = x.FD
	}
	return s
}

// claim returns the descriptor for an address, which the caller owns, -1 if
// there is none.
func (s *Sockets) claim(local netip.AddrPort) int {
	if s == nil {
		return -1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fd, ok := s.given[local]
	if !ok {
		return -1
	}
	delete(s.given, local)
	return fd
}

// Close closes the sockets that no endpoint has claimed.
func (s *Sockets) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for local, fd := range s.given {
		_ = unix.Close(fd)
		delete(s.given, local)
	}
}

// AdoptSockets has the endpoints that open from now on use sockets of another
// process.
func (p *Provider) AdoptSockets(s *Sockets) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sockets = s
}

// HandOver returns further descriptors of the sockets at which the provider
// listens, other than those of Ethernet links. The caller owns them, and gives
// them to another process once InUse is false for the address. The provider
// goes on until then. An error changes nothing.
func (p *Provider) HandOver() (all []Socket, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.endpoints {
		m, ok := e.port.(port.Mover)
		if !ok || !e.listens() {
			continue
		}
		fd, err := m.CopySocket()
		if err != nil {
			for _, x := range all {
				_ = unix.Close(x.FD)
			}
			return nil, fmt.Errorf("hand over %v: %w", e.local, err)
		}
		all = append(all, Socket{e.local, fd})
	}
	return all, nil
}

// InUse reports whether the provider still receives packets to an address.
func (p *Provider) InUse(local netip.AddrPort) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.endpoints[local] != nil
}

// listens reports whether the endpoint has a listener.
func (e *endpoint) listens() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.services) > 0
}

// openSocket opens the port of kernel sockets at an address, with the socket of
// another process if there is one.
//
// +checklocks:p.mu
func (p *Provider) openSocket(local netip.AddrPort) (port.Port, error) {
	o := p.options.udp()
	if fd := p.sockets.claim(local); fd >= 0 {
		return port.AdoptUDP(fd, local, o)
	}
	return port.OpenUDP(local, o)
}
