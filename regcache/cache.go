package regcache

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/viablk/viablk/via"
)

// Cache keeps registrations of memory of its arenas. Its methods are safe for
// concurrent use.
type Cache struct {
	// Immutable, except for the table that arenas points to.
	nic              Registrar
	granule          int  // bytes
	shift            uint // log2 of granule
	budget           int  // regions
	pressure         int64
	inlineDeregister bool // the last Release deregisters its region
	inlineEvict      bool // a miss deregisters its victim; only misses call evicted
	policy           evictionPolicy
	reaper           *reaper
	probation        probation
	arenas           atomic.Pointer[[]arenaRange] // sorted by base
	closed           atomic.Bool
	_                [64]byte

	reserved atomic.Int64  // regions registered or registering
	touches  atomic.Uint64 // granules used again after a pause, see CopyPolicy.touch
	live     liveSet
	count    counters
	cost     nicCost
	huge     hugePages

	closing sync.Mutex // serialises Close
	mu      sync.Mutex // held alone
	// mapped includes closed arenas that are not unmapped yet.
	// +checklocks:mu
	mapped []*Arena
	// void is the tag of revoked regions, made by the first Revoke.
	// +checklocks:mu
	void via.Ptag
}

// arenaRange is an entry of the table that finds arenas.
type arenaRange struct {
	base, size uint64
	arena      *Arena
}

// New returns a cache of registrations with a NIC. It starts the reaper and the
// goroutines of the eviction policy; Close ends them.
func New(nic Registrar, cfg Config) (*Cache, error) {
	cfg, err := cfg.withDefaults(nic.Limits())
	if err != nil {
		return nil, err
	}
	c := &Cache{
		nic:              nic,
		granule:          cfg.Granule,
		shift:            uint(bits.TrailingZeros(uint(cfg.Granule))),
		budget:           cfg.MaxRegions,
		inlineDeregister: cfg.InlineDeregister,
	}
	room := retainable(c.budget)
	c.pressure = int64(room / 2)
	c.arenas.Store(new([]arenaRange))
	switch {
	case cfg.newPolicy != nil:
		c.policy = cfg.newPolicy(c.evicted)
	case cfg.Policy == PolicyClock:
		c.inlineEvict = cfg.InlineDeregister
		c.probation.init(c.budget, room)
		c.policy = newClockPolicy(room, c.evicted)
	default:
		c.probation.init(c.budget, room)
		if c.policy, err = newRistrettoPolicy(room, c.granule, c.evicted); err != nil {
			return nil, fmt.Errorf("registration cache: %w", err)
		}
	}
	c.reaper = startReaper(c.endAll)
	return c, nil
}

// Granule returns the size in bytes of the unit of registration.
func (c *Cache) Granule() int { return c.granule }

// Close withdraws every registration, unmaps the arenas and stops the cache's
// goroutines. Acquire returns ErrClosed as soon as Close has begun.
//
// Close returns ErrInUse if leases or allocated buffers are out: the last
// Release of a region deregisters it, and the caller calls Close again to
// finish. After it has returned nil or another error, Close returns nil.
func (c *Cache) Close() error {
	c.closing.Lock()
	defer c.closing.Unlock()
	c.mu.Lock()
	c.closed.Store(true)
	arenas := append([]*Arena(nil), c.mapped...)
	c.mu.Unlock()
	var errs []error
	for _, a := range arenas {
		errs = append(errs, a.Close())
	}
	// The cache no longer calls the policy; late evictions find the retained
	// bits cleared.
	c.policy.close()
	if err := errors.Join(errs...); errors.Is(err, ErrInUse) {
		return err
	} else if c.reaper.stop(); err != nil {
		return err
	}
	return c.destroyVoidTag()
}

// reserve takes budget for one region. It returns false if the budget is used
// up.
func (c *Cache) reserve() bool {
	for {
		n := c.reserved.Load()
		if n >= int64(c.budget) {
			return false
		}
		if c.reserved.CompareAndSwap(n, n+1) {
			c.count.peaked(n + 1)
			return true
		}
	}
}

// exhausted reports whether the budget is used up.
func (c *Cache) exhausted() bool { return c.reserved.Load() >= int64(c.budget) }

func (c *Cache) unreserve() { c.reserved.Add(-1) }
