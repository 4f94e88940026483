package rc

import (
	"time"

	"github.com/viablk/viablk/via/roce/wire"
)

// How much a request for a piece of a Read asks for: packets, and how many pieces
// there are in a window if there may be so many. A run of segments is as long as a
// piece lets it be.
const (
	leastPiece = 16
	mostPiece  = MaxRun
	somePieces = 4
)

// pieces are the read requests under way. A long Read is asked for in pieces,
// each a request of its own, so that the window rules what the peer sends, and a
// loss does not make it send all again. A piece always ends at the same packet of
// its Read: a piece that is asked for again, from the missing packet on, is a
// part of the first request, as a responder demands. So each Read has pieces of one
// size, which suits the window that it begins with.
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

// size is how large the pieces of a Read are that begins with this window.
func (p *pieces) size(window int) int {
	return min(max(window/min(somePieces, len(p.ends)), p.least), p.most)
}

func (p *pieces) full() bool { return int(p.last-p.first) == len(p.ends) }

func (p *pieces) at(i uint64) *seq { return &p.ends[i%uint64(len(p.ends))] }

func (p *pieces) push(end seq) {
	*p.at(p.last) = end
	p.last++
}

// admits reports whether n more responses may be asked for, from packet next on:
// with those that are under way they fit our receive buffer. What is between the
// pieces counts as one of them.
func (p *pieces) admits(una, next seq, n int) bool {
	if p.first == p.last {
		return true
	}
	from := max(una, *p.at(p.first)-seq(p.most))
	return int(next-from)+n <= p.room
}

// settle forgets the pieces before una.
func (p *pieces) settle(una seq) {
	for p.first != p.last && *p.at(p.first) <= una {
		p.first++
	}
}

// goBack forgets the pieces that end behind to.
func (p *pieces) goBack(to seq) {
	for p.first != p.last && *p.at(p.last - 1) > to {
		p.last--
	}
}

// emitRead asks for the next piece, or for what is missing of it. It returns
// false if that has to wait.
func (q *QP) emitRead(b *Burst, w *Work, now time.Duration) bool {
	if w.piece == 0 {
		w.piece = q.pieces.size(q.window.size)
	}
	whole := q.pieceEnd(w)
	to := whole
	if q.next < min(q.holeEnd, q.acked) {
		to = min(to, q.holeEnd) // of a request that arrived
	}
	if n := int(to - q.next); q.pieces.full() || !q.pieces.admits(q.una, q.next, n) || !q.admits(n) {
		return false
	}
	i, end := int(q.next-w.first), int(to-w.first)
	mtu := q.cfg.MTU.Bytes()
	h := q.start(wire.RCReadRequest)
	h.AckRequest = true
	h.RETH = wire.RETH{
		Addr: w.Addr + uint64(i*mtu), Key: w.Key,
		Length: uint32(min(end*mtu, w.length) - i*mtu),
	}
	b.add(h, len(b.segments), 0, w)
	if to == whole {
		q.pieces.push(to)
	}
	q.sent(end-i, now)
	return true
}

// pieceEnd is where the piece of packet next ends.
func (q *QP) pieceEnd(w *Work) seq {
	i := int(q.next - w.first)
	return w.first + seq(min((i/w.piece+1)*w.piece, w.packets))
}

// placed are the responses behind a gap that are in place: a ring of bits by
// number.
type placed struct {
	bits  []uint64
	count int
}

func newPlaced(c *Config) placed {
	return placed{bits: make([]uint64, powerOfTwo((2*c.Window+63)/64))}
}

func (p *placed) size() seq { return seq(64 * len(p.bits)) }

func (p *placed) bit(s seq) (*uint64, uint64) {
	return &p.bits[s>>6&seq(len(p.bits)-1)], 1 << (s & 63)
}

func (p *placed) has(s seq) bool {
	word, bit := p.bit(s)
	return *word&bit != 0
}

// flip marks or unmarks.
func (p *placed) flip(s seq, by int) {
	word, bit := p.bit(s)
	*word ^= bit
	p.count += by
}

// absorb counts responses that are in place since before the gap was filled.
func (q *QP) absorb(w *Work) {
	for q.placed.count > 0 && w.got < w.packets && q.placed.has(w.first+seq(w.got)) {
		q.placed.flip(w.first+seq(w.got), -1)
		w.got++
	}
}

// receiveResponse takes a packet of the answer to a Read, and puts it in place.
// Responses come in order; one that is ahead says that those before it are lost,
// and that all Sends and Writes before it are carried out.
func (q *QP) receiveResponse(p *wire.Packet, s seq, now time.Duration) {
	if s < q.una || q.placed.has(s) {
		q.counters.Duplicates++
		return
	}
	w := q.readOf(s)
	if w == nil || s >= q.highest || s-q.una >= q.placed.size() {
		q.counters.Ignored++
		return
	}
	mtu, i := q.cfg.MTU.Bytes(), int(s-w.first)
	switch {
	case i < w.got:
		q.counters.Duplicates++
		return
	case len(p.Payload) != min(w.length-i*mtu, mtu):
		q.counters.Ignored++
		return
	case !q.memory.Local(w.ID):
		q.acked = max(q.acked, s)
		q.settle(now)
		q.giveUp(LocalProtection)
		return
	}
	w.place.seek(w.Segments, i*mtu)
	w.place.scatter(w.Segments, p.Payload)
	q.counters.Copied += uint64(len(p.Payload))
	if i == w.got {
		w.got++
		q.absorb(w)
	} else {
		q.placed.flip(s, 1)
		q.counters.OutOfSequence++
	}
	q.acked = max(q.acked, s+1)
	q.settle(now)
	q.readAgain(now)
}

// readOf returns the Read that a response belongs to.
func (q *QP) readOf(s seq) *Work {
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

// readAgain asks again for missing responses, once for each gap: what the peer
// has carried out it has answered.
func (q *QP) readAgain(now time.Duration) {
	g := &q.readGap
	if q.una >= q.acked || q.una >= g.at && q.una < g.end && now-g.when < q.window.again() {
		return
	}
	end := q.una + 1
	for end < q.acked && !(q.placed.count > 0 && q.placed.has(end)) {
		end++
	}
	q.counters.ImpliedNAKs++
	*g = gap{q.una, end, now}
	q.fill(q.una, end)
	q.window.lost(q.una, int(end-q.una), q.highest, true)
}
