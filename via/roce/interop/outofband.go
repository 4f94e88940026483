package interop

import (
	"fmt"
	"net/netip"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/roce/interop/oob"
)

// Half is one end of a connection whose peer is not known yet: the two ends
// exchange their parameters out of band, for instance with package oob. Either
// Connect or Close ends its use.
type Half struct {
	Local oob.End // parameters for the peer

	pair *roce.QueuePair
}

// Prepare creates the end of a connection to a peer. Both ends must use the
// same path MTU, in bytes; 0 is the MTU of the path to the peer.
func (e *End) Prepare(peer netip.Addr, mtu int) (*Half, error) {
	pairs, ok := e.adapter.(roce.QueuePairs)
	if !ok {
		return nil, fmt.Errorf("connection without a connection manager: %w", via.ErrNotSupported)
	}
	pair, err := pairs.CreateQueuePair(peer, mtu, e.Config())
	if err != nil {
		return nil, err
	}
	return &Half{Local: oob.End{QP: pair.Number, PSN: pair.PSN, GID: pair.Local}, pair: pair}, nil
}

// Connect creates the connection. The caller owns the link.
func (h *Half) Connect(peer oob.End) (via.Link, error) {
	h.pair.PSN = h.Local.PSN // the caller may have chosen another
	return h.pair.Connect(peer.QP, peer.PSN)
}

// Close discards the end.
func (h *Half) Close() error { return h.pair.Close() }
