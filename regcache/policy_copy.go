package regcache

import (
	"fmt"
	"time"

	"github.com/viablk/viablk/via"
)

// CopyMode selects how payload in the caller's memory moves.
type CopyMode string

// The modes.
const (
	// CopyAuto decides by existing registrations and measured costs.
	CopyAuto CopyMode = "auto"

	// CopyBounce copies everything through registered memory of the connection.
	CopyBounce CopyMode = "bounce"

	// CopyZero registers memory wherever possible, and copies the rest.
	CopyZero CopyMode = "zerocopy"
)

// CopyModes returns all modes.
func CopyModes() []CopyMode { return []CopyMode{CopyAuto, CopyBounce, CopyZero} }

// ParseCopyMode checks a mode; "" is auto.
func ParseCopyMode(s string) (CopyMode, error) {
	switch m := CopyMode(s); m {
	case "":
		return CopyAuto, nil
	case CopyAuto, CopyBounce, CopyZero:
		return m, nil
	}
	return "", fmt.Errorf("copy mode %q is not auto, bounce or zerocopy: %w", s, via.ErrInvalidParameter)
}

// Direction is the direction of payload.
type Direction uint8

// The directions, seen from the owner of the memory.
const (
	Out Direction = iota // to the peer: the payload of a Write
	In                   // from the peer: the payload of a Read
)

// String returns "out" or "in".
func (d Direction) String() string { return [...]string{"out", "in"}[d] }

// CopyPolicy decides which operations of one owner copy and which use their
// memory in place. It has no locks: only the owner calls its methods.
//
// An operation first looks up the registration of its memory. If it exists the
// operation is a hit, and uses its memory in place in the size classes where
// that is measured to be faster, see sizeClass; one operation in 128 takes the
// other path. Otherwise the operation is a miss. It copies, unless the copies
// of its granule cost more than to register and deregister, see registers.
type CopyPolicy struct {
	cache *Cache
	mode  CopyMode
	cost  Calibration

	inline     [2]int // see Inline
	classes    [2][sizeClasses]sizeClass
	ops        uint64
	burstStart uint64 // operation at which the burst of this period begins
	nextPeriod uint64 // operation at which the next period begins
	random     uint64
	runs       [runs]run // of the granules that began to be used last
	nextRun    int       // index of the oldest
	refused    int       // refusals in a row
	pause      int       // misses left to copy after refusals
	stats      ChoiceStats
}

// Choice is the decision of a CopyPolicy about an operation.
type Choice struct {
	Zero  bool // use the memory in place, with leases
	Timed bool // report the times to Copied and Finished

	hit   bool // the memory was registered
	class uint8
	dir   Direction
}

// ChoiceStats counts the outcomes of operations. The counters only grow.
type ChoiceStats struct {
	Hits            uint64 `json:"hits"`              // registered before
	Misses          uint64 `json:"misses"`            // registered by the operation
	FirstMisses     uint64 `json:"first_misses"`      // copied: granule not used recently
	Declined        uint64 `json:"declined"`          // copied: copies have cost less than a registration
	HitsCopied      uint64 `json:"hits_copied"`       // copied although registered: too small
	NotInArena      uint64 `json:"not_in_arena"`      // copied: not memory of an arena
	Refusals        uint64 `json:"refusals"`          // copied: no budget, or the NIC refused
	Explored        uint64 `json:"explored"`          // of hits, took the other path
	BytesCopied     uint64 `json:"bytes_copied"`      // through bounce memory
	BytesZeroCopied uint64 `json:"bytes_zero_copied"` // moved in place
}

// Add adds another owner's counters.
func (s *ChoiceStats) Add(o *ChoiceStats) {
	s.Hits += o.Hits
	s.Misses += o.Misses
	s.FirstMisses += o.FirstMisses
	s.Declined += o.Declined
	s.HitsCopied += o.HitsCopied
	s.NotInArena += o.NotInArena
	s.Refusals += o.Refusals
	s.Explored += o.Explored
	s.BytesCopied += o.BytesCopied
	s.BytesZeroCopied += o.BytesZeroCopied
}

