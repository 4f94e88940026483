// Package regcache keeps memory registered so that requests need not wait for
// registration.
//
// It has two parts that share nothing but the idea:
//
//   - [Pool] is the bounce pool of one connection: one region registered once,
//     from which slots are cut. One owner, no locks.
//   - [Cache] keeps registrations of granules of its arenas for the buffers of
//     many users. It is safe for concurrent use.
//
// # How a cached registration lives
//
//	            Acquire: miss                         last Release, not retained
//	(unknown) ───────────────▶ in use, retained ──┐        policy, reclaim,
//	                             ▲  Acquire: hit  │ Release  Invalidate
//	                             └──────────── idle, retained ─────▶ dead
//
// The index is exact and lock-free: an arena is found by its bounds, a granule
// by division, its registrations by a short list. One atomic word per
// registration holds the number of leases and two bits, retained and dead;
// whoever turns the word from zero to dead deregisters, and nobody else does.
//
// Which idle registrations stay is advised by a policy, ristretto or a clock. A
// policy owns nothing: all it can do is clear the retained bit. The budget is
// the cache's own and is never exceeded; a sweep makes room when the policy
// does not. Slow deregistration happens on one goroutine, the reaper.
//
// Memory that can be leased lies in an [Arena] made by the cache, which alone
// unmaps it. Memory of the Go heap cannot be leased: the runtime takes its
// pages away behind any registration.
//
// A caller that gets an error from Acquire copies through its Pool instead.
package regcache
