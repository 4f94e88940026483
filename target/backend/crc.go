package backend

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/ratelog"
	"github.com/viablk/viablk/target/backend/checksum"
	"golang.org/x/sys/unix"
)

// crc is a disk whose blocks are checked: `crc:SPEC,SUMS[?lock=0]`.
//
// SPEC is any other disk, and SUMS a file of the format of package checksum: it
// has a CRC-32C of each block of 4 KiB. A read of a block that is not what was
// written fails with EIO. A request travels
//
//	1 Submit   whole blocks, in regions that are in memory and, for a write,
//	           marked: the owner holds their range and hands the request to the
//	           queue of the disk. Every other request goes to the executor
//	2 Execute  it reads sums, marks regions durably, reads the rest of blocks
//	           that a request covers in part, and runs the request
//	3 Reap     the owner checks what was read, or sums what was written, and
//	           frees the range
//
// The payload is memory of the queue, which nothing changes from Submit to
// Reap: the bytes that are summed are those that the disk got, and the bytes
// that are checked those of the answer.
//
// An unclean end leaves marks. The sums of a marked region say nothing then:
// the first request for it sums what the disk holds.
type crc struct {
	inner    block.Device
	disk     *block.Disk // inner, for the executor
	info     block.Info  // its Size is that of the opening
	passes   bool        // requests may go to queues of inner
	file     *file
	header   *checksum.Header
	size     atomic.Int64 // of the disk as far as the file follows it, in bytes
	regions  regionTable
	ranges   *block.Ranges
	executor *block.Executor
	latch    block.Latch
	identity block.Identity // nil: the disk has none
	memory   *memoryFile    // of a disk in memory; else nil
	idle     time.Duration  // after which the mark of a region is cleared
	scrubs   scrubs
	follower follower

	log        *slog.Logger
	alarms     ratelog.Log
	mismatches atomic.Uint64

	// Each holds one token: to grow, to read sums of a region, to change marks,
	// and to store sums.
	extending chan struct{}
	loading   chan struct{}
	marking   chan struct{}
	saving    chan struct{}
	intent    *checksum.Intent // of the holder of marking
	marked    []int64          // regions, of the same

	mu sync.Mutex
	// +checklocks:mu
	wanted []int64 // regions to be marked
	// +checklocks:mu
	dirty  []int64 // regions whose sums are to be stored
	unused []int64 // of the holder of saving
}

// CorruptBlocks returns how many reads of a disk, as [Open] returned it, met a
// block that is not what was written, and whether it has checksums at all.
func CorruptBlocks(d block.Device) (n uint64, ok bool) {
	c := checked(d)
	if c == nil {
		return 0, false
	}
	return c.mismatches.Load(), true
}

// checked returns the disk with checksums in a disk, as [Open] returned it, or
// nil.
func checked(d block.Device) *crc {
	for {
		switch inside := d.(type) {
		case *crc:
			return inside
		case *wrapper:
			d = inside.inner
		case *Volatile:
			d = inside.inner
		default:
			return nil
		}
	}
}

// regionsOf returns the regions of a range.
func regionsOf(off, n int64) (first, last int64) {
	return off / checksum.RegionSize, (off + n - 1) / checksum.RegionSize
}

// Durability implements [block.DurabilityReporter].
func (c *crc) Durability() block.Durability { return block.DurabilityOf(c.inner) }

// Identity implements [block.Identified].
func (c *crc) Identity() block.Identity { return c.identity }

// sum returns the place of the sum of the block at off, whose region is in
// memory.
func (c *crc) sum(off int64) *atomic.Uint32 {
	number := off / checksum.BlockSize
	return &c.regions.at(number / checksum.RegionBlocks).sums.Load()[number%checksum.RegionBlocks]
}

// blockAt returns how many bytes the block at off has: the last of a disk may
// be shorter. That one has another size once the disk has grown, so a caller
// holds its range.
func (c *crc) blockAt(off int64) int64 { return min(checksum.BlockSize, c.size.Load()-off) }

// whole reports whether a range consists of whole blocks. That stays so as long
// as the range is held.
func (c *crc) whole(off, n int64) bool {
	end := off + n
	return off%checksum.BlockSize == 0 && (end%checksum.BlockSize == 0 || end == c.size.Load())
}

// check compares whole blocks with their sums.
func (c *crc) check(p []byte, off int64) error {
	for len(p) > 0 {
		n := c.blockAt(off)
		if !isOf(c.sum(off), p[:n]) {
			return c.corrupt(off)
		}
		off, p = off+n, p[n:]
	}
	return nil
}

// isOf reports whether a block is what its sum says.
func isOf(sum *atomic.Uint32, p []byte) bool {
	want := sum.Load()
	return want == checksum.None || want == checksum.Of(p)
}

// corrupt counts the block at off, which is not what was written, and returns
// the error of its read.
func (c *crc) corrupt(off int64) error {
	count := c.mismatches.Add(1)
	c.alarms.Warn(c.log, "a block of the disk is not what was written: reads of it fail", "event", "block_corrupt",
		"sums", c.file.path, "offset", off, "blocks", count)
	return fmt.Errorf("the block at %d is not what was written: %w", off, unix.EIO)
}

// keep keeps the sums of whole blocks that were written.
func (c *crc) keep(p []byte, off int64) {
	first, last := regionsOf(off, int64(len(p)))
	for len(p) > 0 {
		n := c.blockAt(off)
		c.sum(off).Store(checksum.Of(p[:n]))
		off, p = off+n, p[n:]
	}
	c.soil(first, last)
}

// fill gives the blocks of a range, all of them whole, sums: those of zeroes,
// or none.
func (c *crc) fill(off, length int64, zeroes bool) {
	if length == 0 {
		return
	}
	first, last := regionsOf(off, length)
	for end := off + length; off < end; off += checksum.BlockSize {
		value := uint32(checksum.None)
		if zeroes {
			value = checksum.OfZeroes(c.blockAt(off))
		}
		c.sum(off).Store(value)
	}
	c.soil(first, last)
}

// forget is fill without sums for the blocks of a range whose write failed: a
// part of it may be on the disk.
func (c *crc) forget(off, length int64) {
	first, last := regionsOf(off, length)
	for i := first; i <= last; i++ {
		c.regions.at(i).failed.Store(true)
	}
	from := off &^ (checksum.BlockSize - 1)
	c.fill(from, off+length-from, false)
}

// soil notes that sums of regions have changed. A writer of them is there.
func (c *crc) soil(first, last int64) {
	for i := first; i <= last; i++ {
		if g := c.regions.at(i); !g.dirty.Load() && g.dirty.CompareAndSwap(false, true) {
			c.mu.Lock()
			c.dirty = append(c.dirty, i)
			c.mu.Unlock()
		}
	}
}

// beginWrite counts a writer of regions, if all are marked and in memory.
func (c *crc) beginWrite(first, last int64) bool {
	for i := first; i <= last; i++ {
		if !c.regions.at(i).beginWrite() {
			c.endWrite(first, i-1)
			return false
		}
	}
	return true
}

// endWrite ends beginWrite.
func (c *crc) endWrite(first, last int64) {
	for i := first; i <= last; i++ {
		c.regions.at(i).endWrite()
	}
}

// present reports whether the sums of regions are in memory.
func (c *crc) present(first, last int64) bool {
	for i := first; i <= last; i++ {
		if c.regions.at(i).sums.Load() == nil {
			return false
		}
	}
	return true
}
