package regcache

import (
	"sync/atomic"

	"github.com/viablk/viablk/via"
)

// The state word of a region: leases in the low half, three bits above.
//
//	retained + n leases    in use, stays registered after the last release
//	n leases               in use, deregistered by the last release
//	retained               idle, the policy or a sweep may end it
//	0                      idle, about to be deregistered; a hit revives it
//	dead (+ visitors)      deregistered or being so; never revived
//	revoked + n leases     no access of peers, no new lease; deregistered
//	                       by the last release
//
// Retained is set once, when the region is made, and cleared at most once.
// Only the goroutine that makes the transition 0 -> dead, once and under the
// granule's lock, deregisters. A late lookup adds and removes a visitor, which
// has no effect.
const (
	stateLeases   = 1<<32 - 1
	stateRetained = 1 << 32
	stateDead     = 1 << 33
	stateRevoked  = 1 << 34
)

// region is a registration of one granule for one tag and access. It is never
// reused, so a stale pointer meets a dead state word and not another
// registration. It fills two cache lines, so that regions in use by different
// goroutines do not share one.
type region struct {
	state atomic.Uint64
	uses  atomic.Uint64 // hits; every eighth is reported to the policy
	next  atomic.Pointer[region]
	tag   via.Ptag

	memory *via.Memory
	handle uint32
	used   atomic.Bool // since a clock's hand passed
	access Access

	probated      atomic.Bool // has been on probation
	queued        atomic.Bool // in the reaper's queue
	forgetPending atomic.Bool // the policy must be told of its end
	nextQueued    *region     // next in the reaper's queue
	arena         *Arena
	index         int // of the granule in the arena
	liveIndex     int // position in Cache.live, guarded by live.mu
	clockIndex    int // position in clockPolicy.kept, guarded by its mu
	bytes         int // of the granule
	_             [8]byte
}

// acquire takes a lease. It returns ok = false if the region is dead or
// revoked; last reports that this was the last visit of a revoked region, which
// the caller must end.
func (r *region) acquire() (ok, last bool) {
	if r.state.Add(1)&(stateDead|stateRevoked) == 0 {
		return true, false
	}
	return false, r.state.Add(^uint64(0)) == stateRevoked
}

// release returns a lease. It returns true if the caller must end the region.
func (r *region) release() bool {
	s := r.state.Add(^uint64(0))
	if s&stateLeases == stateLeases {
		r.state.Add(1)
		panic("regcache: lease released twice")
	}
	return s&^stateRevoked == 0
}

// unretain clears the retained bit. It reports whether the bit was set, and
// whether the caller must end the region.
func (r *region) unretain() (cleared, idle bool) {
	was := r.state.And(^uint64(stateRetained))
	return was&stateRetained != 0, was&^stateRevoked == stateRetained
}

// revoke prevents new leases. It returns false if the region is dead, or was
// revoked before.
func (r *region) revoke() bool {
	return r.state.Or(stateRevoked)&(stateRevoked|stateDead) == 0
}

// unleased reports whether no lease is out; visitors of a dead region do not
// count.
func (r *region) unleased() bool {
	s := r.state.Load()
	return s&stateLeases == 0 || s&stateDead != 0
}

// markDead makes the region dead if it is neither retained nor leased.
func (r *region) markDead() bool {
	return r.state.CompareAndSwap(0, stateDead) || r.state.CompareAndSwap(stateRevoked, stateDead)
}

// key identifies granule, tag and access among all registrations: 30 bits of
// the granule's number, 2 of access, 32 of the tag. A granule that is
// registered again has the same key, so a policy remembers how often it was
// used.
func (r *region) key() uint64 {
	return (r.arena.first+uint64(r.index))<<34 | uint64(r.access&3)<<32 | uint64(r.tag.ID())
}

// granuleNumbers limits the granules of all arenas, see region.key.
const granuleNumbers = 1 << 30
