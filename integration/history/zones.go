package history

import (
	"fmt"
	"math"
	"slices"
	"sort"
)

// A block whose writes have different values is linearizable if and only if its
// clusters can be put in order: the write of a value and the reads that saw it
// follow each other without another write between them. A cluster comes before
// another one if one of its operations ended before one of the other's began,
// and no two may come before each other (Gibbons and Korach, "Testing shared
// memories"). So the end that came first and the beginning that came last are
// all that matters of a cluster.

// cluster is the write of a value and the reads of it.
type cluster struct {
	value  uint64
	write  *Operation // nil: not known yet
	seen   bool       // a read or an answer proves that the write took effect
	finish int64      // the first end; never, of a lost write that no read saw
	start  int64      // the last beginning

	first, last, read Operation // that ended first, that began last, any read

	// overwritten, if it is not nil, is a cluster that comes before each
	// operation from now on, and behind this one.
	overwritten *cluster

	// excused clusters were reported.
	excused bool
}

// never is later than each operation.
const never = math.MaxInt64

// add adds an operation.
func (c *cluster) add(o Operation) {
	if o.Write {
		c.write = &o
	} else {
		c.read = o
	}
	if !o.Lost {
		c.seen = true
	}
	if o.end() < c.finish {
		c.finish, c.first = o.end(), o
	}
	if o.Call > c.start {
		c.start, c.last = o.Call, o
	}
}

// effect is finish of a cluster whose write needs a place in the order.
func (c *cluster) effect() int64 {
	if !c.seen {
		return never
	}
	return c.finish
}

// before reports whether the cluster comes before another one.
func (c *cluster) before(other *cluster) bool { return c.effect() < other.start }

// proof returns the operations that tell when the cluster was.
func (c *cluster) proof() []Operation {
	var all []Operation
	if c.write != nil && c.write.Call >= 0 { // the new disk is no operation
		all = append(all, *c.write)
	}
	for _, o := range []Operation{c.first, c.last} {
		if !o.Write && !slices.Contains(all, o) {
			all = append(all, o)
		}
	}
	if len(all) == 1 && all[0].Lost {
		all = append(all, c.read) // else the write needs no place
	}
	return all
}

// zones checks the operations of one block as they come.
type zones struct {
	clusters map[uint64]*cluster // by value
	active   []*cluster          // whose place in the order is not certain
	gone     []*cluster          // others, oldest first; the reports need them
	keep     int                 // of them, at least
	added    int                 // operations since the last check
}

// kept is how many clusters of a block are kept that have a certain place. A
// read of an older one is of a value that no client wrote.
const kept = 1024

// checkInterval is how many operations of a block come between checks, at
// least.
const checkInterval = 64

// newZones is a block of a new disk, which holds 0.
func newZones() *zones {
	z := &zones{clusters: make(map[uint64]*cluster), keep: kept}
	z.cluster(0).add(Operation{Write: true, Call: -1, Return: -1})
	return z
}

// cluster returns the cluster of a value.
func (z *zones) cluster(value uint64) *cluster {
	c := z.clusters[value]
	if c == nil {
		c = &cluster{value: value, finish: never, start: math.MinInt64}
		z.clusters[value] = c
		z.active = append(z.active, c)
	}
	return c
}

// anomaly is clusters that contradict each other.
type anomaly struct {
	reason   string
	clusters []*cluster
}

// add adds an operation and returns what it contradicts.
func (z *zones) add(o Operation) []anomaly {
	z.added++
	c := z.cluster(o.Value)
	c.add(o)
	if c.excused || c.overwritten == nil {
		return nil
	}
	c.excused = true
	return []anomaly{contradiction(c, c.overwritten)}
}

// due reports whether it is time for a check: each looks at all active
// clusters.
func (z *zones) due() bool { return z.added >= max(checkInterval, len(z.active)) }

// expireLost says that lost writes that were added can no longer take effect.
func (z *zones) expireLost(until int64) {
	for _, c := range z.active {
		if w := c.write; w != nil && w.Lost && w.Until == 0 {
			o := *w
			o.Until = until
			c.add(o)
		}
	}
}

