package rc

import "github.com/viablk/viablk/via/roce/wire"

// responder is the half of a QP that executes requests. It owns the receive
// queue, the expected PSN, the acknowledgement to send and the read requests to
// answer. The caller of Receive owns a packet; no step keeps a part of it, but
// for a copy in the stash.
//
// A request packet travels
//
//	1 receive       compares its PSN with the expected one: a duplicate is
//	                answered again, a packet behind a gap waits in the stash
//	2 execute       checks the opcode against the message in progress
//	3 executeSend   copies the payload to the oldest receive
//	  executeWrite  copies it to registered memory, which it looks up first
//	  executeRead   queues the read request
//	4 endMessage    raises the MSN and completes the receive, which PollReceive
//	                returns to the consumer with its memory
//	5 emit          sends read responses, which refer to registered memory until
//	                they are sent, then the pending acknowledgement
type responder struct {
	half
	receives queue[Receive]
	events   events

	expected seq
	msn      wire.MSN
	message  message
	nakSent  bool // a NAK is sent; packets behind the gap are dropped
	furthest seq  // the latest packet behind the gap
	stashed  stashRing
	damage   damage

	ack          pendingAck
	pendingReads readRing // to be sent
	recentReads  readRing // for repeated requests
}

// pendingAck is a pending acknowledgement or refusal.
type pendingAck struct {
	pending  bool
	syndrome wire.Syndrome
	at       seq
}

func (q *responder) init(h half) {
	q.half = h
	c := &q.cfg
	q.receives = newQueue[Receive](c.ReceiveDepth)
	q.expected = startSeq(c.PeerPSN)
	q.pendingReads = newReadRing(2 * c.PeerReads)
	q.recentReads = newReadRing(c.PeerReads)
	q.stashed = newStashRing(c)
}

// post appends a receive. It returns false if the receive queue is full.
func (q *responder) post(r *Receive) bool {
	if q.receives.full() {
		return false
	}
	*r = Receive{ID: r.ID, Segments: r.Segments, capacity: total(r.Segments)}
	q.receives.post(r)
	return true
}

// end ends the oldest receive.
func (q *responder) end(r *Receive, s Status) {
	r.Status = s
	q.receives.done++
}

// stop reports the peer's unfinished message, frees what waits and flushes the
// receives when the QP breaks. A pending refusal stays, to be sent.
func (q *responder) stop() {
	q.reportUnfinished()
	q.pendingReads.clear()
	q.stashed.release(q.expected, len(q.stashed.ring))
	q.event(Broken)
	q.flush()
}

// flush ends all receives of a broken QP.
func (q *responder) flush() {
	q.receives.breaks()
	for r := q.receives.oldest(); r != nil; r = q.receives.oldest() {
		q.end(r, Flushed)
	}
}

func (q *responder) event(e Event) {
	if !q.events.add(e) {
		q.counters.LostEvents++
	}
}

// receive handles a request of a reliable connection. It returns why the
// connection breaks, or OK.
func (q *responder) receive(p *wire.Packet, r wire.Refusal) Status {
	s := q.expected.near(p.PSN)
	switch {
	case s > q.expected:
		q.receiveOutOfOrder(p, r, s)
		return OK
	case s < q.expected:
		q.receiveDuplicate(p, s, r)
		return OK
	}
	q.nakSent = false
	cause := q.executeNext(p, r)
	for k := q.stashed.next(q.expected); k != nil && !q.nakSent && cause == OK; k = q.stashed.next(q.expected) {
		cause = q.executeNext(&k.packet, k.refusal)
	}
	if q.stashed.count > 0 && !q.nakSent && cause == OK {
		q.sendSequenceNAK(q.furthest)
	}
	return cause
}

// executeNext executes the request with the expected PSN.
func (q *responder) executeNext(p *wire.Packet, r wire.Refusal) Status {
	s := q.expected
	q.damage = damage{}
	result := wire.NAKInvalidRequest
	if r == wire.Accepted {
		result = q.execute(p)
	}
	switch result.Kind() {
	case wire.KindACK:
		if p.Opcode != wire.RCReadRequest {
			q.expected++
			if p.AckRequest {
				q.setAck(wire.ACK, s)
			}
		}
		q.stashed.release(s, int(q.expected-s))
	case wire.KindRNR:
		q.counters.RNRsSent++
		q.setAck(result, s)
		q.nakSent, q.furthest = true, s
		q.stashed.release(s, 1)
	default:
		q.counters.NAKsSent++
		q.setAck(result, s)
		return nakCause(result, q.receives.oldest() == nil)
	}
	return OK
}

// receiveOutOfOrder handles a packet behind a gap. It sends a NAK once, and
// again when the peer has gone back and the packet is still missing, which
// shows in numbers that do not grow. A selective peer does not go back; it gets
// a NAK whenever it requests an acknowledgement.
func (q *responder) receiveOutOfOrder(p *wire.Packet, r wire.Refusal, s seq) {
	q.counters.OutOfSequence++
	if q.cfg.Stash != nil {
		q.stashed.put(p, r, s, q.expected)
	}
	if !q.nakSent || s <= q.furthest || p.AckRequest && q.cfg.Selective {
		q.sendSequenceNAK(s)
	}
	q.furthest = s
}

// sendSequenceNAK requests the expected packet when another one arrived.
func (q *responder) sendSequenceNAK(s seq) {
	q.counters.NAKsSent++
	q.setAck(wire.NAKSequence, q.expected)
	q.nakSent, q.furthest = true, s
}

// receiveDuplicate handles a request that was executed: its answer was lost or
// is late. Reads are answered again; to all others the answer is the newest
// ACK.
func (q *responder) receiveDuplicate(p *wire.Packet, s seq, r wire.Refusal) {
	q.countDuplicate(p)
	switch {
	case r != wire.Accepted:
	case p.Opcode == wire.RCReadRequest:
		q.replayRead(p, s)
	case !q.ack.pending:
		q.setAck(wire.ACK, q.expected-1)
	}
}

// countDuplicate counts a repeated request.
func (q *responder) countDuplicate(p *wire.Packet) {
	q.counters.Duplicates++
	if p.Opcode.Operation() == wire.OpSend && p.Opcode.Flags()&wire.End != 0 {
		q.counters.DuplicateSends++
	}
}

// setAck sets the next answer to the peer. An ACK covers every earlier one.
func (q *responder) setAck(s wire.Syndrome, at seq) { q.ack = pendingAck{true, s, at} }

// refuses reports whether the answer is a NAK that breaks the connection.
func (a *pendingAck) refuses() bool {
	return a.syndrome.Kind() == wire.KindNAK && a.syndrome != wire.NAKSequence
}

// repeatNAK repeats the NAK that broke the connection if the peer retransmits
// the refused packet: the first NAK was lost.
func (q *responder) repeatNAK(p *wire.Packet) {
	if a := &q.ack; a.refuses() && p.PSN == a.at.psn() && p.Opcode.Flags()&wire.Response == 0 {
		a.pending = true
	}
}

// finalAck returns the NAK that broke the connection, or the acknowledgement of
// all executed requests.
func (q *responder) finalAck() (wire.AETH, wire.PSN) {
	if q.ack.refuses() {
		return wire.AETH{Syndrome: q.ack.syndrome, MSN: q.msn}, q.ack.at.psn()
	}
	return wire.AETH{Syndrome: wire.ACK, MSN: q.msn}, (q.expected - 1).psn()
}
