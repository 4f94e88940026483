package cm_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/wire"
)

// script is a Manager and a scripted peer.
type script struct {
	*box
	id  cm.ID  // the connection
	tid uint64 // of its handshake
	end uint64 // of the Manager's DREQ

	peer   netip.AddrPort // the source of the peer's messages
	peerID uint32
	peerQP uint32
	qp     uint32 // of this end
	guid   uint64
	vendor uint32
}

// newScript returns a Manager with a listener, and a peer that is not a viablk
// end: it sends from any port and receives at 4791.
func newScript(t *testing.T) *script { return newScriptOf(t, nil) }

// newScriptOf is newScript with another configuration.
func newScriptOf(t *testing.T, change func(*cm.Config)) *script {
	s := &script{
		box: newBox(t, "10.0.0.1:4791", change), tid: 0x7123456789,
		peer: netip.MustParseAddrPort("10.0.0.2:51234"), peerID: 0xaabbccdd, peerQP: 0x222, qp: 0x111,
		guid: 0x505400fffe770002,
	}
	s.m.Listen(service)
	return s
}

// foreign returns the address at which a peer that is no viablk end receives.
func (s *script) foreign() netip.AddrPort { return netip.AddrPortFrom(s.peer.Addr(), wire.Port) }

func (s *script) req() *wire.REQ {
	req := &wire.REQ{
		TID: s.tid, LocalID: s.peerID, VendorID: s.vendor, ServiceID: service, LocalGUID: s.guid,
		LocalQP: s.peerQP, ResponderResources: 1, InitiatorDepth: 2, RemoteTimeout: 20,
		LocalTimeout: 20, StartingPSN: 0x886bac, RetryCount: 7, PKey: wire.DefaultPKey,
		MTU: wire.MTU1024, RNRRetryCount: 7, MaxCMRetries: 15,
		Primary: wire.Path{
			LocalLID: wire.NoLID, RemoteLID: wire.NoLID,
			LocalGID: s.peer.Addr().As16(), RemoteGID: s.addr.Addr().As16(), HopLimit: 64, AckTimeout: 19,
		},
	}
	h := wire.CMA{SrcPort: 0xce3e, Src: s.peer.Addr(), Dst: s.addr.Addr()}
	copy(req.Private[h.Encode(req.Private[:]):], "hello")
	return req
}

func (s *script) rep() *wire.REP {
	return &wire.REP{
		TID: s.tid, LocalID: s.peerID, RemoteID: uint32(s.id), LocalQP: s.peerQP, StartingPSN: 0x700001,
		ResponderResources: 1, InitiatorDepth: 1, TargetAckDelay: 15, RNRRetryCount: 7, LocalGUID: s.guid,
	}
}

func (s *script) rtu() *wire.RTU {
	return &wire.RTU{TID: s.tid, LocalID: s.peerID, RemoteID: uint32(s.id)}
}

func (s *script) rej(reason wire.Reason) *wire.REJ {
	return &wire.REJ{TID: s.tid, LocalID: s.peerID, RemoteID: uint32(s.id), Reason: reason}
}

// gone is the REJ of an active end that gave up before it knew the ID.
func (s *script) gone() *wire.REJ {
	rej := s.rej(wire.RejectTimeout)
	rej.RemoteID, rej.Answered, rej.ARILength = 0, wire.AnsweredOther, 8
	binary.BigEndian.PutUint64(rej.ARI[:], s.guid)
	return rej
}

func (s *script) mra(about wire.Answered) *wire.MRA {
	return &wire.MRA{TID: s.tid, LocalID: s.peerID, RemoteID: uint32(s.id), Answered: about, ServiceTimeout: 20}
}

func (s *script) dreq() *wire.DREQ {
	return &wire.DREQ{TID: 0x99, LocalID: s.peerID, RemoteID: uint32(s.id), RemoteQP: s.qp}
}

func (s *script) drep() *wire.DREP {
	return &wire.DREP{TID: s.end, LocalID: s.peerID, RemoteID: uint32(s.id)}
}

// deliver passes a message from an address to the Manager.
func (s *script) deliver(from netip.AddrPort, msg wire.Message) {
	s.t.Helper()
	s.receive(from, envelop(msg))
}

// envelop returns the packet of a message, without ICRC.
func envelop(msg wire.Message) []byte {
	p := wire.Packet{
		BTH:  wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: wire.GSI},
		DETH: wire.DETH{QKey: wire.GSIQKey, SourceQP: wire.GSI},
	}
	b := make([]byte, cm.DatagramSize)
	msg.Encode(b[p.Put(b, wire.MADSize):])
	return b
}

var attributes = map[wire.Attribute]string{
	wire.AttributeREQ: "REQ", wire.AttributeMRA: "MRA", wire.AttributeREJ: "REJ", wire.AttributeREP: "REP",
	wire.AttributeRTU: "RTU", wire.AttributeDREQ: "DREQ", wire.AttributeDREP: "DREP",
}

