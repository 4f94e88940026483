package rc

import (
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// A Read takes these steps:
//
//	1 emitRead             requests a piece, if the room for responses admits it
//	2 receiveReadResponse  copies a response to the work's segments and marks it,
//	                       if it is behind a gap
//	3 absorb               counts the marked ones once the gap is filled
//	4 retransmitRead       requests missing responses again

// Packets of one read request (piece), and pieces in a window if there may be
// so many. The largest piece is as long as a run of segments.
const (
	leastPiece = 16
	mostPiece  = MaxRun
	somePieces = 4
)

// pieces are the read requests in flight. A long Read is requested in pieces,
// so that the window bounds what the peer sends and a loss does not repeat all
// of it. A piece always ends at the same packet of its Read: a piece that is
// requested again from the missing packet on is a part of the first request, as
// responders require. So all pieces of a Read have one size, chosen by the
// window at its start.
type pieces struct {
	least, most int   // packets of a piece
	room        int   // packets of all
	ends        []seq // ring
	first, last uint64
}

func newPieces(c *Config) pieces {
	window := min(c.Window, c.Room)
	some := (window + somePieces - 1) / somePieces
	return pieces{
		least: min(leastPiece, some), most: max(min(mostPiece, some), window/max(c.Reads, 1)),
		room: c.Room, ends: make([]seq, c.Reads),
	}
}

// size returns the piece size of a Read that begins with this window.
func (p *pieces) size(window int) int {
	return min(max(window/min(somePieces, len(p.ends)), p.least), p.most)
}

func (p *pieces) full() bool { return int(p.last-p.first) == len(p.ends) }

func (p *pieces) at(i uint64) *seq { return &p.ends[i%uint64(len(p.ends))] }

func (p *pieces) push(end seq) {
	*p.at(p.last) = end
	p.last++
}

// admits reports whether n more responses may be requested from packet next on:
// with those in flight they fit this end's receive buffer. Packets between the
// pieces count as in flight.
func (p *pieces) admits(una, next seq, n int) bool {
	if p.first == p.last {
		return true
	}
	from := max(una, *p.at(p.first)-seq(p.most))
	return int(next-from)+n <= p.room
}

// release removes the pieces before una.
func (p *pieces) release(una seq) {
	for p.first != p.last && *p.at(p.first) <= una {
		p.first++
	}
}

// goBack removes the pieces that end behind to.
func (p *pieces) goBack(to seq) {
	for p.first != p.last && *p.at(p.last - 1) > to {
		p.last--
	}
}

// emitRead requests the next piece, or its missing part. It returns false if
// that has to wait.
func (q *requester) emitRead(b *Burst, w *Work, now time.Duration) bool {
	if w.piece == 0 || q.highest == w.first { // none was requested
		w.piece = q.pieces.size(q.window.size)
		if q.cfg.Line != nil {
			w.piece = min(w.piece, q.cfg.Line.part())
		}
	}
	whole := q.pieceEnd(w)
	to := whole
	if q.next < min(q.holeEnd, q.acked) {
		to = min(to, q.holeEnd) // inside a request that arrived
	}
	if q.schedule.probing {
		to = q.next + 1
	}
	if n := int(to - q.next); q.pieces.full() || !q.pieces.admits(q.una, q.next, n) || !q.admits(n) || !q.fitsLine(w, n, now) {
		return false
	}
	i, end := int(q.next-w.first), int(to-w.first)
	mtu := q.cfg.MTU.Bytes()
	h := q.start(b, wire.RCReadRequest, q.next)
	h.AckRequest = true
	h.RETH = wire.RETH{
		Addr: w.Addr + uint64(i*mtu), Key: w.Key,
		Length: uint32(min(end*mtu, w.length) - i*mtu),
	}
	b.add(h, len(b.segments), 0, w)
	if to == whole {
		q.pieces.push(to)
	}
	q.sent(w, end-i, now)
	return true
}

// pieceEnd returns where the piece of packet next ends.
func (q *requester) pieceEnd(w *Work) seq {
	i := int(q.next - w.first)
	return w.first + seq(min((i/w.piece+1)*w.piece, w.packets))
}

// responseMap marks the responses that are placed behind a gap: a ring of bits
// by packet number.
type responseMap struct {
	bits  []uint64
	count int
}

func newResponseMap(c *Config) responseMap {
	return responseMap{bits: make([]uint64, powerOfTwo((2*c.Window+63)/64))}
}

func (p *responseMap) size() seq { return seq(64 * len(p.bits)) }

func (p *responseMap) bit(s seq) (*uint64, uint64) {
	return &p.bits[s>>6&seq(len(p.bits)-1)], 1 << (s & 63)
}

func (p *responseMap) has(s seq) bool {
	word, bit := p.bit(s)
	return *word&bit != 0
}

// flip inverts the mark of a response.
func (p *responseMap) flip(s seq, by int) {
	word, bit := p.bit(s)
	*word ^= bit
	p.count += by
}

// absorb counts the responses that were placed before the gap was filled.
func (q *requester) absorb(w *Work) {
	for q.outOfOrder.count > 0 && w.got < w.packets && q.outOfOrder.has(w.first+seq(w.got)) {
		q.outOfOrder.flip(w.first+seq(w.got), -1)
		w.got++
	}
}

// receiveReadResponse handles a response of a Read and copies its payload.
// Responses come in order: one that is ahead shows that those before it are
// lost, and that all earlier Sends and Writes are executed.
func (q *requester) receiveReadResponse(p *wire.Packet, s seq, now time.Duration) Status {
	if s < q.una || q.outOfOrder.has(s) {
		q.counters.Duplicates++
		return OK
	}
	w := q.readOf(s)
	if w == nil || s >= q.highest || s-q.una >= q.outOfOrder.size() {
		q.counters.Ignored++
		return OK
	}
	mtu, i := q.cfg.MTU.Bytes(), int(s-w.first)
	switch {
	case i < w.got:
		q.counters.Duplicates++
		return OK
	case len(p.Payload) != min(w.length-i*mtu, mtu):
		q.counters.Ignored++
		return OK
	case !q.memory.Local(w.ID):
		q.acked = max(q.acked, s)
		q.completeAcknowledged(now)
		return q.giveUp(LocalProtection)
	}
	w.place.seek(w.Segments, i*mtu)
	w.place.scatter(w.Segments, p.Payload)
	q.counters.Copied += uint64(len(p.Payload))
	if i == w.got {
		w.got++
		q.absorb(w)
	} else {
		q.outOfOrder.flip(s, 1)
		q.counters.OutOfSequence++
	}
	if q.schedule.probing && p.Opcode != wire.RCReadResponseOnly {
		// It belongs to a request before the timeout, whose other responses follow.
		q.skipTo = max(q.skipTo, q.schedule.beyond)
	}
	q.acked = max(q.acked, s+1)
	q.completeAcknowledged(now)
	q.retransmitRead(now)
	return OK
}

// readOf returns the Read of a response.
func (q *requester) readOf(s seq) *Work {
	for i := q.sends.done; i < q.sends.posted; i++ {
		w := q.sends.at(i)
		if s < w.end() {
			if w.Op == Read && w.Status == OK && s >= w.first {
				return w
			}
			return nil
		}
	}
	return nil
}

// retransmitRead requests missing responses again, once for each gap: the peer
// has answered what it executed.
func (q *requester) retransmitRead(now time.Duration) {
	g := &q.readGap
	if q.una >= q.acked || q.una >= g.at && q.una < g.end && now-g.when < q.window.retransmitDelay() {
		return
	}
	end := q.una + 1
	for end < q.acked && !(q.outOfOrder.count > 0 && q.outOfOrder.has(end)) {
		end++
	}
	q.counters.ImpliedNAKs++
	*g = gap{q.una, end, now}
	q.retransmitRange(q.una, end)
	q.window.lost(q.una, int(end-q.una), q.highest, true)
}
