// Package port carries RoCE packets between one local address and its peers:
// kernel UDP sockets, Ethernet frames, or memory. It knows addresses and the
// checksum that covers them, and nothing of connections.
//
// A port is cut into lanes, so that workers that own different queue pairs never
// meet: a packet for queue pair q arrives at lane [LaneOf](q).
package port

import (
	"net/netip"

	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// Lanes is the number of lanes of a port. Lane 0 is the connection manager's.
const Lanes = 64

// LaneOf returns the lane at which packets for a queue pair arrive: 0 for the
// general services interface, the low six bits of the number for all others. A
// queue pair whose low bits are 0 shares lane 0 with it.
func LaneOf(qp uint32) int {
	if qp == wire.GSI {
		return 0
	}
	return int(qp % Lanes)
}

// Port is one local address. It is safe for concurrent use.
type Port interface {
	// Local returns the source of everything that is sent.
	Local() netip.AddrPort

	// Lane opens a lane, or returns it if it is open. They are opened in order from
	// 0 on and stay open until the port is closed. A packet whose lane is not open
	// arrives at one that is.
	Lane(i int) (Lane, error)

	// Peer prepares for sending to an address. An IPv4 address that is mapped to
	// IPv6 is IPv4.
	Peer(to netip.AddrPort) (*Peer, error)

	// LinkMTU returns how long IP packets to an address may be, bytes, as far as
	// is known now; routers on the way may tell more when a long packet is sent.
	LinkMTU(to netip.Addr) (int, error)

	// ReceiveRoom returns how many of the longest packets a lane holds, about, until
	// Receive takes them. What comes beyond is lost.
	ReceiveRoom() int

	// Offloads returns what the port leaves to the kernel or the device.
	Offloads() Offloads

	// Close closes the port and its lanes, which nobody uses any more, and waits for
	// its goroutines. What is asked of them later has net.ErrClosed for an answer.
	Close() error
}

// Lane sends and receives. One goroutine at a time uses a lane; FD and Counters
// are anyone's. Nothing but Send may wait, nothing allocates.
type Lane interface {
	// FD returns a file descriptor, the same during the lane's life. It is readable
	// when there is something for Receive again, after Receive returned 0.
	FD() int

	// Receive stores packets that have arrived and returns their number; 0 if
	// there is none now. They are valid until the next Receive. Their bytes are
	// memory that nobody else writes, [wire.MinPacket] at least and
	// [wire.MaxPacket] at most. They may be meant for another lane: whoever runs
	// the port looks at the queue pair.
	Receive(dst []Arrival) (int, error)

	// Intact reports whether the ICRC of an arrival is right. It is separate from
	// Receive so that packets from strangers cost no checksum.
	Intact(a *Arrival) bool

	// Send seals packets and sends them in order. If the device has no room it waits
	// a bounded time, 1 ms at most, and drops the rest, as a network may. An error
	// means that nothing can be sent any more, or that a peer cannot be reached
	// (the packets to others are sent).
	Send(spans []Span) error

	// Counters returns what the lane did since it was opened.
	Counters() Counters
}

// Arrival is a packet that arrived.
type Arrival struct {
	From  netip.AddrPort // an address as [Peer.Addr] has it
	Bytes []byte         // BTH to ICRC

	// What the port remembers for Intact.
	identification wire.Identification // a guess, unless known
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

// Span is packets with one destination, each [wire.MaxPacket] bytes at most. Runs
// end with it: that the first packet joins means nothing.
type Span struct {
	To      *Peer
	Packets []rc.Packet
}

// Offloads say who cuts and joins segments.
type Offloads struct {
	Segmentation bool // UDP_SEGMENT, or what does the same
	Coalescing   bool // UDP_GRO, or what does the same
}

// Counters count what a lane did. Sent/SendCalls is how many packets share a
// system call.
type Counters struct {
	Sent, SendCalls        uint64 // packets; system calls
	Received, ReceiveCalls uint64 // packets; system calls that returned some
	EmptyCalls             uint64 // system calls that returned none
	BytesSent              uint64 // BTH to ICRC
	BytesReceived          uint64
	Dropped                uint64 // packets that found no room in the device, or no way to the peer
	Overrun                uint64 // packets that found no room in our receive buffer
	Malformed              uint64 // datagrams that no packet is as short, or as long, as
	BadICRC                uint64
}
