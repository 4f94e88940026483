package roce

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// link is one end of a connection. Its consumer posts and rings; who has the turn
// of its lane does the rest.
//
//	made ── peer known ──▶ entered ── Start ──▶ live ── Close ──▶ closed
//
// A link that is entered keeps what its peer sends.
type link struct {
	lane     *lane
	qp       *rc.QP
	qpn      uint32
	from     netip.AddrPort // the peer
	anyPort  bool           // of the peer: not of our own kind
	peer     *port.Peer
	sends    sends
	receives receives

	// Of the consumer, and of who has the turn.
	rung atomic.Bool // there are news: works, or that the peer has gone
	gone atomic.Bool // the peer has disconnected; its last word is there
	word []byte      // the last word

	// Of who has the turn.
	live        bool // started
	closed      bool
	talks       bool // in the lane's list
	established bool // the peer knows of the connection
	due         time.Duration
	reported    bool // that the link is broken
	faulty      *faultyWire
	early       [][]byte // packets that came before the start
	earlySize   int      // bytes

	nextRung, nextLeaving, nextTalking *link

	adapter  *adapter
	endpoint *endpoint
	cfg      via.LinkConfig
	psn      wire.PSN // of the first packet that the peer sends
	mtu      wire.MTU
	id       cm.ID
	seats    [2]seat // of sends, of receives; the first serves both if one queue does
	code     via.AsyncCode
	events   [via.AsyncCatastrophic]*via.Event // that do not break the connection
	stats    via.LinkStats
	last     *rc.Counters // of a link that is closed
	farewell []byte       // our last word
}

// reads is how many RDMA Reads of a connection are under way at once, in each
// direction.
const reads = 16

// newLink prepares one end: a lane, a queue pair number and a first PSN.
func newLink(a *adapter, e *endpoint, cfg via.LinkConfig) (*link, error) {
	l := &link{adapter: a, endpoint: e, cfg: cfg, due: never, code: via.AsyncConnectionLost}
	if !e.hold() {
		return nil, fmt.Errorf("%v is closed: %w", e.local, via.ErrNotReachable)
	}
	var err error
	if l.lane, err = e.assign(cfg.RecvCQ.(*cq)); err != nil {
		e.release()
		return nil, err
	}
	l.qpn = e.newQP(l.lane.index)
	l.psn = wire.PSN(random() & (1<<24 - 1))
	l.sends.init(powerOfTwo(cfg.SendDepth))
	l.receives.init(powerOfTwo(cfg.RecvDepth))
	if cfg.Faults != nil {
		l.faulty = &faultyWire{link: l}
	}
	return l, nil
}

// terms is what both ends have agreed on, and who the peer is.
type terms struct {
	from netip.AddrPort
	own  bool
	peer cm.End
	mtu  wire.MTU
}

// enter makes the queue pair and lets packets arrive.
func (l *link) enter(t terms) error {
	var err error
	if l.peer, err = l.endpoint.port.Peer(t.from); err != nil {
		return err
	}
	l.from, l.anyPort, l.mtu = t.from, !t.own, t.mtu
	if l.faulty != nil {
		l.faulty.icrc.Set(l.endpoint.local, t.from)
	}
	o := &l.endpoint.provider.options
	window := o.Window
	if !t.own {
		window = min(window, foreignWindow)
	}
	cfg := rc.Config{
		Unreliable: l.cfg.Reliability == via.UnreliableDelivery,
		PeerQP:     t.peer.QP, PSN: t.peer.Expects, PeerPSN: l.psn, MTU: t.mtu,
		SendDepth: l.cfg.SendDepth, ReceiveDepth: l.cfg.RecvDepth,
		AllowWrite: l.cfg.RdmaWrite, AllowRead: l.cfg.RdmaRead,
		Reads: int(min(reads, t.peer.Resources)), PeerReads: reads,
		Window: window, Room: l.endpoint.room(), Stash: l.lane.stash, Selective: t.own,
		Timeout: o.Timeout, Retries: o.Retries,
		WaitForReceive: !t.own, RNRDelay: rnrDelay, RNRRetries: int(t.peer.RNRRetries),
	}
	if t.peer.Room > 0 {
		cfg.Window = min(cfg.Window, int(t.peer.Room))
	}
	if l.qp, err = rc.New(cfg, l); err != nil {
		return err
	}
	l.lane.take()
	l.lane.table.add(l)
	l.lane.give()
	return nil
}

// foreignWindow bounds the packets under way to a foreign peer: it says nothing of
// its room, and what comes behind a gap it has sent again.
const foreignWindow = 128

// rnrDelay is how long a foreign peer waits for a receive before it asks again,
// as verbs programs have it. Own ends never wait: VIA has no word for it.
const rnrDelay = 640 * time.Microsecond

// room is how many packets of requests a link may have under way to this endpoint,
// and as many responses of reads: half of what a lane holds each, as far as the
// options allow. The links of a lane share it.
func (e *endpoint) room() int {
	return max(1, min(e.port.ReceiveRoom()/2, e.provider.options.Window))
}

