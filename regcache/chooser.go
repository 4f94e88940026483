package regcache

import (
	"fmt"
	"time"

	"github.com/viablk/viablk/via"
)

// CopyMode says how payload in memory of the caller's moves.
type CopyMode string

// The modes.
const (
	// CopyAuto decides by what is registered and by measured costs.
	CopyAuto CopyMode = "auto"

	// CopyBounce copies everything through registered memory of the connection.
	CopyBounce CopyMode = "bounce"

	// CopyZero registers whatever can be, and copies the rest.
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

// Direction is the way of payload.
type Direction uint8

// The directions, as the owner of the memory sees them.
const (
	Out Direction = iota // to the peer: the payload of a Write
	In                   // from the peer: the payload of a Read
)

// String returns "out" or "in".
func (d Direction) String() string { return [...]string{"out", "in"}[d] }

// Chooser decides, for one owner, which operations copy and which use their
// memory as it is. It has no locks: all its methods are the owner's.
//
// An operation asks for the registration of its memory first. If there is one, the
// operation is a hit and moves without a copy from the size on where that is
// measured to be faster. If there is none it is a miss, and
//
//   - registers at once if its own copy costs more than to register and deregister;
//   - copies if its granule was not used lately: the first miss is only counted;
//   - registers if it was, and operations of this size come back often enough to
//     pay for it.
//
// Every size class and direction has its own two answers, see class. One operation
// in 128 takes the other way.
type Chooser struct {
	cache *Cache
	mode  CopyMode
	cost  Calibration

	inline  [2]int // see Inline
	classes [2][sizeClasses]class
	ops     uint64
	began   uint64 // operation at which this period's burst of exploration begins
	next    uint64 // and the next period
	random  uint64
	last    *granuleSlot // that was used last
	row     uint32       // times in a row, not counted in it yet
	refused int          // times in a row
	pause   int          // misses that are copied
	purse   float64      // ns that registrations may cost which only explore
	stats   ChoiceStats
}

// Choice is what a Chooser decided for an operation.
type Choice struct {
	Zero  bool // use the memory as it is, with leases
	Timed bool // Copied and Finished want to know

	hit   bool // it was registered before
	class uint8
	dir   Direction
}

// ChoiceStats count what became of operations. The counters only grow.
type ChoiceStats struct {
	Hits            uint64 `json:"hits"`              // registered before
	Misses          uint64 `json:"misses"`            // registered for it
	FirstMisses     uint64 `json:"first_misses"`      // copied: the granule was not used lately
	Declined        uint64 `json:"declined"`          // copied: to register would not pay
	HitsCopied      uint64 `json:"hits_copied"`       // copied although registered: too small
	Foreign         uint64 `json:"foreign"`           // copied: not memory of an arena
	Refusals        uint64 `json:"refusals"`          // copied: no budget, or the NIC refused
	Explored        uint64 `json:"explored"`          // of all, took the other way to learn its cost
	BytesCopied     uint64 `json:"bytes_copied"`      // through bounce memory
	BytesZeroCopied uint64 `json:"bytes_zero_copied"` // moved where they lay
}

// Add adds another owner's counters.
func (s *ChoiceStats) Add(o *ChoiceStats) {
	s.Hits += o.Hits
	s.Misses += o.Misses
	s.FirstMisses += o.FirstMisses
	s.Declined += o.Declined
	s.HitsCopied += o.HitsCopied
	s.Foreign += o.Foreign
	s.Refusals += o.Refusals
	s.Explored += o.Explored
	s.BytesCopied += o.BytesCopied
	s.BytesZeroCopied += o.BytesZeroCopied
}

// NewChooser returns a chooser over a cache; a nil cache copies everything. cost is
// where its learning begins.
func NewChooser(cache *Cache, mode CopyMode, cost Calibration) *Chooser {
	c := &Chooser{cache: cache, mode: mode, cost: cost}
	for d := range c.classes {
		for i := range c.classes[d] {
			c.classes[d][i].init(classSize(i), &cost)
		}
	}
	return c
}

// Inline says that payload of up to n bytes goes inside messages, whatever is registered.
// CopyAuto copies such a payload without asking: its copy costs about what a lease does.
func (c *Chooser) Inline(d Direction, n int) { c.inline[d] = n }

// Choose decides about an operation on buf. The owner then leases the memory, or
// copies if it cannot, and says what happened: Moved, Copied, Refused, Finished.
func (c *Chooser) Choose(buf []byte, tag via.Ptag, access Access, dir Direction) Choice {
	if c.cache == nil || c.mode == CopyBounce || c.mode == CopyAuto && len(buf) <= c.inline[dir] {
		return Choice{}
	}
	a := c.cache.arenaAt(addressOf(buf))
	if a == nil || len(buf) == 0 {
		c.stats.Foreign++
		return Choice{}
	}
	s := &a.slots[(addressOf(buf)-a.base)>>c.cache.shift]
	r := s.find(tag, access)
	hit := r != nil && r.state.Load()&(stateDead|stateRevoked) == 0
	if !hit && c.pause > 0 {
		c.pause--
		c.stats.Declined++
		return Choice{}
	}
	if c.mode == CopyZero {
		c.note(hit, true)
		return Choice{Zero: true, hit: hit}
	}
	v := Choice{hit: hit, class: uint8(classOf(len(buf))), dir: dir}
	k := &c.classes[dir][v.class]
	seen := c.touch(s, k)
	explore, timed := c.explores(k)
	v.Timed = timed
	first := false
	switch {
	case hit:
		v.Zero = k.hits.zero
	case c.registration() < k.benefit(), !seen && c.registration() < k.uses*k.benefit():
		v.Zero = true
	case seen:
		v.Zero = k.misses.zero
	default:
		first = true
		c.stats.FirstMisses++
	}
	// A first miss has no other way, and to register only to explore has to be paid for.
	if explore && !first && (hit || v.Zero || c.affords(c.registration())) {
		v.Zero = !v.Zero
		c.stats.Explored++
	}
	if hit || seen || v.Zero {
		c.note(hit, v.Zero)
	}
	k.came(hit, seen, v.Zero)
	k.turn(c.registration())
	return v
}

// note counts a decision.
func (c *Chooser) note(hit, zero bool) {
	switch {
	case hit && zero:
		c.stats.Hits++
	case hit:
		c.stats.HitsCopied++
	case zero:
		c.stats.Misses++
	default:
		c.stats.Declined++
	}
}

// touch notes that a granule is used and reports whether it was so lately that its
// registration would be there still, had the least recently used gone first: since
// then, fewer granules that were not were used than the budget has room for. If it was
// not, its former uses are over, and the class learns how many there were.
func (c *Chooser) touch(s *granuleSlot, k *class) (lately bool) {
	if s == c.last {
		c.row++
		return true
	}
	if c.last != nil {
		c.last.count(c.row)
	}
	c.last, c.row = s, 1
	now, then := c.cache.touches.Load(), s.touched.Load()
	if then != 0 && now-then < uint64(c.cache.budget) {
		if then != now {
			s.touched.Store(now)
		}
		return true
	}
	if uses := s.uses.Swap(0); then != 0 && uses != 0 {
		k.ended(uses)
	}
	s.touched.Store(c.cache.touches.Add(1))
	return false
}

// registration returns what it costs to register a granule and to deregister it
// again: lately, or as calibrated.
func (c *Chooser) registration() float64 {
	up, down := float64(c.cache.took.register.typical()), float64(c.cache.took.deregister.typical())
	if up == 0 {
		up = c.cost.Register.At(c.cache.granule)
	}
	if down == 0 {
		down = c.cost.Deregister.At(c.cache.granule)
	}
	return up + down
}

// Moved says that n bytes of an operation moved where they lay.
func (c *Chooser) Moved(n int) {
	c.stats.BytesZeroCopied += uint64(n)
	c.refused = 0
}

// Copied says that n bytes were copied, and how long that took if the choice is
// timed and the owner knows it: 0 is no time.
func (c *Chooser) Copied(v Choice, n int, took time.Duration) {
	c.stats.BytesCopied += uint64(n)
	if v.Timed && n > 0 && took > 0 {
		c.classes[v.dir][v.class].copied(n, took)
	}
}

// Refused says that the memory could not be leased, and was copied. After several
// refusals in a row the NIC is left alone for a while.
func (c *Chooser) Refused() {
	c.stats.Refusals++
	if c.refused++; c.refused >= refusalsInARow {
		c.pause, c.refused = refusalPause, 0
	}
}

const (
	refusalsInARow = 8
	refusalPause   = 1024 // misses that are copied without asking
)

// Finished says how long an operation took from its submission to its end, if the
// choice is timed and no other operation of the owner was under way.
func (c *Chooser) Finished(v Choice, took time.Duration) {
	if v.Timed && (v.hit || !v.Zero) {
		c.classes[v.dir][v.class].finished(v.Zero, took, c.registration())
	}
}

// Stats returns the counters.
func (c *Chooser) Stats() ChoiceStats { return c.stats }

// Boundary is from which size on a direction does not copy, in bytes; 0 means that
// it always copies.
type Boundary struct {
	Hit  int `json:"hit"`  // what is registered
	Miss int `json:"miss"` // what is not, and was used lately
	Once int `json:"once"` // what is not, at its first use
}

// Boundaries returns the present boundaries.
func (c *Chooser) Boundaries() (write, read Boundary) {
	if c.cache == nil || c.mode == CopyBounce {
		return write, read
	}
	if c.mode == CopyZero {
		return Boundary{1, 1, 1}, Boundary{1, 1, 1}
	}
	of := func(d Direction) (b Boundary) {
		price, least := c.registration(), classOf(c.inline[d]+1)
		for i := sizeClasses - 1; i >= least && c.classes[d][i].hits.zero; i-- {
			b.Hit = classSize(i)
		}
		for i := sizeClasses - 1; i >= least && c.classes[d][i].misses.zero; i-- {
			b.Miss = classSize(i)
		}
		for i := sizeClasses - 1; i >= least && c.classes[d][i].benefit() > price; i-- {
			b.Once = classSize(i)
		}
		return b
	}
	return of(Out), of(In)
}
