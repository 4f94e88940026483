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
	// Immutable, but for the table that arenas points to.
	nic      Registrar
	granule  int  // bytes
	shift    uint // log2 of it
	budget   int  // regions
	pressure int64
	inline   bool // the last Release deregisters
	prompt   bool // and a miss what the policy gives up for it: nobody else calls evicted
	adviser  adviser
	reaper   *reaper
	trial    trial
	arenas   atomic.Pointer[[]arenaRange] // sorted by base
	closed   atomic.Bool
	_        [64]byte

	reserved atomic.Int64  // regions registered or being so
	touches  atomic.Uint64 // granules that choosers saw used after a while without
	live     liveSet
	count    counters
	took     took
	huge     hugePages

	closing sync.Mutex // serialises Close
	mu      sync.Mutex // taken alone
	mapped  []*Arena   // closed ones that are not unmapped yet included; +checklocks:mu
	void    via.Ptag   // of revoked regions, made by the first Revoke; +checklocks:mu
}

// arenaRange is an entry of the table that finds arenas.
type arenaRange struct {
	base, size uint64
	arena      *Arena
}

// New returns a cache of registrations with a NIC. It starts the reaper and the
// goroutines of the policy; Close ends them.
func New(nic Registrar, cfg Config) (*Cache, error) {
	cfg, err := cfg.withDefaults(nic.Limits())
	if err != nil {
		return nil, err
	}
	c := &Cache{
		nic:     nic,
		granule: cfg.Granule,
		shift:   uint(bits.TrailingZeros(uint(cfg.Granule))),
		budget:  cfg.MaxRegions,
		inline:  cfg.InlineDeregister,
	}
	room := retainable(c.budget)
	c.pressure = int64(room / 2)
	c.arenas.Store(new([]arenaRange))
	switch {
	case cfg.adviser != nil:
		c.adviser = cfg.adviser(c.evicted)
	case cfg.Policy == PolicyClock:
		c.prompt = cfg.InlineDeregister
		c.trial.init(c.budget, room)
		c.adviser = newClockAdviser(room, c.evicted)
	default:
		c.trial.init(c.budget, room)
		if c.adviser, err = newRistrettoAdviser(room, c.granule, c.evicted); err != nil {
			return nil, fmt.Errorf("registration cache: %w", err)
		}
	}
	c.reaper = startReaper(c.endAll)
	return c, nil
}

// Granule returns the size in bytes of the pieces that are registered.
func (c *Cache) Granule() int { return c.granule }

// Close withdraws every registration, unmaps the arenas and stops the cache's
// goroutines. From its begin Acquire returns ErrClosed.
//
// If leases or allocated buffers are out it returns ErrInUse: what is leased is
// deregistered by its last Release, and Close is called again afterwards to
// finish. Once it has returned anything else it returns nil.
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
	// The policy is asked no more than this; its late answers find it closed.
	c.adviser.close()
	if err := errors.Join(errs...); errors.Is(err, ErrInUse) {
		return err
	} else if c.reaper.stop(); err != nil {
		return err
	}
	return c.dropVoid()
}

// reserve takes budget for one region. It returns false if there is none.
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

// exhausted reports whether no budget is left.
func (c *Cache) exhausted() bool { return c.reserved.Load() >= int64(c.budget) }

func (c *Cache) unreserve() { c.reserved.Add(-1) }
