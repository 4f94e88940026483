// Package port carries RoCE packets between one local address and its peers:
// kernel UDP sockets, Ethernet frames, or memory. It handles addresses and the
// ICRC, which covers them, but no connections.
//
// A port has shards, so that workers of different queue pairs share nothing: a
// packet for queue pair q arrives at shard [ShardOf](q).
package port

import (
	"net/netip"
	"time"

	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// Shards is the number of shards of a port. Shard 0 is the connection
// manager's.
const Shards = 64

// ShardOf returns the shard at which packets for a queue pair arrive: 0 for the
// general services interface, the low six bits of the number for all others. A
// queue pair whose low bits are 0 shares shard 0 with it.
func ShardOf(qp uint32) int {
	if qp == wire.GSI {
		return 0
	}
	return int(qp % Shards)
}

// Port is one local address. It is safe for concurrent use.
type Port interface {
	// Local returns the source address of all packets.
	Local() netip.AddrPort

	// Shard opens a shard, or returns it if it is open. They are opened in
	// order from 0 on and stay open until the port is closed. A packet whose
	// shard is not open arrives at one that is.
	Shard(i int) (Shard, error)

	// Peer returns a destination for Send. An IPv4-mapped IPv6 address is IPv4.
	Peer(to netip.AddrPort) (Peer, error)

	// LinkMTU returns the MTU of the path to an address, the size of an IP
	// packet in bytes, as known now; routers may lower it when a long packet is
	// sent.
	LinkMTU(to netip.Addr) (int, error)

	// ReceiveRoom returns how many of the longest packets a shard buffers,
	// about, until Receive returns them. Packets beyond that are lost.
	ReceiveRoom() int

	// Offloads returns the segmentation offloads in use.
	Offloads() Offloads

	// Close closes the port and its shards, which must not be in use, and waits
	// for its goroutines. Later calls return net.ErrClosed.
	Close() error
}

// Shard sends packets and receives those that are steered to it. One goroutine
// at a time uses a shard; FD and Counters are safe for concurrent use. Only
// Send may block, and no method allocates.
type Shard interface {
	// FD returns a file descriptor that is constant for the shard's life. After
	// Receive has returned 0, it is readable when packets arrive.
	FD() int

	// Receive stores packets that have arrived and returns their number, 0 if
	// there is none. They are valid until the next Receive. Their bytes are
	// private memory, [wire.MinPacket] at least and [wire.MaxPacket] at most.
	// They may belong to another shard: the caller checks the queue pair.
	Receive(dst []Arrival) (int, error)

	// Intact reports whether the ICRC of an arrival is right. It is separate
	// from Receive so that packets from unauthenticated peers cost no checksum.
	Intact(a *Arrival) bool

	// Send seals packets and sends them in order. If the device has no room it
	// waits for [SendTimeout] at most and drops the rest, as a network may. An
	// error means that the port is unusable, or that a peer is unreachable
	// (packets to other peers are sent).
	Send(spans []Span) error

	// Counters returns the shard's counters since it was opened.
	Counters() Counters
}

// SendTimeout bounds the wait of Send for room in the device.
const SendTimeout = time.Millisecond

// Arrival is a packet that arrived.
type Arrival struct {
	From  netip.AddrPort // in the form of [Peer.Addr]
	Bytes []byte         // BTH to ICRC

	// State of the port for Intact.
	identification wire.Identification // assumed, unless known
	known          bool
}

// DestQP returns the queue pair that the packet is for, and false if the packet
// is too short to name one.
func (a *Arrival) DestQP() (uint32, bool) {
	if len(a.Bytes) < wire.MinPacket {
		return 0, false
	}
	return destQP(a.Bytes), true
}

// destQP returns the queue pair that a packet is for.
func destQP(packet []byte) uint32 { return be.Uint32(packet[offsetQP:]) & (1<<24 - 1) }

// offsetQP is the offset of the word whose low 24 bits are the queue pair.
const offsetQP = 4

// Span is a list of packets to one destination, each [wire.MaxPacket] bytes at
// most. A run does not cross spans: Joins of the first packet is ignored.
type Span struct {
	To      Peer // of the same port
	Packets []rc.Packet
}

// Offloads tell which segmentation offloads are in use.
type Offloads struct {
	Segmentation bool // UDP_SEGMENT or equivalent
	Coalescing   bool // UDP_GRO or equivalent
}

// Counters are the counters of a shard. Sent/SendCalls is the number of packets
// per system call.
type Counters struct {
	Sent, SendCalls        uint64 // packets; system calls
	Received, ReceiveCalls uint64 // packets; system calls that returned some
	EmptyCalls             uint64 // system calls that returned none
	BytesSent              uint64 // BTH to ICRC
	BytesReceived          uint64
	Dropped                uint64 // packets that the device or the route refused
	Overrun                uint64 // packets that overran the receive buffer
	Malformed              uint64 // datagrams shorter or longer than any packet
	BadICRC                uint64
}
