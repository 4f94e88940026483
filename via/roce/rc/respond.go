package rc

import "github.com/viablk/viablk/via/roce/wire"

// read is a read request of the peer.
type read struct {
	first   seq
	packets int
	key     uint32
	addr    uint64
	length  int // bytes
	sent    int // packets
	msn     wire.MSN
}

// reads is a ring of read requests. It has no memory before the first.
type reads struct {
	items       []read
	limit       int
	first, last uint64
}

func newReads(limit int) reads { return reads{limit: limit} }

func (r *reads) len() int { return int(r.last - r.first) }

func (r *reads) at(i uint64) *read { return &r.items[i%uint64(len(r.items))] }

func (r *reads) full() bool { return r.len() == r.limit }

func (r *reads) push(x read) {
	if r.items == nil {
		r.items = make([]read, r.limit)
	}
	*r.at(r.last) = x
	r.last++
}

func (r *reads) clear() { r.first = r.last }

// executeRead queues the answer to a read request. Its bytes are read when the
// responses are sent.
func (q *QP) executeRead(p *wire.Packet) wire.Syndrome {
	if v := q.checkRange(p, q.cfg.AllowRead && q.cfg.PeerReads > 0, RemoteRead); v != wire.ACK {
		q.event(ReadRefused)
		return v
	}
	n := q.cfg.MTU.Packets(int(p.RETH.Length))
	if n > maxReadPackets || q.responses.full() {
		return wire.NAKInvalidRequest
	}
	q.msn = q.msn.Add(1)
	x := read{
		first: q.expected, packets: n, key: p.RETH.Key, addr: p.RETH.Addr,
		length: int(p.RETH.Length), msn: q.msn,
	}
	if q.remembered.full() {
		q.remembered.first++
	}
	q.remembered.push(x)
	q.responses.push(x)
	q.expected += seq(n)
	return wire.ACK
}

// readDuplicate answers a read request again, or a part of one.
func (q *QP) readDuplicate(p *wire.Packet, s seq) {
	mtu, h := q.cfg.MTU.Bytes(), &p.RETH
	for i := q.remembered.first; i != q.remembered.last; i++ {
		x := *q.remembered.at(i)
		if s < x.first || s >= x.first+seq(x.packets) {
			continue
		}
		off := int(s-x.first) * mtu
		if h.Key != x.key || h.Addr != x.addr+uint64(off) || int(h.Length) > x.length-off || h.Length == 0 && x.length > 0 {
			return
		}
		x.first, x.addr, x.length = s, h.Addr, int(h.Length)
		x.packets = q.cfg.MTU.Packets(x.length)
		q.responses.insert(x, q.cfg.PeerReads)
		return
	}
}

// insert puts a request in its place by number, for responses come in order, or
// in the place of one with the same end. Beyond limit requests it is dropped: it
// will come again.
func (r *reads) insert(x read, limit int) {
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

func (r *read) end() seq { return r.first + seq(r.packets) }

// emitAnswers sends responses of reads, at most limit packets, and then the
// acknowledgement or refusal that waits: it speaks of what came after them.
func (q *QP) emitAnswers(b *Burst, limit int) {
	for ; limit > 0 && q.responses.len() > 0; limit-- {
		if !q.emitResponse(b, q.responses.at(q.responses.first)) {
			q.event(ReadRefused)
			q.fail(BadAccess)
		}
	}
	a := &q.answer
	if limit <= 0 || !a.waits {
		return
	}
	a.waits = false
	h := q.start(wire.RCAcknowledge)
	h.PSN = a.at.psn()
	h.AETH = wire.AETH{Syndrome: a.syndrome, MSN: q.msn}
	b.add(h, len(b.segments), 0, nil)
	q.counters.Sent++
}

// emitResponse sends the next packet of an answer. It returns false, and leaves a
// refusal, if the memory is no longer the peer's to read.
func (q *QP) emitResponse(b *Burst, x *read) bool {
	mtu := q.cfg.MTU.Bytes()
	off := x.sent * mtu
	n := min(x.length-off, mtu)
	s := x.first + seq(x.sent)
	at := len(b.segments)
	if n > 0 {
		bytes := q.memory.Remote(x.key, x.addr+uint64(off), n, RemoteRead)
		if bytes == nil {
			q.counters.NAKsSent++
			q.reply(wire.NAKRemoteAccess, s)
			return false
		}
		b.segments = append(b.segments, bytes[:n])
	}
	x.sent++
	h := q.start(responseOpcode(x.sent == 1, x.sent == x.packets))
	h.PSN = s.psn()
	h.AETH = wire.AETH{Syndrome: wire.ACK, MSN: x.msn}
	b.add(h, at, n, nil)
	q.counters.Sent++
	if x.sent == x.packets {
		q.responses.first++
	}
	return true
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