// ours is what the peer is told of our half of the connection.
func (l *link) ours() cm.End {
	return cm.End{
		QP: l.qpn, Expects: l.psn, Resources: reads, Depth: reads, RNRRetries: 7,
		Room: uint32(min(l.endpoint.room(), 1<<24-1)),
	}
}

// isFrom reports whether packets from an address may be the peer's.
func (l *link) isFrom(from netip.AddrPort) bool {
	return from == l.from || l.anyPort && from.Addr() == l.from.Addr()
}

// earlyLimit bounds the packets that a link keeps before its start, bytes.
const earlyLimit = 1 << 20

// keep keeps a packet until the start.
func (l *link) keep(b []byte) {
	if l.earlySize+len(b) > earlyLimit {
		l.lane.tally.crowded.Add(1)
		return
	}
	l.early = append(l.early, append([]byte(nil), b...))
	l.earlySize += len(b)
	if !l.established {
		l.established = true
		l.endpoint.establish(l.id)
	}
}

// Start brings the receives, and what has come so far.
func (l *link) Start(receives []*via.Work) error {
	for _, w := range receives {
		l.receives.push(w)
	}
	l.bind()
	l.lane.take()
	defer l.lane.give()
	l.live, l.established = true, true
	l.lane.started = append(l.lane.started, l)
	l.seat()
	early := l.early
	l.early, l.earlySize = nil, 0
	now := clock()
	for _, b := range early {
		l.lane.accept(l, b, now)
	}
	l.lane.announce(l) // of the receives, and of a peer that has gone
	l.lane.pass(now, lookNot)
	return nil
}

// settle notes when a timer of the queue pair runs out, and what has ended.
func (l *link) settle() {
	l.due = never
	if at, ok := l.qp.Deadline(); ok {
		l.due = at
		if at < time.Duration(l.lane.due.Load()) {
			l.lane.due.Store(int64(at))
		}
	}
	l.queue()
}

// lose is the news that the peer has gone, and its last word. It comes once.
func (l *link) lose(word []byte) {
	if !l.gone.Load() {
		l.word = word
		l.gone.Store(true)
	}
	l.lane.announce(l)
	l.lane.serve()
}

// finish ends the queue pair after the peer has gone: what has arrived before is
// carried out. What the peer has acknowledged or refused is in its last word, if
// the packets that said so are lost.
func (l *link) finish(now time.Duration) {
	p := &l.lane.packet
	if len(l.word) == wordSize && l.cfg.Reliability != via.UnreliableDelivery {
		p.BTH = wire.BTH{Opcode: wire.RCAcknowledge, PKey: wire.DefaultPKey, DestQP: l.qpn}
		p.PSN = wire.PSN(binary.BigEndian.Uint32(l.word[wire.AETHSize:]) & (1<<24 - 1))
		p.AETH.Decode(l.word)
		if p.AETH.Syndrome.Kind() != wire.KindReserved {
			l.takePosts()
			l.qp.Receive(p, wire.Accepted, now)
		}
	}
	l.word = nil
	l.takePosts() // a message without its end takes one
	l.qp.Break()
	l.lane.touch(l)
}

// wordSize is the length of a last word: an AETH and the PSN that it is about, 4
// bytes. It is the private data of a DREQ.
const wordSize = wire.AETHSize + 4

// lastWord makes ours.
func (l *link) lastWord() []byte {
	h, psn := l.qp.LastWord()
	b := make([]byte, wordSize)
	h.Encode(b)
	binary.BigEndian.PutUint32(b[wire.AETHSize:], uint32(psn))
	return b
}

// Close ends the connection. After the turn in which it leaves its lane nobody
// touches its works.
func (l *link) Close() error {
	l.lane.take()
	first := !l.closed
	if first {
		l.leave()
	}
	l.lane.give()
	if first {
		l.unbind()
		l.endpoint.forsake(l)
	}
	return nil
}

// leave takes the link out of its lane.
func (l *link) leave() {
	l.closed, l.live = true, false
	if l.qp != nil {
		counters := l.qp.Counters()
		l.last = &counters
		l.lane.remember(l.statistics())
		l.farewell = l.lastWord()
		l.qp.Break() // it gives back what it keeps of others
		l.lane.table.remove(l)
	}
	if l.talks {
		l.lane.talking.remove(l)
		l.talks = false
	}
	for i, k := range l.lane.started {
		if k == l {
			last := len(l.lane.started) - 1
			l.lane.started[i] = l.lane.started[last]
			l.lane.started[last] = nil
			l.lane.started = l.lane.started[:last]
			break
		}
	}
	l.unseat()
	l.early = nil
}

// Stats returns the link's counters.
func (l *link) Stats() via.LinkStats {
	l.lane.take()
	defer l.lane.give()
	s := l.stats
	c := l.last
	if c == nil {
		now := l.qp.Counters()
		c = &now
	}
	s.BytesCopied, s.Records = c.Copied, c.Sent
	s.Dropped = c.Dropped + c.Repeated
	return s
}
