package roce

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/wire"
)

// QueuePairs is the optional capability of an adapter to make connections
// without the connection manager, with programs that exchange queue pair
// parameters out of band. Package interop uses it.
type QueuePairs interface {
	// CreateQueuePair creates one end of a connection, at the local address
	// and UDP port 4791, to which such peers send. Both ends must use the same
	// path MTU, in bytes; 0 is the MTU of the path to the peer.
	CreateQueuePair(peer netip.Addr, mtu int, cfg via.LinkConfig) (*QueuePair, error)
}

// QueuePair is one end of a connection whose peer is not known yet. Either
// Connect or Close ends its use.
type QueuePair struct {
	Number uint32     // 24 bits
	PSN    uint32     // 24 bits: of the first packet that this end sends
	Local  netip.Addr // source address of its packets

	link *link
	peer netip.Addr
	mtu  wire.MTU
}

// CreateQueuePair implements [QueuePairs].
func (a *adapter) CreateQueuePair(peer netip.Addr, mtu int, cfg via.LinkConfig) (*QueuePair, error) {
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
	q := &QueuePair{PSN: uint32(random() & (1<<24 - 1)), Local: local, peer: peer.Unmap()}
	if q.mtu, err = e.mtuTo(q.peer); err != nil {
		return nil, err
	}
	for mtu != 0 && q.mtu.Bytes() > mtu && q.mtu > wire.MTU256 {
		q.mtu--
	}
	if mtu != 0 && q.mtu.Bytes() != mtu {
		return nil, fmt.Errorf("path MTU of %d bytes to %v, which carries %d: %w", mtu, peer, q.mtu.Bytes(), via.ErrInvalidMTU)
	}
	if q.link, err = newLink(a, e, cfg); err != nil {
		return nil, err
	}
	q.Number = q.link.qpn
	return q, nil
}

// Connect creates the connection. The caller owns the link. Its Close sends no
// DREQ, so the peer is not notified.
func (q *QueuePair) Connect(number, psn uint32) (via.Link, error) {
	if number <= wire.GSI || number >= 1<<24 || psn >= 1<<24 {
		return nil, errors.Join(fmt.Errorf("queue pair %#x and PSN %#x: %w", number, psn, via.ErrInvalidParameter), q.Close())
	}
	l := q.link
	l.handshake.psn = wire.PSN(psn)
	err := l.createQP(terms{
		from: netip.AddrPortFrom(q.peer, wire.Port), mtu: q.mtu,
		peer: cm.End{QP: number, Expects: wire.PSN(q.PSN), Resources: 1, RNRRetries: 7},
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to queue pair %#x of %v: %w", number, q.peer, err), q.Close())
	}
	return l, nil
}

// Close discards the end.
func (q *QueuePair) Close() error { return q.link.Close() }
