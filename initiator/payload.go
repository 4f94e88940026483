package initiator

import (
	"errors"
	"fmt"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/via"
)

// Bits of Request.Memory: a reservation, from the pool (the index is its
// buffer) or as a receive, which is posted or held.
const (
	reservedAny   = 1 << 63
	reservedPool  = 1 << 62
	reservedHeld  = 1 << 61 // the index is the command slot whose receive is held
	reservedIndex = 1<<32 - 1
)

// payload owns the memory that a queue's payload moves through: the bounce
// pool, its reservations, and the leases of memory of the caller's. Its steps:
//
//  1. reserve  a caller that wants to fill the pool itself gets a buffer
//  2. provide  a command gets leases, a bounce buffer, or what was reserved;
//     from here on the target may access it
//  3. expose   the command names it to the target
//  4. finish   the command is answered: leases and bounce buffer are free
//  5. release  the caller has used what was reserved
type payload struct {
	tag     via.Ptag // of the connection
	limits  limits
	cache   *regcache.Cache // the device's; nil if it registers nothing
	pool    *regcache.Pool
	private *regcache.Pool // of reservations, in a sealed session; the target can not reach it
	chooser *regcache.CopyPolicy

	scheduler sched.Scheduler // times copies

	chunk     int64          // bytes that a copy is cut into
	poolBytes int64          // bytes of the pool
	extra     *regcache.Pool // a chunk, see mapExtra; nil before it was needed
	makePool  func(bytes int64) (*regcache.Pool, error)

	quarantine *quarantine      // the device's
	retired    []*regcache.Pool // in quarantine, with buffers that are out
	detained   []detained       // memory of the caller's

	reserved     []regcache.Buffer // pool memory of requests that reserved it
	freeReserved []uint32
	timed        timed

	bytesBounced, waits uint64
}

// cheapCopy is the size, in bytes, up to which a copy costs no more than a
// lease.
const cheapCopy = 4 << 10

// equip allocates the pool of a connection.
func (p *payload) equip(cfg *Config, m *memory, tag via.Ptag) (err error) {
	p.tag, p.cache, p.scheduler = tag, m.cache, cfg.Scheduler
	p.makePool = func(bytes int64) (*regcache.Pool, error) {
		return regcache.NewPool(cfg.NIC, int(bytes), via.MemAttributes{
			Ptag: tag, EnableRdmaWrite: true, EnableRdmaRead: true,
		})
	}
	if p.pool, err = p.makePool(int64(cfg.PoolBytes)); err != nil {
		return err
	}
	if cfg.sealed() {
		if p.private, err = regcache.NewPool(cfg.NIC, cfg.PoolBytes, via.MemAttributes{Ptag: tag}); err != nil {
			return err
		}
	}
	p.chooser = m.chooser()
	p.chooseInline()
	block := p.limits.block
	p.chunk, p.poolBytes = max(int64(cfg.Chunk)&^(block-1), block), int64(cfg.PoolBytes)
	if p.chunk > p.poolBytes {
		return fmt.Errorf("bounce memory of %d bytes, for blocks of %d", p.poolBytes, block)
	}
	return nil
}

// chooseInline tells the chooser what goes inside a message.
func (p *payload) chooseInline() {
	p.chooser.Inline(regcache.In, int(p.limits.inline)) // an inline Read needs no memory
	p.chooser.Inline(regcache.Out, int(min(p.limits.inline, cheapCopy)))
}

// reserve provides memory that payload leaves without a further copy: a buffer
// of the pool, or, for an inline Read, the receive that the answer arrives in.
func (p *payload) reserve(r *block.Request) bool {
	if r.Op == block.Read && p.limits.fitsInline(r.Length) {
		r.Memory = reservedAny
		return true
	}
	if r.Op != block.Read && r.Op != block.Write {
		return true
	}
	k := len(p.freeReserved)
	if k == 0 {
		p.reserved = append(p.reserved, regcache.Buffer{}) // at most one for each request
		p.freeReserved = append(p.freeReserved, uint32(len(p.reserved)-1))
		k = len(p.freeReserved)
	}
	m, ok := p.getReserved(int(r.Length))
	if !ok {
		p.waits++
		return false
	}
	i := p.freeReserved[k-1]
	p.freeReserved = p.freeReserved[:k-1]
	p.reserved[i] = m
	r.Memory = reservedAny | reservedPool | uint64(i)
	r.Data = m.Data
	return true
}

// getReserved returns a buffer for a reservation.
func (p *payload) getReserved(n int) (regcache.Buffer, bool) {
	if p.private != nil {
		return p.private.Get(n)
	}
	return p.get(n)
}

