package cm

import (
	"net/netip"
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// Receive handles a packet to queue pair 1 from an address, with a right ICRC
// and accepted by [wire.Packet.Decode]. It counts and drops packets that are
// not messages of the connection manager or not from the right end. The caller
// owns the packet again when Receive returns.
func (m *Manager) Receive(from netip.AddrPort, p *wire.Packet, now time.Duration) {
	m.counters.Received++
	if p.Opcode != wire.UDSendOnly || p.DestQP != wire.GSI ||
		p.DETH.QKey != wire.GSIQKey || p.DETH.SourceQP != wire.GSI || !from.IsValid() {
		m.counters.Malformed++
		return
	}
	attribute, _, r := wire.PeekMAD(p.Payload)
	if r != wire.Accepted {
		m.counters.Malformed++
		return
	}
	switch b := p.Payload; attribute {
	case wire.AttributeREQ:
		m.receiveREQ(from, b, now)
	case wire.AttributeMRA:
		m.receiveMRA(from, b, now)
	case wire.AttributeREJ:
		m.receiveREJ(from, b, now)
	case wire.AttributeREP:
		m.receiveREP(from, b, now)
	case wire.AttributeRTU:
		m.receiveRTU(from, b)
	case wire.AttributeDREQ:
		m.receiveDREQ(from, b, now)
	case wire.AttributeDREP:
		m.receiveDREP(from, b, now)
	}
}

// find returns the connection of a handshake message, or nil if there is none
// or the message is not from its peer. The peer's ID may be unknown yet.
func (m *Manager) find(from netip.AddrPort, local, remote uint32, tid uint64) *connection {
	c := m.table.byID[ID(local)]
	switch {
	case c == nil:
		m.counters.UnknownID++
		return nil
	case !c.isFrom(from), c.tid != tid, c.remoteID != 0 && remote != c.remoteID:
		m.counters.BadSource++
		return nil
	}
	return c
}

// isFrom reports whether an address is the peer's. Viablk ends send from where
// they receive, others from any port.
func (c *connection) isFrom(from netip.AddrPort) bool {
	return plain(from.Addr()) == plain(c.peer.Addr()) && (!c.sameKind || from.Port() == c.peer.Port())
}

// answerTo returns where the sender of a message receives.
func answerTo(from netip.AddrPort, sameKind bool) netip.AddrPort {
	if sameKind {
		return from
	}
	return netip.AddrPortFrom(from.Addr(), wire.Port)
}
