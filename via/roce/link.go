package roce

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// link is one end of a connection. Above handshake only equip changes anything:
// the configuration, with the shard acquired. The other fields belong to
//
//	handshake        the goroutine that connects, until it calls equip
//	bound, failureR… the consumer
//	sends, receives  the consumer, which pushes; the shard's owner, which pops
//	notices          any goroutine, which sets them, and the shard's owner
//	transport        the shard's owner
type link struct {
	adapter  *adapter
	endpoint *endpoint
	shard    *shard
	cfg      via.LinkConfig
	qpn      uint32

	handshake handshake
	bound     bound
	sends     posts
	receives  posts
	notices   notices
	transport transport
	life      atomic.Uint64 // of the queue pair; the shard's owner sets it
	line      *rc.Line      // to the peer's host, from insert on; nil at unreliable delivery

	failureReported bool        // the consumer knows that the shard has failed
	closed          atomic.Bool // Close was called
}

// handshake is what the connection manager knows a link by.
type handshake struct {
	id   cm.ID    // 0 for a connection without a connection manager
	psn  wire.PSN // first PSN of the peer
	tag  uint64   // of the peer's packets, if it knows tags
	peer cm.End
}

// notices tell the owner of a shard to attend to a link.
type notices struct {
	scheduled    atomic.Bool                  // the link is in the shard's pending list
	next         *link                        // in that list
	suspected    atomic.Bool                  // the peer may be gone
	disconnected atomic.Pointer[disconnected] // nil while the peer has not disconnected
}

// disconnected is how the peer has disconnected. The owner of the shard has it
// once it is in the notices.
type disconnected struct {
	finalAck []byte // private data of the DREQ
	gone     bool   // the peer has not disconnected: it does not exist any more
}

// newLink prepares one end: it assigns a shard, a queue pair number and a first
// PSN.
func newLink(a *adapter, e *endpoint, cfg via.LinkConfig) (*link, error) {
	l := &link{adapter: a, endpoint: e, cfg: cfg}
	if !e.acquire() {
		return nil, fmt.Errorf("%v is closed: %w", e.local, via.ErrNotReachable)
	}
	var err error
	if l.shard, err = e.assign(cfg.RecvCQ.(*cq)); err != nil {
		e.release()
		return nil, err
	}
	l.qpn = e.newQP(l.shard.index)
	l.handshake.psn = wire.PSN(random() & (1<<24 - 1))
	l.handshake.tag = newTag()
	l.transport.init(l)
	return l, nil
}

// terms are the negotiated parameters of a connection, and its peer.
type terms struct {
	from     netip.AddrPort
	sameKind bool
	peer     cm.End
	mtu      wire.MTU
}

// insert adds the link to the table of its shard, which keeps the packets of
// the peer from now on.
func (l *link) insert(t terms) error {
	to, err := l.endpoint.port.Peer(t.from)
	if err != nil {
		return err
	}
	r := route{from: t.from, anyPort: !t.sameKind, to: to, mtu: t.mtu}
	if t.peer.Tag != 0 {
		r.tag = l.handshake.tag
	}
	l.handshake.peer = t.peer
	if l.cfg.Reliability != via.UnreliableDelivery {
		l.line = l.endpoint.lines.to(t.from.Addr())
	}
	return l.shard.asOwner(func(g *engine) { g.insert(&l.transport, r) })
}

// equip makes the queues and the queue pair of an inserted link.
func (l *link) equip(cfg via.LinkConfig) error {
	l.sends.init(powerOfTwo(cfg.SendDepth))
	l.receives.init(powerOfTwo(cfg.RecvDepth))
	l.endpoint.reassign(l, cfg.RecvCQ.(*cq))
	var err error
	failure := l.shard.asOwner(func(g *engine) {
		l.cfg = cfg
		err = g.equip(&l.transport)
	})
	return errors.Join(err, failure)
}

// createQP inserts and equips a link that its newLink configured.
func (l *link) createQP(t terms) error {
	if err := l.insert(t); err != nil {
		return err
	}
	return l.equip(l.cfg)
}

