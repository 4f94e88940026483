package cm

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// A denial tells the sender of a data packet that no queue pair here has its
// number, as after a restart: a REJ for a stale connection of which the IDs are
// not known any more. Its private data quotes the packet, between viablk ends
// alone:
//
//	0-3   queue pair number that does not exist
//	4-11  tag of the packet
//
// The tag is a secret of the two ends, and of the path: no other host can deny
// a connection. A host that reads packets of it can end it by a NAK anyway.
const (
	denialAtQP  = 0
	denialAtTag = 4
	denialSize  = denialAtTag + wire.TagSize
)

// Deny denies the queue pair of a packet with a tag.
func (m *Manager) Deny(from netip.AddrPort, qp uint32, tag uint64) {
	var private [denialSize]byte
	binary.BigEndian.PutUint32(private[denialAtQP:], qp)
	wire.PutTag(private[denialAtTag:], tag)
	rej := &wire.REJ{Answered: wire.AnsweredOther, Reason: wire.RejectStale}
	_ = putPrivate(rej.Private[:], private[:], true) // it fits
	m.send(from, rej)
}

// isDenial reports whether a REJ is a denial: all others name a connection.
func isDenial(rej *wire.REJ) bool {
	return rej.LocalID == 0 && rej.RemoteID == 0 && rej.Reason == wire.RejectStale
}

// receiveDenial ends the connection that a peer denies. One that is not
// established, or ends, has other messages to tell.
func (m *Manager) receiveDenial(from netip.AddrPort, rej *wire.REJ, now time.Duration) {
	private, marked := openPrivate(rej.Private[:])
	if !marked || len(private) != denialSize {
		m.counters.Malformed++
		return
	}
	c := m.table.byTag[wire.Tag(private[denialAtTag:])]
	switch {
	case c == nil:
		m.counters.UnknownID++
	case !c.isFrom(from) || c.peerQP != binary.BigEndian.Uint32(private[denialAtQP:]):
		m.counters.BadSource++
	case c.state != established:
		m.counters.Duplicates++
	default:
		m.report(c, Event{Kind: Disconnected, Reason: rej.Reason})
		m.enterTimeWait(c, now)
	}
}
