package simulation

import (
	"fmt"
	"slices"
	"time"
)

// cluster is a write with the reads that saw it. The zone from the first end of
// them to the last beginning is forward if the end is first: then the block had
// this value during the zone.
type cluster struct {
	write     *access
	first     time.Duration // end
	last      time.Duration // beginning
	seen      bool
	firstRead *access
}

func (c *cluster) forward() bool { return c.first < c.last }

// check returns an error unless the accesses of a block are linearizable as
// those of a register: no two forward zones overlap, and no backward zone is
// inside of a forward one (Gibbons and Korach, 1997). Zeroes have no tag of
// their own; for them it checks that some write of zeroes may be the last.
func (b *blockRecord) check(block int64) error {
	clusters := make(map[Tag]*cluster)
	var order []*cluster
	var zeroes []*access
	begin := &access{tag: b.initial, write: true, began: -1, ended: -1}
	for _, a := range append([]*access{begin}, b.accesses...) {
		switch {
		case !a.write:
		case a.tag == zero:
			zeroes = append(zeroes, a)
		default:
			c := &cluster{write: a, first: a.ended, last: a.began}
			clusters[a.tag] = c
			order = append(order, c)
		}
	}
	for _, a := range b.accesses {
		if a.write {
			continue
		}
		if a.tag == zero {
			if err := b.checkZero(a, zeroes); err != nil {
				return fmt.Errorf("block %d: %w", block, err)
			}
			continue
		}
		c := clusters[a.tag]
		if c == nil || a.before(c.write) {
			return fmt.Errorf("block %d: a read from %v to %v saw %v, which was not written by then", block, a.began, a.ended, a.tag)
		}
		c.first, c.last, c.seen = min(c.first, a.ended), max(c.last, a.began), true
		if c.firstRead == nil || a.ended < c.firstRead.ended {
			c.firstRead = a
		}
		for _, z := range zeroes {
			if !z.lost && c.write.before(z) && z.before(a) {
				return fmt.Errorf("block %d: a read from %v to %v saw %v, which zeroes overwrote from %v to %v", block, a.began, a.ended, a.tag, z.began, z.ended)
			}
		}
	}
	return checkZones(block, order)
}

// checkZero checks a read of zeroes.
func (b *blockRecord) checkZero(a *access, zeroes []*access) error {
	for _, z := range zeroes {
		if z.began > a.ended {
			continue
		}
		stale := slices.ContainsFunc(b.accesses, func(w *access) bool { return w.write && !w.lost && w.tag != zero && z.before(w) && w.before(a) })
		if !stale {
			return nil
		}
	}
	return fmt.Errorf("a read from %v to %v saw zeroes, which were overwritten or not written", a.began, a.ended)
}

func checkZones(block int64, order []*cluster) error {
	var forward []*cluster
	for _, c := range order {
		if c.forward() {
			forward = append(forward, c)
		}
	}
	slices.SortStableFunc(forward, func(a, b *cluster) int { return int(min(max(a.first-b.first, -1), 1)) })
	for i := 1; i < len(forward); i++ {
		if a, b := forward[i-1], forward[i]; b.first < a.last {
			return fmt.Errorf("block %d: %v and %v were both the last one at %v: %s; %s", block, a.write.tag, b.write.tag, b.first, a, b)
		}
	}
	for _, c := range order {
		if c.forward() || !c.seen && (c.write.lost || c.write.ended == never) {
			continue
		}
		i, _ := slices.BinarySearchFunc(forward, c, func(f, c *cluster) int { return int(min(max(f.first-c.last, -1), 1)) })
		if i > 0 && forward[i-1].last > c.first {
			f := forward[i-1]
			return fmt.Errorf("block %d: %v was the last one from %v to %v, and %v meanwhile: %s; %s", block, f.write.tag, f.first, f.last, c.write.tag, f, c)
		}
	}
	return nil
}

// String describes the cluster.
func (c *cluster) String() string {
	text := fmt.Sprintf("%v from %v to %v", c.write.tag, c.write.began, c.write.ended)
	if c.write.ended == never {
		text = fmt.Sprintf("%v from %v without an answer", c.write.tag, c.write.began)
	}
	if c.seen {
		text += fmt.Sprintf(", seen first by a read from %v to %v, zone %v %v", c.firstRead.began, c.firstRead.ended, c.first, c.last)
	}
	return text
}