// open decodes the message in a datagram.
func open(t *testing.T, b []byte) wire.Message {
	t.Helper()
	attribute, _, _ := wire.PeekMAD(b[cm.DatagramSize-wire.MADSize:])
	m := map[wire.Attribute]wire.Message{
		wire.AttributeREQ: new(wire.REQ), wire.AttributeMRA: new(wire.MRA), wire.AttributeREJ: new(wire.REJ),
		wire.AttributeREP: new(wire.REP), wire.AttributeRTU: new(wire.RTU),
		wire.AttributeDREQ: new(wire.DREQ), wire.AttributeDREP: new(wire.DREP),
	}[attribute]
	if r := m.Decode(b[cm.DatagramSize-wire.MADSize:]); r != wire.Accepted {
		t.Fatal(r)
	}
	return m
}

// received returns the Manager's next message and requires its type.
func received[M wire.Message](s *script) M {
	s.t.Helper()
	var d cm.Datagram
	if !s.m.Emit(&d) {
		s.t.Fatal("nothing is sent")
	}
	m, ok := open(s.t, d.Bytes[:]).(M)
	if !ok {
		s.t.Fatalf("%T is sent, want %T", open(s.t, d.Bytes[:]), m)
	}
	return m
}

// silent requires that the Manager sends nothing.
func (s *script) silent() {
	s.t.Helper()
	var d cm.Datagram
	if s.m.Emit(&d) {
		s.t.Fatalf("%T is sent", open(s.t, d.Bytes[:]))
	}
}

// effects returns the Manager's messages and events, then the state of the
// connection.
func (s *script) effects() string {
	s.t.Helper()
	var all []string
	var d cm.Datagram
	for s.m.Emit(&d) {
		name := ""
		switch msg := open(s.t, d.Bytes[:]).(type) {
		case *wire.REJ:
			name = fmt.Sprintf("REJ %d", msg.Reason)
		default:
			attribute, _, _ := wire.PeekMAD(d.Bytes[cm.DatagramSize-wire.MADSize:])
			name = attributes[attribute]
		}
		if d.To != s.foreign() {
			name += " to " + d.To.String()
		}
		all = append(all, name)
	}
	var e cm.Event
	for s.m.Poll(&e) {
		if e.ID == s.id {
			all = append(all, e.Kind.String())
		} else {
			all = append(all, "other "+e.Kind.String())
		}
	}
	return strings.Join(append(all, s.m.State(s.id)), ", ")
}

// Each of these brings the connection into a state.

func (s *script) asking() {
	s.t.Helper()
	r := s.request(&box{addr: s.foreign()})
	id, err := s.m.Connect(r, s.now)
	if err != nil {
		s.t.Fatal(err)
	}
	s.id, s.tid = id, received[*wire.REQ](s).TID
}

func (s *script) granted() {
	s.t.Helper()
	s.asking()
	s.deliver(s.peer, s.rep())
	s.event(cm.Granted)
}

func (s *script) established() {
	s.t.Helper()
	s.granted()
	if err := s.m.Establish(s.id, s.now); err != nil {
		s.t.Fatal(err)
	}
	received[*wire.RTU](s)
}

func (s *script) requested() {
	s.t.Helper()
	s.deliver(s.peer, s.req())
	s.id = s.event(cm.Requested).ID
}

func (s *script) answered() {
	s.t.Helper()
	s.requested()
	a := *answer
	a.End.QP = s.qp
	if err := s.m.Accept(s.id, &a, s.now); err != nil {
		s.t.Fatal(err)
	}
	received[*wire.REP](s)
}

func (s *script) establishedPassive() {
	s.t.Helper()
	s.answered()
	s.deliver(s.peer, s.rtu())
	s.event(cm.Established)
}

func (s *script) disconnecting() {
	s.t.Helper()
	s.established()
	s.m.Disconnect(s.id, s.now)
	s.end = received[*wire.DREQ](s).TID
}

func (s *script) disconnectingPassive() {
	s.t.Helper()
	s.establishedPassive()
	s.m.Disconnect(s.id, s.now)
	s.end = received[*wire.DREQ](s).TID
}

// disconnected enters time-wait after a connection.
func (s *script) disconnected() {
	s.t.Helper()
	s.disconnecting()
	s.deliver(s.peer, s.drep())
	s.event(cm.Disconnected)
}

// abandoned enters time-wait after a request that this end abandoned.
func (s *script) abandoned() {
	s.t.Helper()
	s.asking()
	s.m.Abandon(s.id, s.now)
	received[*wire.REJ](s)
}

// rejected enters time-wait after a peer's request that the consumer rejected.
func (s *script) rejected() {
	s.t.Helper()
	s.requested()
	if err := s.m.Reject(s.id, &cm.Refusal{}, s.now); err != nil {
		s.t.Fatal(err)
	}
	received[*wire.REJ](s)
}

// withdrawn enters time-wait after a peer's request that the peer gave up.
func (s *script) withdrawn() {
	s.t.Helper()
	s.requested()
	s.deliver(s.peer, s.gone())
	s.event(cm.Rejected)
}

func (s *script) released() {
	s.t.Helper()
	s.disconnected()
	s.wait(3 * time.Second)
	s.event(cm.Released)
}