// NewCopyPolicy returns a policy over a cache; a nil cache copies everything.
// cost is its initial estimate.
func NewCopyPolicy(cache *Cache, mode CopyMode, cost Calibration) *CopyPolicy {
	p := &CopyPolicy{cache: cache, mode: mode, cost: cost}
	for d := range p.classes {
		for i := range p.classes[d] {
			p.classes[d][i].init(classSize(i), &cost)
		}
	}
	return p
}

// Inline sets the size up to which payload goes inside messages. CopyAuto
// copies such a payload without a decision: its copy costs about as much as a
// lease.
func (p *CopyPolicy) Inline(d Direction, n int) { p.inline[d] = n }

// Choose decides about an operation on buf. The owner then leases the memory,
// or copies if it cannot, and reports the outcome: Moved, Copied, Refused,
// Finished.
func (p *CopyPolicy) Choose(buf []byte, tag via.Ptag, access Access, dir Direction) Choice {
	if p.cache == nil || p.mode == CopyBounce || p.mode == CopyAuto && len(buf) <= p.inline[dir] {
		return Choice{}
	}
	a := p.cache.arenaAt(addressOf(buf))
	if a == nil || len(buf) == 0 {
		p.stats.NotInArena++
		return Choice{}
	}
	g := &a.granules[(addressOf(buf)-a.base)>>p.cache.shift]
	r := g.find(tag, access)
	hit := r != nil && r.state.Load()&(stateDead|stateRevoked) == 0
	if !hit && p.pause > 0 {
		p.pause--
		p.stats.Declined++
		return Choice{}
	}
	if p.mode == CopyZero {
		p.count(hit, true)
		return Choice{Zero: true, hit: hit}
	}
	v := Choice{hit: hit, class: uint8(classOf(len(buf))), dir: dir}
	k := &p.classes[dir][v.class]
	recent := p.touch(g, k)
	explore, timed := p.explores(k)
	v.Timed = timed
	switch {
	case hit:
		k.found++
		v.Zero = (k.benefit() > 0) != explore
		if explore {
			p.stats.Explored++
		}
	case p.registers(g, k, recent):
		v.Zero = true
	case !recent:
		p.stats.FirstMisses++
		return v
	}
	p.count(hit, v.Zero)
	return v
}

// count adds a decision to the counters.
func (p *CopyPolicy) count(hit, zero bool) {
	switch {
	case hit && zero:
		p.stats.Hits++
	case hit:
		p.stats.HitsCopied++
	case zero:
		p.stats.Misses++
	default:
		p.stats.Declined++
	}
}

// registers reports whether a miss registers its granule. It does if the copies
// of the granule since it was not in use, this one included, cost more than to
// register and deregister, as one buys skis when their rents have cost as much.
// And it does at once if granules that begin to be used are known to have so
// many uses that copies would cost more.
//
// Half of the debt remains: a granule in use whose registration was evicted is
// registered again sooner. Where copying is faster than memory in place, a
// hundredth of each copy counts, so that both are compared again now and then.
func (p *CopyPolicy) registers(g *granuleIndex, k *sizeClass, recent bool) bool {
	price, gain := p.registrationCost(), k.benefit()
	debt := max(gain, exploreShare*float64(k.copies.mean()), 1)
	if recent {
		debt += float64(g.debt.Load()) // concurrent additions may be lost
	}
	if debt > price || !recent && k.uses*gain > price {
		g.debt.Store(int64(price / 2))
		return true
	}
	g.debt.Store(int64(debt))
	return false
}

// exploreShare is the share of a copy that counts as debt where copying is
// faster.
const exploreShare = 0.01

// run counts the uses of a granule from its first until as many other granules
// as there are runs began to be used.
type run struct {
	granule *granuleIndex
	class   *sizeClass // of the first use
	uses    int
}

