package initiator

import (
	"errors"
	"fmt"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/via"
)

// detained is memory of the caller's that a command named, and that the target
// may still access although the connection has ended. The request waits.
type detained struct {
	op      uint16
	mapping payloadMapping
}

// accessed reports whether the target may access leased memory of a mapping
// after the end of the connection.
func (m *payloadMapping) accessed() bool {
	for i := range m.leases[:m.n] {
		if m.leases[i].Memory().Accessed() {
			return true
		}
	}
	return false
}

// quarantine puts the memory of a connection that has ended into quarantine, as
// far as the target may still access it. It does so before anything of it is
// released.
func (q *Queue) quarantine(cause error) {
	if !errors.Is(cause, via.ErrStillAccessed) {
		return
	}
	p := &q.payload
	for i := range q.slots.slots {
		if sl := &q.slots.slots[i]; sl.mapping.accessed() {
			p.detained = append(p.detained, detained{sl.op, sl.mapping})
			sl.mapping = payloadMapping{}
			q.requests.bar(sl.op)
			p.quarantine.hold(cause)
		}
	}
	if m := p.pool.Memory(); m != nil && m.Accessed() {
		p.retire(cause)
	}
}

// releaseDetained releases the memory that the target does not access any more:
// its requests go on.
func (q *Queue) releaseDetained() {
	kept := q.payload.detained[:0]
	for i := range q.payload.detained {
		d := &q.payload.detained[i]
		if d.mapping.accessed() {
			kept = append(kept, *d)
			continue
		}
		q.payload.releaseMapping(&d.mapping)
		q.payload.quarantine.release()
		q.requests.unbar(d.op)
	}
	clear(q.payload.detained[len(kept):])
	q.payload.detained = kept
}

// awaitDetained waits until the target accesses no memory of requests any more,
// and returns an error if it does for too long.
func (q *Queue) awaitDetained(until time.Time) error {
	for scheduler := q.device.cfg.Scheduler; ; _ = scheduler.Poll(nil, longestPoll) {
		if len(q.payload.detained) != 0 {
			q.releaseDetained()
		}
		n := len(q.payload.detained)
		if n == 0 {
			return nil
		}
		if !scheduler.Now().Before(until) {
			return fmt.Errorf("close queue: memory of %d requests: %w", n, via.ErrStillAccessed)
		}
	}
}

// retire puts the pool into quarantine, with the buffers that are out.
func (p *payload) retire(cause error) {
	p.quarantine.retire(p.pool, cause)
	p.retired = append(p.retired, p.pool)
	if p.extra != nil {
		p.quarantine.retire(p.extra, cause)
		p.retired, p.extra = append(p.retired, p.extra), nil
	}
	p.pool = new(regcache.Pool) // gives nothing
	p.passRetired()
}

// passRetired passes the retired pools without buffers that are out to the
// device.
func (p *payload) passRetired() {
	kept := p.retired[:0]
	for _, old := range p.retired {
		if old.Stats().Buffers != 0 {
			kept = append(kept, old)
		} else {
			p.quarantine.add(old)
		}
	}
	clear(p.retired[len(kept):])
	p.retired = kept
}

// replace makes a pool in place of a retired one. It returns false if there is
// one, or while too much memory is in quarantine.
func (p *payload) replace() bool {
	if p.pool.Memory() != nil || p.quarantine.full() {
		return false
	}
	pool, err := p.makePool(p.poolBytes)
	if err != nil {
		p.quarantine.log.Warn("no memory in place of that in quarantine: requests wait", "event", "quarantine_full", "error", err)
		return false
	}
	p.pool = pool
	return true
}

// strayed reports whether a request has a buffer of a retired pool.
func (p *payload) strayed(r *block.Request) bool {
	return len(p.retired) != 0 && r.Memory&reservedPool != 0 && !p.pool.Owns(&p.reserved[r.Memory&reservedIndex])
}

// move moves a request from a retired pool to the present one, or returns false
// while that is exhausted.
func (p *payload) move(r *block.Request) bool {
	to, ok := p.get(int(r.Length))
	if !ok {
		return false
	}
	old := &p.reserved[r.Memory&reservedIndex]
	if r.Op == block.Write {
		copy(to.Data, old.Data)
	}
	p.put(*old)
	*old, r.Data = to, to.Data
	return true
}

// poll shortens a sleep while requests wait for what no event tells: that a
// target leaves memory, or that another pool is possible.
func (p *payload) poll(d time.Duration, requests int) time.Duration {
	if len(p.detained) == 0 && (requests == 0 || p.pool.Memory() != nil) || d >= 0 && d <= longestPoll {
		return d
	}
	return longestPoll
}
