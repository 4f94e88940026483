// Package regcache keeps memory registered so that requests need not wait for
// registration.
//
// It has two independent parts:
//
//   - [Pool] is the bounce pool of one connection: one region, registered once
//     and divided into buffers. It has one owner and no locks.
//   - [Cache] keeps registrations of granules of its arenas for the buffers of
//     many users. It is safe for concurrent use.
//
// [CopyPolicy] decides per operation which of the two is used.
//
// # States of a cached registration
//
//	            Acquire: miss                         last Release, unretained
//	(unknown) ───────────────▶ in use, retained ──┐        policy, reclaim,
//	                             ▲  Acquire: hit  │ Release  Invalidate
//	                             └──────────── idle, retained ─────▶ dead
//
// The index is exact and lock-free: an arena is found by its bounds, a granule
// by division, its registrations by a short list. One atomic word per
// registration holds the number of leases and the bits retained, dead and
// revoked; only the goroutine that changes the word from zero to dead
// deregisters.
//
// An eviction policy, ristretto or a clock, selects the idle registrations that
// stay. A policy owns no region: it can only clear the retained bit. The cache
// enforces the budget and never exceeds it; a sweep makes room if the policy
// does not. The reaper, one goroutine, performs slow deregistrations.
//
// Memory that can be leased lies in an [Arena] made by the cache, and only the
// cache unmaps it. Memory of the Go heap cannot be leased: the runtime replaces
// its pages behind any registration.
//
// A caller that gets an error from Acquire copies through its Pool instead.
package regcache
