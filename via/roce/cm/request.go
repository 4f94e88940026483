package cm

import (
	"fmt"
	"net/netip"

	"github.com/viablk/viablk/via/roce/wire"
)

// ID identifies a connection: the local communication ID. It is random, never
// 0, and not used again before the connection is released.
type ID uint32

// End is what one end tells the other about its queue pair.
type End struct {
	QP      uint32   // 24 bits, 2 at least; not used by another connection until Released
	Expects wire.PSN // first PSN that it receives, the other end sends

	Resources uint8 // RDMA reads that it serves at once
	// RDMA reads that it would have in flight; at most the other's Resources
	Depth uint8

	// 3 bits: RNR NAKs in a row before the other end gives up; 7: no limit
	RNRRetries uint8

	// Room bounds the packets in flight to this end, between viablk ends: it is
	// what the receive buffer holds. 0 means unknown; 24 bits.
	Room uint32

	// Tag is what packets to this end carry, between viablk ends that both
	// state one. 0 is none.
	Tag uint64
}

// Request describes a connection to request.
type Request struct {
	Remote  netip.AddrPort // the peer's endpoint; [wire.Port] unless a viablk end
	Service wire.ServiceID // service of the listener
	End     End
	MTU     wire.MTU // of the path

	Unreliable   bool         // UC instead of RC
	Retries      uint8        // 3 bits: how often the peer is to repeat a packet
	AckTimeout   wire.Timeout // after which the peer is to repeat it
	TrafficClass uint8        // DSCP and ECN of the path

	// Private is for the peer's consumer: [wire.UserSize] bytes at most for a
	// service of the TCP port space, [MaxPrivate] for others.
	Private []byte
}

// MaxPrivate is the longest private data of a Request for a service that is not
// of an IP port space, bytes.
const MaxPrivate = wire.UserSize + wire.CMASize

// Answer accepts a connection.
type Answer struct {
	End      End
	AckDelay wire.Timeout // the longest time until a packet is acknowledged

	// Private is for the peer's consumer, 184 bytes at most.
	Private []byte
}

// Refusal is why a connection is rejected.
type Refusal struct {
	Reason  wire.Reason // 0 is wire.RejectConsumer
	MTU     wire.MTU    // with wire.RejectInvalidMTU: one that would do
	Private []byte      // for the peer's consumer, 144 bytes at most
}

// check refuses what cannot be sent.
func (e *End) check() error {
	switch {
	case !isQueuePair(e.QP):
		return fmt.Errorf("queue pair %#x: %w", e.QP, ErrRequest)
	case e.Expects >= 1<<24:
		return fmt.Errorf("PSN %#x: %w", uint32(e.Expects), ErrRequest)
	case e.Room >= 1<<24:
		return fmt.Errorf("room for %d packets: %w", e.Room, ErrRequest)
	case e.RNRRetries > 7:
		return fmt.Errorf("RNR retries %d: %w", e.RNRRetries, ErrRequest)
	}
	return nil
}

// isQueuePair reports whether a number is valid for a connection's queue pair.
func isQueuePair(qp uint32) bool { return qp > wire.GSI && qp < 1<<24 }

// check refuses what cannot be sent.
func (r *Request) check() error {
	switch {
	case !r.Remote.IsValid() || r.Remote.Addr().IsUnspecified() || r.Remote.Port() == 0:
		return fmt.Errorf("remote address %v: %w", r.Remote, ErrRequest)
	case !r.MTU.IsValid():
		return fmt.Errorf("path MTU code %d: %w", r.MTU, ErrRequest)
	case r.Retries > 7 || r.AckTimeout > 31:
		return fmt.Errorf("retries %d, time-out code %d: %w", r.Retries, r.AckTimeout, ErrRequest)
	}
	return r.End.check()
}
