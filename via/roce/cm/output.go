package cm

import (
	"net/netip"

	"github.com/viablk/viablk/via/roce/wire"
)

// DatagramSize is the length of a datagram without its ICRC, bytes.
const DatagramSize = wire.BTHSize + wire.DETHSize + wire.MADSize

// Datagram is a packet to send: a UD SEND Only from queue pair 1 to the peer's.
// It has no pad; the ICRC follows Bytes.
type Datagram struct {
	To    netip.AddrPort
	Bytes [DatagramSize]byte
}

// output is the queue of messages to send.
type output struct {
	queue []queuedMAD
	first int // index of the oldest; queue is empty behind the last
	pkey  uint16
	psn   wire.PSN
}

// queuedMAD is one message and its destination.
type queuedMAD struct {
	to  netip.AddrPort
	mad [wire.MADSize]byte
}

// maxOutput bounds the queued messages: unknown peers cause one for each of
// theirs.
const maxOutput = 1024

// add queues a message. It returns false if there is no room.
func (o *output) add(to netip.AddrPort, mad *[wire.MADSize]byte) bool {
	if len(o.queue)-o.first == maxOutput {
		return false
	}
	if len(o.queue) == cap(o.queue) && o.first > 0 {
		o.queue = o.queue[:copy(o.queue, o.queue[o.first:])]
		o.first = 0
	}
	o.queue = append(o.queue, queuedMAD{to, *mad})
	return true
}

// next removes the oldest message and makes a datagram of it.
func (o *output) next(d *Datagram) bool {
	if o.first == len(o.queue) {
		o.queue, o.first = o.queue[:0], 0
		return false
	}
	l := &o.queue[o.first]
	p := wire.Packet{
		BTH:  wire.BTH{Opcode: wire.UDSendOnly, PKey: o.pkey, DestQP: wire.GSI, PSN: o.psn},
		DETH: wire.DETH{QKey: wire.GSIQKey, SourceQP: wire.GSI},
	}
	o.psn = o.psn.Add(1)
	d.To = l.to
	copy(d.Bytes[p.Put(d.Bytes[:], wire.MADSize):], l.mad[:])
	o.first++
	return true
}
