package backend

import (
	"sync/atomic"

	"github.com/viablk/viablk/target/backend/checksum"
)

// region is what is in memory of a region.
type region struct {
	state atomic.Uint32 // isMarked, and how many writers there are
	sums  atomic.Pointer[checksum.Sums]

	stale  atomic.Bool // marked by a process that did not end well: sum it
	lost   atomic.Bool // its sums cannot be read
	dirty  atomic.Bool // sums have changed, and are not stored
	failed atomic.Bool // a write failed: it stays marked

	saved atomic.Int64 // when its sums were stored last, in ns since 1970
}

// isMarked is the bit of a state that says that the region is marked, durably.
const isMarked = 1 << 31

// beginWrite counts a writer if the region is marked and in memory.
func (g *region) beginWrite() bool {
	if g.state.Add(1)&isMarked != 0 && g.sums.Load() != nil {
		return true
	}
	g.endWrite()
	return false
}

func (g *region) endWrite() { g.state.Add(^uint32(0)) }

// regionTable is the regions of a disk. It grows, and no region moves: requests
// use them meanwhile.
type regionTable struct {
	parts atomic.Pointer[[]*[tablePart]region]
}

// tablePart is how many regions are in a part of the table: those of 1 GiB.
const tablePart = 256

// at returns a region that the table has.
func (t *regionTable) at(i int64) *region {
	return &(*t.parts.Load())[i/tablePart][i%tablePart]
}

// extend makes the table one of n regions at least. One goroutine at a time
// does so.
func (t *regionTable) extend(n int64) {
	var parts []*[tablePart]region
	if before := t.parts.Load(); before != nil {
		parts = append(parts, *before...)
	}
	for int64(len(parts))*tablePart < n {
		parts = append(parts, new([tablePart]region))
	}
	t.parts.Store(&parts)
}

// count returns how many regions the disk has.
func (c *crc) count() int64 { return checksum.Regions(c.size.Load()) }