// get returns a buffer of the pool. A pool in place of a retired one is made
// here, when it is needed.
func (p *payload) get(n int) (regcache.Buffer, bool) {
	b, ok := p.pool.Get(n)
	if !ok && p.replace() {
		return p.pool.Get(n)
	}
	return b, ok
}

// put returns a buffer to its pool.
func (p *payload) put(b regcache.Buffer) {
	b.Release()
	if len(p.retired) != 0 {
		p.passRetired()
	}
}

// release frees a pool buffer that reserve provided.
func (p *payload) release(i uint32) {
	p.put(p.reserved[i])
	p.reserved[i] = regcache.Buffer{}
	p.freeReserved = append(p.freeReserved, i)
}

// maxRange is the longest range of a command without payload: a multiple of
// every block size that fits 32 bits.
const maxRange = 1 << 31

// provide returns how many bytes of a request the next command covers. It gets
// memory that the target may access if the request uses memory of the caller's,
// and returns 0 while that is exhausted.
func (p *payload) provide(o *op, m *payloadMapping, only, alone bool) int64 {
	r := o.request
	switch {
	case r.Op != block.Read && r.Op != block.Write:
		return max(1, p.limits.cutAt(o, maxRange)) // a Flush has no length
	case p.private != nil:
		return p.provideSealed(o, m, only)
	case r.Op == block.Read && r.Memory == reservedAny && !p.limits.fitsInline(r.Length):
		// Reserved when the target took more inside a message than it does now.
		if !p.reserve(r) {
			return 0
		}
		return p.limits.cutAt(o, int64(p.limits.maxIO))
	case p.strayed(r) && !p.move(r):
		p.waits++
		return 0
	case r.Memory != 0 || r.Op == block.Read && p.limits.fitsInline(r.Length):
		return p.limits.cutAt(o, int64(p.limits.maxIO))
	}
	n := p.mapPayload(o, m, only, alone)
	if n == 0 {
		p.waits++
	}
	return n
}

// expose decides how the payload of a command moves: inside the message if it
// is small, else by the target's RDMA. It returns the payload that goes inside
// the message.
func (p *payload) expose(cmd *wire.Command, o *op, m *payloadMapping) carrier.Span {
	r := o.request
	if p.private != nil {
		p.exposeSealed(cmd, r, m)
		return carrier.Span{}
	}
	if cmd.Length <= p.limits.inline && r.Length <= int64(p.limits.inline) {
		cmd.Mode = wire.ModeInline
		if r.Op == block.Read {
			return carrier.Span{}
		}
		cmd.InlineLength = cmd.Length
		p.segments(cmd, o, m)
		s := cmd.Segments[0]
		cmd.NumSegments, cmd.Segments[0] = 0, wire.Segment{}
		return carrier.Span{Addr: s.Addr, Handle: s.Handle, Length: s.Length}
	}
	cmd.Mode = wire.ModePull
	if r.Op == block.Read {
		cmd.Mode = wire.ModePlace
	}
	p.segments(cmd, o, m)
	return carrier.Span{}
}

// segments sets the segments of a command: reserved memory, leases, or a bounce
// buffer.
func (p *payload) segments(cmd *wire.Command, o *op, m *payloadMapping) {
	if r := o.request; r.Memory&reservedPool != 0 {
		b := &p.reserved[r.Memory&reservedIndex]
		cmd.NumSegments = 1
		cmd.Segments[0] = wire.Segment{Addr: b.Addr + uint64(o.cut), Handle: b.Handle, Length: cmd.Length}
		return
	}
	cmd.NumSegments = m.segments(&cmd.Segments, cmd.Length)
}

// close releases the pool and what is in it; the target does not access any of
// it but what is in quarantine.
func (p *payload) close(slots []slot) error {
	if p.pool == nil {
		return nil
	}
	p.releaseAll(slots)
	for i := range p.reserved {
		if p.reserved[i].Data != nil {
			p.put(p.reserved[i])
		}
	}
	for i := range p.detained { // awaitDetained returned an error
		p.releaseMapping(&p.detained[i].mapping)
		p.quarantine.release()
	}
	p.detained = nil
	var err error
	for _, pool := range []*regcache.Pool{p.pool, p.extra, p.private} {
		if pool != nil && pool.Memory() != nil {
			err = errors.Join(err, pool.Close())
		}
	}
	return err
}

// releaseAll releases the mappings of all slots.
func (p *payload) releaseAll(slots []slot) {
	for i := range slots {
		p.releaseMapping(&slots[i].mapping)
	}
}