// qpConfig returns the configuration of the queue pair.
func (l *link) qpConfig(stash *rc.Stash) rc.Config {
	o, r, peer := &l.endpoint.provider.options, &l.transport.route, &l.handshake.peer
	inFlight := o.InFlight
	if r.anyPort {
		inFlight = min(inFlight, otherKindInFlight)
	}
	cfg := rc.Config{
		Unreliable: l.cfg.Reliability == via.UnreliableDelivery,
		PeerQP:     peer.QP, PSN: peer.Expects, PeerPSN: l.handshake.psn, Tag: peer.Tag, MTU: r.mtu,
		SendDepth: l.cfg.SendDepth, ReceiveDepth: l.cfg.RecvDepth,
		AllowWrite: l.cfg.RdmaWrite, AllowRead: l.cfg.RdmaRead,
		Reads: int(min(maxReads, peer.Resources)), PeerReads: maxReads,
		Window: inFlight, Room: l.endpoint.receiveRoom(), Stash: stash, Selective: !r.anyPort,
		Timeout: o.Timeout, Retries: o.Retries, Line: l.line,
		WaitForReceive: r.anyPort, RNRDelay: rnrDelay, RNRRetries: int(peer.RNRRetries),
	}
	if peer.Room > 0 {
		cfg.Window = min(cfg.Window, int(peer.Room))
	}
	return cfg
}

// maxReads bounds the RDMA Reads in flight of a connection, in each direction.
const maxReads = 16

// otherKindInFlight bounds the packets in flight to a peer of another
// implementation: it does not announce its receive room, and has all packets
// after a gap retransmitted.
const otherKindInFlight = 128

// rnrDelay is the RNR NAK timer sent to a peer of another implementation, the
// default of verbs programs. viablk peers get no RNR NAK: VIA does not define
// one.
const rnrDelay = 640 * time.Microsecond

// receiveRoom is how many request packets a link may have in flight to this
// endpoint, and as many read responses: each half of what a shard's receive
// buffer holds, at most Options.InFlight. The links of a shard share the
// buffer.
func (e *endpoint) receiveRoom() int {
	return max(1, min(e.port.ReceiveRoom()/2, e.provider.options.InFlight))
}

// localEnd returns the parameters of this end that the peer receives.
func (l *link) localEnd() cm.End {
	return cm.End{
		QP: l.qpn, Expects: l.handshake.psn, Resources: maxReads, Depth: maxReads, RNRRetries: 7,
		Room: uint32(min(l.endpoint.receiveRoom(), 1<<24-1)), Tag: l.handshake.tag,
	}
}

// newTag returns an unpredictable tag, which is never 0.
func newTag() uint64 {
	for {
		if tag := random(); tag != 0 {
			return tag
		}
	}
}

// Start posts the receives and processes the early packets.
func (l *link) Start(receives []*via.Work) error {
	for _, w := range receives {
		l.receives.push(w)
	}
	l.bound.bind(l)
	return l.shard.asOwner(func(g *engine) { g.start(&l.transport, &l.bound) })
}

// peerDisconnected records that the peer has disconnected, and makes the owner
// of the shard break the queue pair.
func (l *link) peerDisconnected(finalAck []byte) { l.end(&disconnected{finalAck: finalAck}) }

// peerGone is peerDisconnected for a peer that does not exist any more.
func (l *link) peerGone() { l.end(&disconnected{gone: true}) }

func (l *link) end(d *disconnected) {
	l.notices.disconnected.CompareAndSwap(nil, d)
	l.shard.schedule(l)
	l.shard.run()
}

// peerSuspected makes the owner of the shard check whether the peer's queue
// pair exists.
func (l *link) peerSuspected() {
	if !l.notices.suspected.Swap(true) {
		l.shard.schedule(l)
		l.shard.run()
	}
}

// Close ends the connection. Once remove has run, no goroutine accesses the
// link's works; nor does one in a shard that has failed.
func (l *link) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	var finalAck []byte
	_ = l.shard.asOwner(func(g *engine) { finalAck = g.remove(&l.transport) })
	l.bound.unbind(l)
	l.endpoint.disconnect(l, finalAck)
	return nil
}

// Life changes when the peer acknowledges, answers or sends something in turn.
func (l *link) Life() uint64 { return l.life.Load() }

// AnswerTime returns how long an answer of the peer's host may take.
func (l *link) AnswerTime() time.Duration {
	if l.line == nil {
		return 0
	}
	return l.line.AnswerTime()
}

// Stats returns the link's counters, or zeros if its shard has failed.
func (l *link) Stats() (stats via.LinkStats) {
	_ = l.shard.asOwner(func(*engine) { stats = l.transport.totals() })
	return stats
}
