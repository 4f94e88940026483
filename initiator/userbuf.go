package initiator

import (
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/via"
)

// payloadMapping is the registered memory of a command whose payload is in
// memory of the caller's: leases if the target accesses that memory itself, or
// a bounce buffer that the queue copies to or from.
type payloadMapping struct {
	leases  [wire.MaxSegments]regcache.Lease
	lengths [wire.MaxSegments]uint32 // bytes, of the leases
	n       uint8                    // leases
	buffer  regcache.Buffer
}

// copied reports whether the mapping is a bounce buffer.
func (m *payloadMapping) copied() bool { return m.buffer.Data != nil }

// segments writes the segments of length bytes and returns their number.
func (m *payloadMapping) segments(dst *[wire.MaxSegments]wire.Segment, length uint32) uint8 {
	if m.copied() {
		dst[0] = wire.Segment{Addr: m.buffer.Addr, Handle: m.buffer.Handle, Length: length}
		return 1
	}
	for i := range m.leases[:m.n] {
		l := &m.leases[i]
		dst[i] = wire.Segment{Addr: l.Addr(), Handle: l.Handle(), Length: m.lengths[i]}
	}
	return m.n
}

// access is the RDMA access to leased memory. One registration serves both
// directions, as that of the pool does.
const access = regcache.RemoteRead | regcache.RemoteWrite

// mapPayload maps the next part of a request in memory of the caller's and
// returns its length, or 0 while the pool is exhausted. only means that the
// queue has no other request, alone that this one had it for itself.
func (p *payload) mapPayload(o *op, m *payloadMapping, only, alone bool) int64 {
	r := o.request
	if o.cut >= o.piece {
		p.choose(o, alone)
	}
	n := o.piece - o.cut
	if o.choice.Zero {
		if p.lease(r.Data[o.cut:o.piece], m) {
			p.chooser.Moved(int(n))
			return n
		}
		o.choice.Zero = false
		o.began = time.Time{}
		p.chooser.Refused()
	}
	if (only || n > p.poolBytes) && n > p.chunk {
		n = p.limits.cutAt(o, p.chunk)
	}
	buffer, ok := p.get(int(n))
	if !ok {
		return 0
	}
	p.copyThrough(o, m, buffer, n)
	return n
}

// copyThrough has the next n bytes of a request pass through a buffer.
func (p *payload) copyThrough(o *op, m *payloadMapping, buffer regcache.Buffer, n int64) {
	m.buffer = buffer
	if r := o.request; r.Op == block.Write {
		begin := p.clock(o)
		copy(buffer.Data, r.Data[o.cut:])
		p.countCopy(o.choice, int(n), p.since(begin))
	}
}

// mapExtra maps a chunk of a request in memory of the caller's that provide has
// refused, in memory beside the pool. Requests that reserved the pool may wait
// for this one, behind it or for its range; then nothing in flight will make
// room.
func (p *payload) mapExtra(o *op, m *payloadMapping) int64 {
	r := o.request
	if r.Op != block.Read && r.Op != block.Write || r.Memory != 0 || p.private != nil {
		return 0
	}
	if p.extra == nil {
		extra, err := p.makePool(p.chunk)
		if err != nil {
			return 0 // the request waits, and tries again
		}
		p.extra = extra
	}
	n := p.limits.cutAt(o, min(p.chunk, o.piece-o.cut))
	buffer, ok := p.extra.Get(int(n))
	if !ok {
		return 0
	}
	p.copyThrough(o, m, buffer, n)
	return n
}

// choose decides whether the next piece of a request is leased or copied.
func (p *payload) choose(o *op, alone bool) {
	r := o.request
	o.piece = o.cut + p.limits.cutAt(o, int64(p.limits.maxIO))
	dir := regcache.Out
	if r.Op == block.Read {
		dir = regcache.In
	}
	o.choice = p.chooser.Choose(r.Data[o.cut:o.piece], p.tag, access, dir)
	if o.choice.Timed && alone && o.piece == r.Length && o.cut == 0 {
		o.began = p.scheduler.Now()
	}
}

// lease leases the registrations of a piece of memory, all or none. An inline
// payload must lie in one registration.
func (p *payload) lease(buf []byte, m *payloadMapping) bool {
	cache, most := p.cache, wire.MaxSegments
	if p.limits.fitsInline(int64(len(buf))) {
		most = 1
	}
	for len(buf) > 0 {
		n := cache.Reach(buf)
		if n == 0 || int(m.n) == most {
			p.releaseMapping(m)
			return false
		}
		l, err := cache.Acquire(buf[:n], p.tag, access)
		if err != nil {
			p.releaseMapping(m)
			return false
		}
		m.leases[m.n], m.lengths[m.n] = l, uint32(n)
		m.n++
		buf = buf[n:]
	}
	return true
}

// finish ends the use of a command's memory. It copies the data of a bounced
// Read to the caller's memory.
func (p *payload) finish(o *op, sl *slot, ok bool) {
	if m := &sl.mapping; m.copied() && ok && o.request.Op == block.Read && p.private == nil {
		begin := p.clock(o)
		n := copy(o.request.Data[sl.off:], m.buffer.Data)
		p.countCopy(o.choice, n, p.since(begin))
	}
	p.releaseMapping(&sl.mapping)
}

// releaseMapping releases a mapping that the target does not access any more.
func (p *payload) releaseMapping(m *payloadMapping) {
	for i := range m.leases[:m.n] {
		m.leases[i].Release()
	}
	m.n = 0
	if m.copied() {
		p.put(m.buffer)
		m.buffer = regcache.Buffer{}
	}
}

// countCopy counts a copy.
func (p *payload) countCopy(v regcache.Choice, n int, cost time.Duration) {
	p.bytesBounced += uint64(n)
	p.chooser.Copied(v, n, cost)
}

// timed is a completed request whose cost was measured.
type timed struct {
	choice regcache.Choice
	began  time.Time
	cost   time.Duration
}

// finished notes the cost of a request that was timed and had the queue for
// itself.
func (p *payload) finished(o *op, alone bool) {
	if !o.began.IsZero() && alone && o.err == nil {
		p.timed = timed{o.choice, o.began, p.since(o.began)}
	}
}

// reportTimed reports the cost of the timed request when the next one is
// submitted: the owner has then used the data, whose cost depends on the cache
// that holds it. The cap at twice the cost excludes other work of the owner.
func (p *payload) reportTimed() {
	t := &p.timed
	if t.cost == 0 {
		return
	}
	p.chooser.Finished(t.choice, min(p.since(t.began), 2*t.cost))
	t.cost = 0
}

// clock returns the time if a copy of the request is timed, else zero.
func (p *payload) clock(o *op) (t time.Time) {
	if o.choice.Timed {
		t = p.scheduler.Now()
	}
	return t
}

// since returns the time since begin, or 0 if that is zero.
func (p *payload) since(begin time.Time) time.Duration {
	if begin.IsZero() {
		return 0
	}
	return p.scheduler.Now().Sub(begin)
}

// invalidateTag ends the registrations under a connection's tag after the
// disconnect.
func (m *memory) invalidateTag(tag via.Ptag) error {
	if m.cache == nil {
		return nil
	}
	return m.cache.InvalidateTag(tag)
}
