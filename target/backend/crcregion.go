package backend

import (
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend/checksum"
	"golang.org/x/sys/unix"
)

// sumChunk is how much of a region is read at a time, in bytes.
const sumChunk = 64 * checksum.BlockSize

// token holds the token of a channel while f runs.
func token(c chan struct{}, f func() error) error {
	<-c
	defer func() { c <- struct{}{} }()
	return f()
}

// load has the sums of regions in memory.
func (c *crc) load(first, last int64) error {
	if c.present(first, last) {
		return nil
	}
	return token(c.loading, func() error {
		for i := first; i <= last; i++ {
			if c.regions.at(i).sums.Load() == nil {
				c.loadRegion(i)
			}
		}
		return nil
	})
}

// loadRegion reads the sums of a region, or sums its data. Sums that cannot be
// read are none: the data is not to blame.
func (c *crc) loadRegion(i int64) {
	g, s := c.regions.at(i), new(checksum.Sums)
	readOnly := c.info.Features&block.ReadOnly != 0
	switch {
	case g.stale.Load() && readOnly:
	case g.stale.Load():
		c.sumRegion(i, s)
	default:
		c.readRegion(i, s)
	}
	g.sums.Store(s)
	if g.stale.Load() && !readOnly {
		c.soil(i, i)
		g.stale.Store(false)
	}
}

// readRegion reads the sums of a region from the file.
//
// The caller has the token of loading, and no request has the sums in memory.
func (c *crc) readRegion(i int64, s *checksum.Sums) {
	err := s.Load(overlayFile{c.file}, c.header, i)
	if c.regions.at(i).lost.Store(err != nil); err != nil {
		c.log.Error("checksums cannot be read: their blocks are not checked until they are written",
			"event", "checksums_lost", "sums", c.file.path, "offset", i*checksum.RegionSize, "error", err)
	}
}

// sumRegion sums what the disk holds of a region. No request for it begins
// before that. A block that cannot be read has no sum.
func (c *crc) sumRegion(i int64, s *checksum.Sums) {
	p := make([]byte, sumChunk)
	start := i * checksum.RegionSize
	end := min(start+checksum.RegionSize, c.size.Load())
	sum := func(p []byte, off int64) bool {
		if _, err := c.disk.ReadAt(p, off); err != nil {
			return false
		}
		for len(p) > 0 {
			n := min(checksum.BlockSize, len(p))
			s[(off-start)/checksum.BlockSize].Store(checksum.Of(p[:n]))
			off, p = off+int64(n), p[n:]
		}
		return true
	}
	for off := start; off < end; off += sumChunk {
		n := min(sumChunk, end-off)
		if sum(p[:n], off) {
			continue
		}
		for at := off; at < off+n; at += checksum.BlockSize {
			sum(p[:c.blockAt(at)], at)
		}
	}
}

// markAhead is how many regions are marked at a time, at least: the first write
// of each such part of the disk waits for the file of sums.
const markAhead = 4

// open has regions marked, and in memory, and counts a writer of them. The
// caller calls endWrite.
func (c *crc) open(first, last int64) error {
	if err := c.load(first, last); err != nil {
		return err
	}
	for !c.beginWrite(first, last) {
		if err := c.mark(first, last); err != nil {
			return err
		}
	}
	return nil
}

// mark marks regions, durably. Those of all that wait are marked together.
func (c *crc) mark(first, last int64) error {
	if err := c.latch.Err(); err != nil {
		return err
	}
	from := first - first%markAhead
	to := min(last-last%markAhead+markAhead, c.count()) - 1
	c.mu.Lock()
	for i := from; i <= to; i++ {
		c.wanted = append(c.wanted, i)
	}
	c.mu.Unlock()
	return token(c.marking, func() error {
		c.mu.Lock()
		wanted := c.wanted
		c.wanted = nil
		c.mu.Unlock()
		return c.markLocked(wanted, first, last)
	})
}

