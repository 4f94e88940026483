package rc

import (
	"errors"
	"fmt"
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// Config describes a queue pair. Both ends have agreed on it, by the connection
// manager or otherwise; the PSNs and QP numbers are what they told each other.
type Config struct {
	Unreliable bool // UC instead of RC

	PeerQP  uint32   // 24 bits, not 0
	PSN     wire.PSN // of the first packet sent
	PeerPSN wire.PSN // of the first packet expected
	PKey    uint16   // 0 is wire.DefaultPKey
	MTU     wire.MTU

	SendDepth, ReceiveDepth int // works that are posted and not polled; at least 1

	AllowWrite, AllowRead bool // what the peer may do
	Reads                 int  // read requests under way to the peer; 0 forbids Read
	PeerReads             int  // read requests under way from the peer; 0 forbids them

	// Window bounds the packets under way, so that they fit the peer's receive
	// buffer; Room those that this end has asked for by Reads, and keeps behind a
	// gap, so that they fit its own. 0 is 128, and Window.
	Window, Room int

	// Stash keeps packets that come behind a gap; nil drops them. Selective says
	// that both ends keep them, and know it: only what is missing is sent again.
	// Without it all from the missing packet on is, as the specification has it.
	Stash     *Stash
	Selective bool

	// The peer is gone if it acknowledges nothing for Retries+1 times Timeout. 0 is
	// 500 ms. In between the QP asks again, first after a few round trips, then
	// ever less often.
	Timeout time.Duration
	Retries int

	// WaitForReceive answers a message that finds no receive by an RNR NAK, as
	// verbs programs expect. Else it breaks the connection, as VIA demands.
	WaitForReceive bool
	RNRDelay       time.Duration // that our RNR NAKs ask for
	RNRRetries     int           // RNR NAKs in a row that are believed; 7 for ever
}

const (
	defaultWindow  = 128
	defaultTimeout = 500 * time.Millisecond
	foreverRNR     = 7
	maxWindow      = 1 << 20 // packets
	maxReads       = 255     // as many as the connection manager can say
	maxDepth       = 1 << 20
)

// withDefaults returns a copy without zeros that mean something else.
func (c Config) withDefaults() Config {
	if c.PKey == 0 {
		c.PKey = wire.DefaultPKey
	}
	if c.Window == 0 {
		c.Window = defaultWindow
	}
	if c.Room == 0 {
		c.Room = c.Window
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	return c
}

// Validate tells everything that is wrong with the configuration.
func (c Config) Validate() error {
	var all []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			all = append(all, fmt.Errorf(format, args...))
		}
	}
	check(c.PeerQP > 0 && c.PeerQP < 1<<24, "peer queue pair %#x", c.PeerQP)
	check(c.MTU.IsValid(), "path MTU code %d", c.MTU)
	check(c.PSN < 1<<24 && c.PeerPSN < 1<<24, "PSNs %#x and %#x", c.PSN, c.PeerPSN)
	check(c.SendDepth > 0 && c.SendDepth <= maxDepth, "send depth %d", c.SendDepth)
	check(c.ReceiveDepth > 0 && c.ReceiveDepth <= maxDepth, "receive depth %d", c.ReceiveDepth)
	check(c.Reads >= 0 && c.Reads <= maxReads, "reads %d", c.Reads)
	check(c.PeerReads >= 0 && c.PeerReads <= maxReads, "peer's reads %d", c.PeerReads)
	check(c.Window >= 0 && c.Window <= maxWindow, "window %d", c.Window)
	check(c.Room >= 0 && c.Room <= maxWindow, "room %d", c.Room)
	check(c.Timeout >= 0 && c.Retries >= 0 && c.RNRRetries >= 0, "timeout %v, retries %d and %d", c.Timeout, c.Retries, c.RNRRetries)
	return errors.Join(all...)
}

// QP is one end of a connection. One goroutine at a time drives it; nothing
// blocks, and but for New nothing allocates in steady state.
type QP struct {
	cfg      Config
	memory   Memory
	counters Counters
	events   events
	cause    Status // OK until the QP is broken
	header   wire.Packet

	sends    queue[Work]
	receives queue[Receive]
	requester
	responder
}

// New returns a QP that is ready to send and to receive.
func New(c Config, m Memory) (*QP, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("queue pair configuration: %w", err)
	}
	c = c.withDefaults()
	q := &QP{
		cfg: c, memory: m,
		sends:    newQueue[Work](c.SendDepth),
		receives: newQueue[Receive](c.ReceiveDepth),
	}
	q.requester.init(&q.cfg)
	q.responder.init(&q.cfg)
	return q, nil
}

// Post appends a work to the send queue. It returns false if the queue is full.
// On a broken QP the work is flushed.
func (q *QP) Post(w *Work) bool {
	if q.sends.full() {
		return false
	}
	w.Status = OK
	w.length, w.got, w.piece, w.place = total(w.Segments), 0, 0, cursor{}
	w.packets = q.cfg.MTU.Packets(w.length)
	if w.length > wire.MaxMessage || w.packets > maxPackets || w.Op == Read && (q.cfg.Reads == 0 || q.cfg.Unreliable) || w.Op > Read {
		w.Status = LocalInvalid // when its turn comes
		w.packets = 1
	}
	w.first = q.last
	q.last = w.end()
	q.sends.post(w)
	if q.cause != OK {
		q.flush()
	}
	return true
}

