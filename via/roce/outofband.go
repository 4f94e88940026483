package roce

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/oob"
	"github.com/viablk/viablk/via/roce/wire"
)

// OutOfBand is the optional capability of an adapter to make connections without
// the connection manager, for programs whose two ends tell each other of their
// queue pairs in a way of their own, such as the exchange of package oob.
type OutOfBand interface {
	// Prepare makes one end of a connection, from the local address and UDP port
	// 4791, where such peers send to. The path MTU, in bytes, is part of what both
	// ends know; 0 is what the path to the peer carries.
	Prepare(peer netip.Addr, mtu int, cfg via.LinkConfig) (*Half, error)
}

// Half is one end of a connection that does not know the other. Either Connect or
// Close ends its use.
type Half struct {
	Local oob.End // what the peer is to be told

	link *link
	peer netip.Addr
	mtu  wire.MTU
}

// Prepare implements [OutOfBand].
func (a *adapter) Prepare(peer netip.Addr, mtu int, cfg via.LinkConfig) (*Half, error) {
	local := a.local.Addr()
	if !local.IsValid() {
		var err error
		if local, err = sourceFor(peer); err != nil {
			return nil, err
		}
	}
	e, err := a.endpoint(netip.AddrPortFrom(local, a.provider.options.Port))
	if err != nil {
		return nil, err
	}
	defer e.release()
	a.use(e)
	h := &Half{peer: peer.Unmap()}
	if h.mtu, err = e.mtuTo(h.peer); err != nil {
		return nil, err
	}
	for mtu != 0 && h.mtu.Bytes() > mtu && h.mtu > wire.MTU256 {
		h.mtu--
	}
	if mtu != 0 && h.mtu.Bytes() != mtu {
		return nil, fmt.Errorf("path MTU of %d bytes to %v, which carries %d: %w", mtu, peer, h.mtu.Bytes(), via.ErrInvalidMTU)
	}
	if h.link, err = newLink(a, e, cfg); err != nil {
		return nil, err
	}
	h.Local = oob.End{QP: h.link.qpn, PSN: uint32(random() & (1<<24 - 1)), GID: local}
	return h, nil
}

// Connect makes the connection. The link is the caller's; it has no farewell, so
// the peer does not hear of its end.
func (h *Half) Connect(peer oob.End) (via.Link, error) {
	if peer.QP <= wire.GSI || peer.QP >= 1<<24 || peer.PSN >= 1<<24 {
		return nil, errors.Join(fmt.Errorf("queue pair %#x and PSN %#x: %w", peer.QP, peer.PSN, via.ErrInvalidParameter), h.Close())
	}
	l := h.link
	l.psn = wire.PSN(peer.PSN)
	err := l.enter(terms{
		from: netip.AddrPortFrom(h.peer, wire.Port), mtu: h.mtu,
		peer: cm.End{QP: peer.QP, Expects: wire.PSN(h.Local.PSN), Resources: 1, RNRRetries: 7},
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to queue pair %#x of %v: %w", peer.QP, h.peer, err), h.Close())
	}
	return l, nil
}

// Close gives the end up.
func (h *Half) Close() error { return h.link.Close() }
