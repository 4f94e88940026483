package cm

import (
	"net/netip"

	"github.com/viablk/viablk/via/roce/wire"
)

// DatagramSize is the length of a datagram without its ICRC, bytes.
const DatagramSize = wire.BTHSize + wire.DETHSize + wire.MADSize

// Datagram is a packet that is to be sent: a UD SEND Only from our queue pair 1
// to the peer's. There is no pad; the ICRC goes behind Bytes.
type Datagram struct {
	To    netip.AddrPort
	Bytes [DatagramSize]byte
}

// output is what waits to be sent.
type output struct {
	queue []letter
	pkey  uint16
	psn   wire.PSN
}

// letter is one message and where it goes.
type letter struct {
	to  netip.AddrPort
	mad [wire.MADSize]byte
}

// maxOutput bounds the messages that wait: strangers cause one for each of
// theirs.
const maxOutput = 1024

// add queues a message. It returns false if there is no room.
func (o *output) add(to netip.AddrPort, mad *[wire.MADSize]byte) bool {
	if len(o.queue) == maxOutput {
		return false
	}
	o.queue = append(o.queue, letter{to, *mad})
	return true
}

// next takes the oldest message and makes a datagram of it.
func (o *output) next(d *Datagram) bool {
	if len(o.queue) == 0 {
		o.queue = nil
		return false
	}
	l := &o.queue[0]
	p := wire.Packet{
		BTH:  wire.BTH{Opcode: wire.UDSendOnly, PKey: o.pkey, DestQP: wire.GSI, PSN: o.psn},
		DETH: wire.DETH{QKey: wire.GSIQKey, SourceQP: wire.GSI},
	}
	o.psn = o.psn.Add(1)
	d.To = l.to
	copy(d.Bytes[p.Put(d.Bytes[:], wire.MADSize):], l.mad[:])
	o.queue = o.queue[1:]
	return true
}
