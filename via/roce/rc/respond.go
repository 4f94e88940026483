package rc

import "github.com/viablk/viablk/via/roce/wire"

// maxReadPackets bounds one read request of the peer.
const maxReadPackets = maxPackets

// readRequest is a read request of the peer. It travels
//
//	1 executeRead       checks the range and queues it, also in recentReads
//	2 emitReadResponse  looks up the memory for each response; the burst refers
//	                    to it until the packets are sent
//	3 replayRead        queues it again, or a part of it, if the peer repeats it
type readRequest struct {
	first   seq
	packets int
	key     uint32
	addr    uint64
	length  int // bytes
	sent    int // packets
	msn     wire.MSN
}

// readRing is a ring of read requests. It allocates at the first one.
type readRing struct {
	items       []readRequest
	limit       int
	first, last uint64
}

func newReadRing(limit int) readRing { return readRing{limit: limit} }

func (r *readRing) len() int { return int(r.last - r.first) }

func (r *readRing) at(i uint64) *readRequest { return &r.items[i%uint64(len(r.items))] }

func (r *readRing) full() bool { return r.len() == r.limit }

func (r *readRing) push(x readRequest) {
	if r.items == nil {
		r.items = make([]readRequest, r.limit)
	}
	*r.at(r.last) = x
	r.last++
}

func (r *readRing) clear() { r.first = r.last }

// executeRead queues a read request; emitReadResponse reads its bytes.
func (q *responder) executeRead(p *wire.Packet) wire.Syndrome {
	if v := q.checkRange(p, q.cfg.AllowRead && q.cfg.PeerReads > 0, RemoteRead); v != wire.ACK {
		q.event(ReadRefused)
		return v
	}
	n := q.cfg.MTU.Packets(int(p.RETH.Length))
	if n > maxReadPackets || q.pendingReads.full() {
		return wire.NAKInvalidRequest
	}
	q.msn = q.msn.Add(1)
	x := readRequest{
		first: q.expected, packets: n, key: p.RETH.Key, addr: p.RETH.Addr,
		length: int(p.RETH.Length), msn: q.msn,
	}
	if q.recentReads.full() {
		q.recentReads.first++
	}
	q.recentReads.push(x)
	q.pendingReads.push(x)
	q.expected += seq(n)
	return wire.ACK
}

// replayRead answers a repeated read request, or a part of one.
func (q *responder) replayRead(p *wire.Packet, s seq) {
	mtu, h := q.cfg.MTU.Bytes(), &p.RETH
	for i := q.recentReads.first; i != q.recentReads.last; i++ {
		x := *q.recentReads.at(i)
		if s < x.first || s >= x.first+seq(x.packets) {
			continue
		}
		off := int(s-x.first) * mtu
		if h.Key != x.key || h.Addr != x.addr+uint64(off) || int(h.Length) > x.length-off || h.Length == 0 && x.length > 0 {
			return
		}
		x.first, x.addr, x.length = s, h.Addr, int(h.Length)
		x.packets = q.cfg.MTU.Packets(x.length)
		q.pendingReads.insert(x, q.cfg.PeerReads)
		return
	}
}

// insert adds a request in order of its number, because responses are sent in
// order, or replaces one with the same end. It drops requests beyond limit: the
// peer repeats them.
func (r *readRing) insert(x readRequest, limit int) {
	i := r.last
	for i != r.first && r.at(i-1).end() >= x.end() {
		i--
	}
	if i != r.last && r.at(i).end() == x.end() {
		if y := r.at(i); x.first < y.first+seq(y.sent) {
			*y = x
		}
		return
	}
	if r.len() >= limit {
		return
	}
	r.last++
	for j := r.last - 1; j != i; j-- {
		*r.at(j) = *r.at(j - 1)
	}
	*r.at(i) = x
}

func (r *readRequest) end() seq { return r.first + seq(r.packets) }

// owes reports whether emit has something to send.
func (q *responder) owes() bool { return q.ack.pending || q.pendingReads.len() > 0 }

// emit sends read responses, at most limit packets, and then the pending
// acknowledgement or refusal, which covers later requests. It returns why the
// connection breaks, or OK.
func (q *responder) emit(b *Burst, limit int) Status {
	cause := OK
	for ; limit > 0 && cause == OK && q.pendingReads.len() > 0; limit-- {
		cause = q.emitReadResponse(b, q.pendingReads.at(q.pendingReads.first))
	}
	if limit > 0 && q.ack.pending {
		q.emitAck(b)
	}
	return cause
}

// emitAck sends the pending acknowledgement or refusal.
func (q *responder) emitAck(b *Burst) {
	a := &q.ack
	a.pending = false
	h := q.start(b, wire.RCAcknowledge, a.at)
	h.AETH = wire.AETH{Syndrome: a.syndrome, MSN: q.msn}
	b.add(h, len(b.segments), 0, nil)
	q.counters.Sent++
}

// emitReadResponse sends the next response of a read request. If the peer may
// no longer read the memory, it sets a refusal, and the connection breaks.
func (q *responder) emitReadResponse(b *Burst, x *readRequest) Status {
	mtu := q.cfg.MTU.Bytes()
	off := x.sent * mtu
	n := min(x.length-off, mtu)
	s := x.first + seq(x.sent)
	at := len(b.segments)
	if n > 0 {
		bytes := q.memory.Remote(x.key, x.addr+uint64(off), n, RemoteRead)
		if bytes == nil {
			q.event(ReadRefused)
			q.counters.NAKsSent++
			q.setAck(wire.NAKRemoteAccess, s)
			return BadAccess
		}
		b.segments = append(b.segments, bytes[:n])
	}
	x.sent++
	h := q.start(b, responseOpcode(x.sent == 1, x.sent == x.packets), s)
	h.AETH = wire.AETH{Syndrome: wire.ACK, MSN: x.msn}
	b.add(h, at, n, nil)
	q.counters.Sent++
	if x.sent == x.packets {
		q.pendingReads.first++
	}
	return OK
}

func responseOpcode(first, last bool) wire.Opcode {
	switch {
	case first && last:
		return wire.RCReadResponseOnly
	case first:
		return wire.RCReadResponseFirst
	case last:
		return wire.RCReadResponseLast
	}
	return wire.RCReadResponseMiddle
}
