package initiator

import (
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/regcache"
)

// What Request.Memory says: whether something is reserved, whether it is pool
// memory, whose slot is at the index, or a receive to come or held.
const (
	reservedAny   = 1 << 63
	reservedPool  = 1 << 62
	reservedHeld  = 1 << 61 // the index is the command slot whose receive is held
	reservedIndex = 1<<32 - 1
)

// Reserve provides memory that travels without a further copy: pool memory, or,
// for a small Read, the receive that the answer arrives in.
func (q *Queue) Reserve(r *block.Request) bool {
	if r.Op == block.Read && q.fitsInline(r.Length) {
		r.Memory = reservedAny
		return true
	}
	if r.Op != block.Read && r.Op != block.Write {
		return true
	}
	k := len(q.freeReserved)
	if k == 0 {
		q.reserved = append(q.reserved, regcache.Slot{}) // as many as requests at most at a time
		q.freeReserved = append(q.freeReserved, uint32(len(q.reserved)-1))
		k = len(q.freeReserved)
	}
	m, ok := q.pool.Get(int(r.Length))
	if !ok {
		q.stats.WaitsForMemory++
		return false
	}
	i := q.freeReserved[k-1]
	q.freeReserved = q.freeReserved[:k-1]
	q.reserved[i] = m
	r.Memory = reservedAny | reservedPool | uint64(i)
	r.Data = m.Data
	return true
}

// Release gives back what Reserve provided.
func (q *Queue) Release(r *block.Request) {
	m := r.Memory
	if m == 0 {
		return
	}
	r.Memory, r.Data = 0, nil
	i := uint32(m & reservedIndex)
	switch {
	case m&reservedPool != 0:
		q.pool.Put(q.reserved[i])
		q.reserved[i] = regcache.Slot{}
		q.freeReserved = append(q.freeReserved, i)
		q.resume()
	case m&reservedHeld != 0:
		q.releaseReceive(uint16(i))
	}
}

// releaseReceive posts the receive of an answered slot again; the slot's credit
// is free with it, so that there is a receive for every command under way.
func (q *Queue) releaseReceive(at uint16) {
	sl := &q.slots[at]
	sl.held = false
	if q.failure != nil {
		sl.owed = true
		return
	}
	if err := q.carrier.Post(q.carrier.Receive(sl.receive)); err != nil {
		q.fail(err)
		return
	}
	q.freeSlot(at)
	q.resume()
}