// check returns the contradictions between the operations that were added.
// Each operation that is added later begins at a time or behind it.
func (z *zones) check(from int64) []anomaly {
	z.added = 0
	var found []anomaly
	for _, c := range z.active {
		if c.write == nil && c.finish < from {
			c.excused = true
			found = append(found, anomaly{"a read saw what no write that began before its end wrote, or what was overwritten long ago", []*cluster{c}})
		} else if c.write != nil && c.finish < c.write.Call {
			c.excused = true
			found = append(found, anomaly{"a read ended before the write of what it saw began", []*cluster{c}})
		}
	}
	z.retire(nil)
	for {
		a, b := conflict(z.active)
		if a == nil {
			break
		}
		if a.start < b.start {
			a, b = b, a
		}
		a.excused = true // the other one may contradict more
		found = append(found, contradiction(a, b))
		z.retire(nil)
	}
	z.forget(from)
	return found
}

// contradiction is about two clusters that come before each other.
func contradiction(a, b *cluster) anomaly {
	return anomaly{fmt.Sprintf("%s and %s were each before the other", name(a.value), name(b.value)), []*cluster{a, b}}
}

// conflict returns two clusters that come before each other, or nil.
func conflict(all []*cluster) (a, b *cluster) {
	// One of two such clusters has an operation that ended before another one
	// of it began: it spans the time between both.
	var spanning []*cluster
	for _, c := range all {
		if c.before(c) {
			spanning = append(spanning, c)
		}
	}
	slices.SortFunc(spanning, func(a, b *cluster) int {
		switch {
		case a.finish < b.finish:
			return -1
		case a.finish > b.finish:
			return 1
		}
		return 0
	})
	for i, c := range spanning[min(1, len(spanning)):] {
		if before := spanning[i]; c.before(before) { // it ended first
			return before, c
		}
	}
	// The spans are disjoint, in order: of those that come before a cluster the
	// last one has the last beginning.
	for _, c := range all {
		i := sort.Search(len(spanning), func(i int) bool { return spanning[i].finish >= c.start })
		for i--; i >= 0; i-- {
			if spanning[i] != c {
				if c.before(spanning[i]) {
					return spanning[i], c
				}
				break
			}
		}
	}
	return nil, nil
}

// forget finds the clusters that no operation from a time on may belong to, and
// retires those whose place in the order is certain.
func (z *zones) forget(from int64) {
	// An operation from now on is behind each cluster that has ended. So each
	// of them that has to be behind c excludes one more operation of c.
	var last, second *cluster
	for _, c := range z.active {
		switch {
		case c.effect() >= from:
		case last == nil || c.start > last.start:
			last, second = c, last
		case second == nil || c.start > second.start:
			second = c
		}
	}
	first := int64(never) // the first end of clusters that may get more
	for _, c := range z.active {
		other := last
		if c == other {
			other = second
		}
		if c.overwritten == nil && other != nil && c.finish < other.start {
			c.overwritten = other
		}
		if c.overwritten == nil {
			first = min(first, c.finish)
		}
	}
	z.retire(func(c *cluster) bool { return c.overwritten != nil && c.write != nil && c.start <= min(from, first) })
}

// retire takes excused clusters, and those of which certain is true, out of the
// active ones.
func (z *zones) retire(certain func(*cluster) bool) {
	active := z.active[:0]
	for _, c := range z.active {
		if c.excused || certain != nil && certain(c) {
			z.gone = append(z.gone, c)
		} else {
			active = append(active, c)
		}
	}
	clear(z.active[len(active):])
	z.active = active
	if over := len(z.gone) - z.keep; over > z.keep { // half of them, so that it is rare
		for _, c := range z.gone[:over] {
			if c.value != 0 { // its write is in no history
				delete(z.clusters, c.value)
				c.overwritten = nil // else the oldest one would keep all others
			}
		}
		z.gone = slices.Clone(z.gone[over:])
	}
}