// runs is how many granules an owner may use in turn, as sequential streams do,
// while their uses are counted.
const runs = 4

// touch records a use of a granule and reports whether it was used recently: an
// LRU cache of the same budget would still hold its registration, because fewer
// other granules than the budget were used since. If not, a run begins, and the
// class of the oldest run learns its number of uses.
func (p *CopyPolicy) touch(g *granuleIndex, k *sizeClass) (recent bool) {
	for i := range p.runs {
		if p.runs[i].granule == g {
			p.runs[i].uses++
			break
		}
	}
	now, then := p.cache.touches.Load(), g.lastTouch.Load()
	if then != 0 && now-then < uint64(p.cache.budget) {
		if then != now {
			g.lastTouch.Store(now)
		}
		return true
	}
	g.lastTouch.Store(p.cache.touches.Add(1))
	r := &p.runs[p.nextRun]
	p.nextRun = (p.nextRun + 1) % runs
	if r.class != nil {
		r.class.recordUses(r.uses)
	}
	*r = run{g, k, 1}
	return false
}

// registrationCost returns the cost to register and deregister a granule: the
// measured average, or the calibration before the first sample.
func (p *CopyPolicy) registrationCost() float64 {
	up, down := float64(p.cache.cost.register.mean()), float64(p.cache.cost.deregister.mean())
	if up == 0 {
		up = p.cost.Register.At(p.cache.granule)
	}
	if down == 0 {
		down = p.cost.Deregister.At(p.cache.granule)
	}
	return up + down
}

// Moved reports that n bytes of an operation moved in place.
func (p *CopyPolicy) Moved(n int) {
	p.stats.BytesZeroCopied += uint64(n)
	p.refused = 0
}

// Copied reports that n bytes were copied, and the duration if the choice is
// timed and the owner knows it, else 0.
func (p *CopyPolicy) Copied(v Choice, n int, elapsed time.Duration) {
	p.stats.BytesCopied += uint64(n)
	if v.Timed && n > 0 && elapsed > 0 {
		p.classes[v.dir][v.class].copied(n, elapsed)
	}
}

// Refused reports that the memory could not be leased, and was copied. After
// several refusals in a row misses are copied for a while.
func (p *CopyPolicy) Refused() {
	p.stats.Refusals++
	if p.refused++; p.refused >= refusalsInARow {
		p.pause, p.refused = refusalPause, 0
	}
}

const (
	refusalsInARow = 8
	refusalPause   = 1024 // misses that are copied without registering
)

// Finished reports how long an operation took from its submission to its end,
// if the choice is timed and no other operation of the owner was in flight.
func (p *CopyPolicy) Finished(v Choice, elapsed time.Duration) {
	if v.Timed && (v.hit || !v.Zero) {
		p.classes[v.dir][v.class].finished(v.Zero, elapsed)
	}
}

// Stats returns the counters.
func (p *CopyPolicy) Stats() ChoiceStats { return p.stats }

// Boundary is the size in bytes from which a direction does not copy; 0 means
// that it always copies.
type Boundary struct {
	Hit       int `json:"hit"`        // registered memory
	FirstMiss int `json:"first_miss"` // unregistered memory at its first use
}

// Boundaries returns the current boundaries.
func (p *CopyPolicy) Boundaries() (write, read Boundary) {
	if p.cache == nil || p.mode == CopyBounce {
		return write, read
	}
	if p.mode == CopyZero {
		return Boundary{1, 1}, Boundary{1, 1}
	}
	of := func(d Direction) (b Boundary) {
		price, least := p.registrationCost(), classOf(p.inline[d]+1)
		for i := sizeClasses - 1; i >= least && p.classes[d][i].benefit() > 0; i-- {
			b.Hit = classSize(i)
		}
		for i := sizeClasses - 1; i >= least && p.classes[d][i].benefit() > price; i-- {
			b.FirstMiss = classSize(i)
		}
		return b
	}
	return of(Out), of(In)
}