// PostReceive appends a receive. It returns false if the queue is full. On a
// broken QP the receive is flushed.
func (q *QP) PostReceive(r *Receive) bool {
	if q.receives.full() {
		return false
	}
	*r = Receive{ID: r.ID, Segments: r.Segments, capacity: total(r.Segments)}
	q.receives.post(r)
	if q.cause != OK {
		q.flush()
	}
	return true
}

// Receives returns how many receives are posted that no message has ended.
func (q *QP) Receives() int { return int(q.receives.posted - q.receives.done) }

// Kept returns how many packets wait behind a gap. When that is filled, one call of
// Receive carries them out, and each may end a receive.
func (q *QP) Kept() int { return q.kept.count }

// PollSend returns the next work that ended, in the order of the posts, or nil.
func (q *QP) PollSend() *Work { return q.sends.poll() }

// PollReceive returns the next receive that ended, in the order of the posts, or
// nil.
func (q *QP) PollReceive() *Receive { return q.receives.poll() }

// PollEvent returns the next event, or NoEvent.
func (q *QP) PollEvent() Event { return q.events.poll() }

// Ended reports whether PollSend, PollReceive and PollEvent have something, beside
// what was flushed when the QP broke: who knows that it is broken knows that.
func (q *QP) Ended() (send, receive, event bool) {
	return q.sends.ended(), q.receives.ended(), q.events.first != q.events.last
}

// Cause returns why the QP is broken, and OK while it is not.
func (q *QP) Cause() Status { return q.cause }

// Counters returns the counters.
func (q *QP) Counters() Counters {
	c := q.counters
	c.RTT, c.Window = q.window.smooth, q.window.size
	return c
}

// Receive takes a packet that arrived for the QP from its peer, with a right
// ICRC, and what [wire.Packet.Decode] said of it: Accepted, or an invalid
// request, which the peer is to hear of. The packet is the caller's again when
// Receive returns.
func (q *QP) Receive(p *wire.Packet, r wire.Refusal, now time.Duration) {
	q.counters.Received++
	flags, class := p.Opcode.Flags(), p.Opcode.Class()
	switch {
	case class == wire.CNP && r == wire.Accepted:
		q.counters.Congestion++
		q.window.lost(q.una, 1, q.highest, false)
	case class != q.class(), r != wire.Accepted && (!r.IsInvalidRequest() || flags&wire.Response != 0):
		q.counters.Ignored++
	case q.cause != OK:
		q.repeatRefusal(p)
	case q.cfg.Unreliable:
		q.receiveUnreliable(p, r)
	case flags&wire.Response != 0:
		q.receiveAnswer(p, now)
	default:
		q.receiveRequest(p, r)
	}
}

// Emit appends the packets that are to be sent now, as many as there is room
// for. Answers and requests share the room, so that neither waits for the other.
// An acknowledgement goes last: nobody waits for it as for a reply.
func (q *QP) Emit(b *Burst, now time.Duration) {
	if q.responses.len() > 0 {
		q.emitAnswers(b, (b.room()+1)/2)
	}
	last := 0
	if q.answer.waits {
		last = 1
	}
	q.emitRequests(b, last, now)
	q.emitAnswers(b, b.room())
}

// Break breaks the QP: all works and receives are flushed, and nothing is sent
// but a refusal that waits.
func (q *QP) Break() { q.fail(Closed) }

// LastWord returns the answer to all that the peer has sent so far: the refusal
// that broke this end, or the acknowledgement of what is carried out. An end that
// leaves can tell its peer by other means, in case the answers themselves are
// lost. It means nothing on UC.
func (q *QP) LastWord() (wire.AETH, wire.PSN) {
	if a := &q.answer; q.cause != OK && a.syndrome.Kind() == wire.KindNAK && a.syndrome != wire.NAKSequence {
		return wire.AETH{Syndrome: a.syndrome, MSN: q.msn}, a.at.psn()
	}
	return wire.AETH{Syndrome: wire.ACK, MSN: q.msn}, (q.expected - 1).psn()
}

// fail breaks the QP.
func (q *QP) fail(cause Status) {
	if q.cause != OK {
		return
	}
	q.cause = cause
	q.unfinished()
	q.responses.clear()
	q.kept.release(q.expected, len(q.kept.ring))
	q.disarm()
	q.event(Broken)
	q.flush()
}

func (q *QP) flush() {
	q.sends.over, q.receives.over = min(q.sends.over, q.sends.done), min(q.receives.over, q.receives.done)
	for w := q.sends.oldest(); w != nil; w = q.sends.oldest() {
		q.endWork(w, Flushed)
	}
	for r := q.receives.oldest(); r != nil; r = q.receives.oldest() {
		q.endReceive(r, Flushed)
	}
}

func (q *QP) endWork(w *Work, s Status) {
	w.Status = s
	q.sends.done++
	q.cur = max(q.cur, q.sends.done)
}

func (q *QP) endReceive(r *Receive, s Status) {
	r.Status = s
	q.receives.done++
}

func (q *QP) event(e Event) {
	if !q.events.add(e) {
		q.counters.LostEvents++
	}
}

func (q *QP) class() wire.Class {
	if q.cfg.Unreliable {
		return wire.UC
	}
	return wire.RC
}
