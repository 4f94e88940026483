package initiator

import (
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/via"
)

// ownMemory is what stands for a part of the caller's memory while a command is
// under way: leases, if the target reaches the memory itself, or a slot of the pool
// between which and the memory the part is copied.
type ownMemory struct {
	leases  [wire.MaxSegments]regcache.Lease
	lengths [wire.MaxSegments]uint32 // bytes, of the leases
	n       uint8                    // leases
	slot    regcache.Slot
}

// copied reports whether it is a slot.
func (m *ownMemory) copied() bool { return m.slot.Data != nil }

// segments names the memory, of length bytes, and returns how many pieces it has.
func (m *ownMemory) segments(dst *[wire.MaxSegments]wire.Segment, length uint32) uint8 {
	if m.copied() {
		dst[0] = wire.Segment{Addr: m.slot.Addr, Handle: m.slot.Handle, Length: length}
		return 1
	}
	for i := range m.leases[:m.n] {
		l := &m.leases[i]
		dst[i] = wire.Segment{Addr: l.Addr(), Handle: l.Handle(), Length: m.lengths[i]}
	}
	return m.n
}

// access of a peer to leased memory. One registration serves both directions, as
// that of the pool does.
const access = regcache.RemoteRead | regcache.RemoteWrite

// own provides memory for the next part of a request in memory of the caller's, and
// returns its length; 0 while there is none.
func (q *Queue) own(o *op, m *ownMemory) int64 {
	r := o.request
	if o.cut >= o.piece {
		q.choose(o)
	}
	n := o.piece - o.cut
	if o.choice.Zero {
		if q.lease(r.Data[o.cut:o.piece], m) {
			q.chooser.Moved(int(n))
			return n
		}
		o.choice.Zero = false
		o.began = time.Time{}
		q.chooser.Refused()
	}
	if (q.held == 1 || n > q.most) && n > q.chunk {
		n = q.cutAt(o, q.chunk)
	}
	slot, ok := q.pool.Get(int(n))
	if !ok {
		return 0
	}
	m.slot = slot
	if r.Op == block.Write {
		begin := q.clock(o)
		copy(slot.Data, r.Data[o.cut:])
		q.bounced(o.choice, int(n), since(begin))
	}
	return n
}

// choose decides how the next piece of a request moves.
func (q *Queue) choose(o *op) {
	r := o.request
	o.piece = o.cut + q.cutAt(o, int64(q.maxIO))
	dir := regcache.Out
	if r.Op == block.Read {
		dir = regcache.In
	}
	o.choice = q.chooser.Choose(r.Data[o.cut:o.piece], q.carrier.Tag(), access, dir)
	if o.choice.Timed && q.alone && o.piece == r.Length && o.cut == 0 {
		o.began = time.Now()
	}
}

// lease leases the registrations of a piece of memory, all or none. What goes inside
// a message is in one.
func (q *Queue) lease(buf []byte, m *ownMemory) bool {
	cache, most := q.device.memory.cache, wire.MaxSegments
	if q.fitsInline(int64(len(buf))) {
		most = 1
	}
	for len(buf) > 0 {
		n := cache.Reach(buf)
		if n == 0 || int(m.n) == most {
			q.dropOwn(m)
			return false
		}
		l, err := cache.Acquire(buf[:n], q.carrier.Tag(), access)
		if err != nil {
			q.dropOwn(m)
			return false
		}
		m.leases[m.n], m.lengths[m.n] = l, uint32(n)
		m.n++
		buf = buf[n:]
	}
	return true
}

// arrive ends the use of a command's memory: what a Read brought is copied to where
// it belongs.
func (q *Queue) arrive(o *op, sl *slot, ok bool) {
	if m := &sl.own; m.copied() && ok && o.request.Op == block.Read {
		begin := q.clock(o)
		n := copy(o.request.Data[sl.off:], m.slot.Data)
		q.bounced(o.choice, n, since(begin))
	}
	q.dropOwn(&sl.own)
}

// dropOwn gives memory back. The target does not touch it any more.
func (q *Queue) dropOwn(m *ownMemory) {
	for i := range m.leases[:m.n] {
		m.leases[i].Release()
	}
	m.n = 0
	if m.copied() {
		q.pool.Put(m.slot)
		m.slot = regcache.Slot{}
	}
}

// bounced counts a copy.
func (q *Queue) bounced(v regcache.Choice, n int, took time.Duration) {
	q.stats.BytesBounced += uint64(n)
	q.chooser.Copied(v, n, took)
}

// timed is a request that was timed and has finished.
type timed struct {
	choice regcache.Choice
	began  time.Time
	took   time.Duration
}

// conclude says what the timed request took, when the next one comes: its owner has
// used the data, which costs more or less depending on whose cache it is in. What an
// owner does beside that is no concern.
func (q *Queue) conclude() {
	t := &q.timed
	q.chooser.Finished(t.choice, min(time.Since(t.began), 2*t.took))
	t.took = 0
}

// clock returns the time if a copy of the request is timed.
func (q *Queue) clock(o *op) (t time.Time) {
	if o.choice.Timed {
		t = time.Now()
	}
	return t
}

func since(begin time.Time) time.Duration {
	if begin.IsZero() {
		return 0
	}
	return time.Since(begin)
}

// withdraw ends the registrations of a connection's tag; the peer is gone.
func (m *memory) withdraw(tag via.Ptag) error {
	if m.cache == nil {
		return nil
	}
	return m.cache.InvalidateTag(tag)
}
