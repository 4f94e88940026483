package regcache

import (
	"sync/atomic"

	"github.com/viablk/viablk/via"
)

// The state word of a region: leases in the low half, three bits above.
//
//	retained + n leases    in use, stays when they are back
//	n leases               in use, deregistered when they are back
//	retained               idle, the policy or a sweep may end it
//	0                      idle, about to be deregistered; a hit revives it
//	dead (+ visitors)      deregistered or being so; never revived
//	revoked + n leases     peers have no access any more; no new lease, and
//	                       deregistered when the leases are back
//
// Retained is set once, when the region is made, and cleared at most once.
// Only the transition 0 -> dead, made once and under the granule's lock,
// entitles to deregister. A lookup that comes too late adds and takes back a
// visitor; nobody acts on that.
const (
	stateLeases   = 1<<32 - 1
	stateRetained = 1 << 32
	stateDead     = 1 << 33
	stateRevoked  = 1 << 34
)

// region is a registration of one granule for one tag and access. It is made
// for one registration and never used for another, so that a stale pointer
// meets a dead state word and not someone else's registration. It fills two
// cache lines of its own: regions in use by different goroutines do not disturb
// each other.
type region struct {
	state atomic.Uint64
	uses  atomic.Uint64 // hits; every eighth tells the policy
	next  atomic.Pointer[region]
	tag   via.Ptag

	memory *via.Memory
	handle uint32
	used   atomic.Bool // since a clock's hand passed
	access Access

	tried  atomic.Bool // was on trial
	queued atomic.Bool // owned by the reaper's list
	forget atomic.Bool // the policy is to be told of its end
	link   *region     // guarded by queued
	arena  *Arena
	index  int // of the granule in the arena
	member int // position in Cache.live, guarded by its lock
	seat   int // position in the clock policy's ring, guarded by its lock
	bytes  int // of the granule
	_      [8]byte
}

// hold takes a lease. It returns false if the region is dead or revoked; last
// says that the visit was the last of a revoked region, which is to be ended.
func (r *region) hold() (ok, last bool) {
	if r.state.Add(1)&(stateDead|stateRevoked) == 0 {
		return true, false
	}
	return false, r.state.Add(^uint64(0)) == stateRevoked
}

// drop gives a lease back. It returns true if the region is then to be ended.
func (r *region) drop() bool {
	s := r.state.Add(^uint64(0))
	if s&stateLeases == stateLeases {
		r.state.Add(1)
		panic("regcache: lease released twice")
	}
	return s&^stateRevoked == 0
}

// unretain clears the retained bit. It reports whether the bit was set, and
// whether the region is to be ended now.
func (r *region) unretain() (cleared, idle bool) {
	was := r.state.And(^uint64(stateRetained))
	return was&stateRetained != 0, was&^stateRevoked == stateRetained
}

// revoke lets nobody take a lease any more. It returns false if the region is
// dead, or was revoked before.
func (r *region) revoke() bool {
	return r.state.Or(stateRevoked)&(stateRevoked|stateDead) == 0
}

// unused reports whether no lease is out. Visitors of a dead region are none.
func (r *region) unused() bool {
	s := r.state.Load()
	return s&stateLeases == 0 || s&stateDead != 0
}

// die ends the region if it is neither retained nor leased.
func (r *region) die() bool {
	return r.state.CompareAndSwap(0, stateDead) || r.state.CompareAndSwap(stateRevoked, stateDead)
}

// key identifies granule, tag and access among all that is registered: 30 bits
// of the granule's number, 2 of access, 32 of the tag. It is the same when the
// granule is registered again, so a policy remembers how often it was used.
func (r *region) key() uint64 {
	return (r.arena.first+uint64(r.index))<<34 | uint64(r.access&3)<<32 | uint64(r.tag.ID())
}

// granuleNumbers limits the granules of all arenas, see region.key.
const granuleNumbers = 1 << 30