// markLocked marks the regions that are wanted. It is an error if there is no
// room for those from first to last.
//
// The caller has the token of marking.
func (c *crc) markLocked(wanted []int64, first, last int64) error {
	if err := c.latch.Err(); err != nil {
		return err
	}
	if c.memory != nil { // before the first change
		if err := c.memory.keep(c.header.ID); err != nil {
			return err
		}
	}
	var marks []int64
	for i := first; i <= last; i++ {
		wanted = append(wanted, i) // another one may have taken them, and failed
	}
	for _, i := range wanted {
		if c.intent.Marked(i) {
			continue
		}
		err := checksum.Pages(i, func(off, length int64) error {
			return c.file.allocate(unix.FALLOC_FL_KEEP_SIZE, off, length)
		})
		switch {
		case noRoom(err) && i >= first && i <= last:
			c.unmark(marks)
			c.file.full.warn(c.file.path, err)
			return err
		case noRoom(err):
			continue // its writer learns that
		}
		c.intent.Mark(i, true)
		marks = append(marks, i)
	}
	if len(marks) == 0 {
		return nil
	}
	if err := c.storeMarks(); err != nil {
		c.unmark(marks)
		return err
	}
	for _, i := range marks {
		c.regions.at(i).saved.Store(time.Now().UnixNano())
		c.regions.at(i).state.Or(isMarked)
	}
	c.marked = append(c.marked, marks...)
	return nil
}

// unmark takes back marks that were not stored.
func (c *crc) unmark(marks []int64) {
	for _, i := range marks {
		c.intent.Mark(i, false)
	}
}

// storeMarks makes the marks durable.
func (c *crc) storeMarks() error {
	failed, err := c.intent.Store(c.file.syncFile)
	if failed {
		return c.latch.Fail(err)
	}
	return err
}

// flush makes durable what was written, then its sums, and clears the marks of
// regions that are idle.
func (c *crc) flush() error {
	if err := c.latch.Err(); err != nil {
		return err
	}
	began := time.Now()
	if err := c.disk.Sync(); err != nil {
		return c.latch.Fail(err)
	}
	if err := c.save(); err != nil {
		return err
	}
	return c.clearIdle(began.Add(-c.idle))
}

// save makes the sums durable that have changed.
func (c *crc) save() error {
	if c.info.Features&block.ReadOnly != 0 {
		return nil
	}
	return token(c.saving, func() error {
		if err := c.latch.Err(); err != nil {
			return err
		}
		c.mu.Lock()
		dirty := c.dirty
		c.dirty = c.unused[:0]
		c.mu.Unlock()
		defer func() { c.unused = dirty }()
		if len(dirty) == 0 {
			return nil
		}
		if err := c.saveRegions(dirty); err != nil {
			return err
		}
		if err := c.file.syncFile(); err != nil {
			return c.latch.Fail(err)
		}
		return nil
	})
}

// saveRegions writes the sums of regions. Those that it does not write stay to
// be stored.
func (c *crc) saveRegions(dirty []int64) (err error) {
	for _, i := range dirty {
		g := c.regions.at(i)
		g.saved.Store(time.Now().UnixNano()) // while the region is dirty: its mark stays
		g.dirty.Store(false)                 // before the sums are loaded
		if err == nil {
			err = g.sums.Load().Save(overlayFile{c.file}, c.header, i)
		}
		if err == nil {
			g.lost.Store(false) // the page is whole again
		}
		if err != nil {
			c.soil(i, i)
		}
	}
	return err
}

// clearIdle clears the marks of regions whose sums were stored before a time,
// if nothing is to be stored. Their data was made durable after that time.
func (c *crc) clearIdle(before time.Time) error {
	return token(c.marking, func() error {
		rest := c.marked[:0]
		cleared := 0
		for _, i := range c.marked {
			if c.isIdle(c.regions.at(i), before) {
				c.intent.Mark(i, false)
				cleared++
				continue
			}
			rest = append(rest, i)
		}
		c.marked = rest
		if cleared == 0 {
			return nil
		}
		return c.storeMarks()
	})
}

// isIdle reports whether the mark of a region can be cleared. From then on a
// writer has to mark it.
func (c *crc) isIdle(g *region, before time.Time) bool {
	busy := func() bool {
		return g.dirty.Load() || g.stale.Load() || g.failed.Load() || g.saved.Load() >= before.UnixNano()
	}
	if busy() || !g.state.CompareAndSwap(isMarked, 0) {
		return false
	}
	if busy() { // a writer has left meanwhile
		g.state.Or(isMarked)
		return false
	}
	return true
}
