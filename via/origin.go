package via

import "net/netip"

// Originator is an [Incoming] that knows its origin better than by its host.
type Originator interface {
	// Origin returns the origin, or "" of a peer that may do what this process
	// may.
	Origin() string
}

// Credentialed is an [Incoming] of a process of this host.
type Credentialed interface {
	// PeerUID returns the user ID that the kernel reports of the process.
	PeerUID() uint32
}

// Wrapper is an [Incoming] around one of a provider.
type Wrapper interface {
	// Unwrap returns the request of the provider.
	Unwrap() Incoming
}

// request returns the provider's own request, nil if there is none.
func (r *ConnRequest) request() Incoming {
	if r == nil {
		return nil
	}
	in := r.in
	for {
		w, ok := in.(Wrapper)
		if !ok {
			return in
		}
		in = w.Unwrap()
	}
}

// PeerUID returns the user ID of the peer, if the provider knows it from the
// kernel.
func (r *ConnRequest) PeerUID() (uid uint32, ok bool) {
	c, ok := r.request().(Credentialed)
	if !ok {
		return 0, false
	}
	return c.PeerUID(), true
}

// Origin names what a consumer may limit by: connections of one origin are
// those of one IPv4 address, one IPv6 network of 64 bits, of which one host has
// all addresses, one local user, or one host of another fabric. It is empty of
// a peer that needs no limits, as it has the rights of this process.
func (r *ConnRequest) Origin() string {
	in := r.request()
	if in == nil {
		return ""
	}
	if o, ok := in.(Originator); ok {
		return o.Origin()
	}
	host := in.RemoteHost()
	at, err := netip.ParseAddrPort(host)
	if err != nil {
		return host
	}
	ip := at.Addr().Unmap()
	if ip.Is4() || ip.IsLinkLocalUnicast() { // all neighbours have the same 64 bits
		return ip.String()
	}
	network, err := ip.Prefix(64)
	if err != nil {
		return ip.String()
	}
	return network.String()
}
