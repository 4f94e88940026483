package backend

import (
	"errors"
	"sync"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend/overlay"
	"golang.org/x/sys/unix"
)

// cow is what makes a file a copy-on-write disk:
// `cow:BASE,OVERLAY[?OPTION=VALUE&…]`.
//
//	create=1   make the overlay if there is none
//	readonly=1, lock=0, identity=0, io=ENGINE
//	           as those of `file:`, of the overlay
//
// BASE is a file or block device that many disks read and none writes. OVERLAY
// is a file of the format of package overlay: it has the blocks that were
// written, at the offsets of the disk. Requests for blocks that it has take the
// way of any file, after a lookup in the map. A block gets there as follows:
//
//  1. the file system allocates the block and its places in the map
//  2. data is written, after the rest of a block that is written in part
//  3. a byte of the overlay says that the block is there; from now on that
//     outlives the process
//  4. the map in memory says so, and the write is answered
//  5. a flush makes the data durable, then pages of the map, see
//     [overlay.Map.Save]
//
// The range of the block is held from 1 to 4. A power cut before 5 has ended
// leaves a block that the durable map does not have, as if it was not written.
type cow struct {
	file   *file // the overlay
	expect *base // nil: any, nothing is read of it
	layout overlay.Layout
	size   int64 // of the disk, in bytes
	header *overlay.Header
	top    *overlay.Map
	lower  []*layer // snapshots, the newest first, and the base
	boot   [16]byte
}

// layer is a snapshot, or the base, under an overlay: it is only read.
type layer struct {
	fd     int
	path   string
	header *overlay.Header // nil of the base
	blocks *overlay.Map    // nil of the base, which has all
}

// blocksOf returns the blocks of a range.
func blocksOf(off, n int64) (first, last int64) { return overlay.BlocksOf(off, n) }

// holds reports whether the file has all of the data that a request is about.
func (f *file) holds(r *block.Request) bool {
	return f.cow == nil || f.cow.top.Has(blocksOf(r.Offset, r.Length))
}

// run returns which layer has the block at off, nil for the overlay itself, and
// how many bytes from there to end it has.
func (c *cow) run(off, end int64) (l *layer, n int64) {
	first, last := blocksOf(off, end-off)
	blocks, has := c.top.Run(first, last)
	for i := 0; !has; i++ {
		l = c.lower[i]
		if l.blocks == nil {
			break
		}
		var alike int64
		if alike, has = l.blocks.Run(first, first+blocks-1); alike < blocks {
			blocks = alike
		}
	}
	return l, min((first+blocks)*overlay.BlockSize, end) - off
}

// attempt reads a range of which layers have a part, if it is all in the page
// cache. The range is held.
func (c *cow) attempt(r *block.Request) bool {
	for off, p := r.Offset, r.Data; len(p) > 0; {
		l, n := c.run(off, off+int64(len(p)))
		got, err := c.file.kernel.pread(c.fd(l), p[:n], off, true)
		if err != nil || int64(got) < n {
			return false
		}
		off, p = off+n, p[n:]
	}
	return true
}

// fd returns the file of a layer, or of the overlay.
func (c *cow) fd(l *layer) int {
	if l == nil {
		return c.file.fd
	}
	return l.fd
}

// execute runs a request that is no flush. Its range is held if it moves data.
func (c *cow) execute(r *block.Request, durable bool) error {
	f := c.file
	switch r.Op {
	case block.Read:
		return c.read(r.Data[r.Token:], r.Offset+int64(r.Token))
	case block.Write:
		if !f.holds(r) {
			return c.change(r, durable, func() error { return f.write(r, false) })
		}
		if durable && !c.top.Saved() {
			return c.durably(true, f.write(r, false))
		}
		return f.write(r, durable)
	case block.WriteZeroes:
		return c.change(r, durable, func() error { return f.zero(r.Offset, r.Length, r.Flags) })
	case block.Trim:
		return c.durably(durable, c.trim(r.Offset, r.Length))
	case block.Status:
		c.status(r)
		return nil
	case block.Prefetch:
		c.prefetch(r.Offset, r.Length)
		return nil
	}
	return unix.EINVAL
}

// durably makes durable what ended with err, if it was to be and did not fail.
func (c *cow) durably(durable bool, err error) error {
	if err == nil && durable {
		return c.file.sync()
	}
	return err
}

// read fills p from off.
func (c *cow) read(p []byte, off int64) error {
	for len(p) > 0 {
		l, n := c.run(off, off+int64(len(p)))
		var err error
		if l == nil {
			err = c.file.read(p[:n], off)
		} else {
			err = l.read(c.file.kernel, p[:n], off)
		}
		if err != nil {
			return err
		}
		off, p = off+n, p[n:]
	}
	return nil
}

// change runs a change of a range, and has the overlay have its blocks.
func (c *cow) change(r *block.Request, durable bool, do func() error) error {
	first, last := blocksOf(r.Offset, r.Length)
	if c.top.Has(first, last) {
		return c.durably(durable, do())
	}
	err := c.reserve(first, last)
	if err == nil {
		err = c.fill(r.Offset, r.Length)
	}
	if err == nil {
		err = do()
	}
	if err == nil {
		err = c.add(first, last)
	}
	return c.durably(durable, err)
}

// reserve has the file system allocate what says that blocks are there, so that
// it is the write for which there is no room, and no later flush.
func (c *cow) reserve(first, last int64) error {
	if err := c.file.reserve(c.layout.Answered+first, last-first+1, false); err != nil {
		return err
	}
	off, n := c.layout.Pages(first, last)
	return c.file.reserve(off, n, false)
}

// scratch is memory for a block.
var scratch = sync.Pool{New: func() any { return new([overlay.BlockSize]byte) }}

// fill copies to the overlay the blocks that a change of a range covers in part
// and the overlay does not have.
func (c *cow) fill(off, length int64) error {
	first, last := blocksOf(off, length)
	end := off + length
	head := off%overlay.BlockSize != 0
	tail := end%overlay.BlockSize != 0 && end != c.size
	if head && !c.top.Has(first, first) {
		if err := c.fillBlock(first); err != nil {
			return err
		}
	}
	if tail && !(head && first == last) && !c.top.Has(last, last) {
		return c.fillBlock(last)
	}
	return nil
}

// fillBlock copies a block that the overlay does not have.
func (c *cow) fillBlock(number int64) error {
	memory := scratch.Get().(*[overlay.BlockSize]byte)
	defer scratch.Put(memory)
	off := number * overlay.BlockSize
	p := memory[:min(overlay.BlockSize, c.size-off)]
	if err := c.read(p, off); err != nil {
		return err
	}
	if err := c.file.reserve(off, int64(len(p)), false); err != nil {
		return err
	}
	return c.file.writeAll(p, off, false)
}

// answered are bytes that say that blocks are there.
var answered = func() (b [4096]byte) {
	for i := range b {
		b[i] = 1
	}
	return b
}()

// add makes blocks the overlay's, whose data it has.
func (c *cow) add(first, last int64) error {
	for at := first; at <= last; {
		n := min(last+1-at, int64(len(answered)))
		if err := c.file.writeAll(answered[:n], c.layout.Answered+at, false); err != nil {
			return err
		}
		at += n
	}
	c.top.Add(first, last)
	return nil
}

// trim frees what the overlay has of a range. The rest stays that of the layers
// below.
func (c *cow) trim(off, length int64) error {
	for end := off + length; off < end; {
		l, n := c.run(off, end)
		if l == nil {
			if err := c.file.trim(off, n); err != nil {
				return err
			}
		}
		off += n
	}
	return nil
}

// status answers what of a range is data and what is a hole, in the file that
// has it.
func (c *cow) status(r *block.Request) {
	for off, end := r.Offset, r.Offset+r.Length; off < end; {
		l, n := c.run(off, end)
		if !statusOf(c.file.kernel, c.fd(l), r, off, off+n) {
			return
		}
		off += n
	}
}

// prefetch has the kernel read a range ahead, as far as it will.
func (c *cow) prefetch(off, length int64) {
	for end := off + length; off < end; {
		l, n := c.run(off, end)
		_ = unix.Fadvise(c.fd(l), off, n, unix.FADV_WILLNEED)
		off += n
	}
}

// begin makes the file say that it is open for writing, durably: a copy of a
// page that is torn is one of a crash then, and the next header to be written
// finds the other one whole.
func (c *cow) begin() error {
	h := c.header
	for _, l := range c.lower {
		if l.header != nil && l.header.Frozen.IsZero() { // a crash kept that from it
			if err := freeze(c.file.kernel, l); err != nil {
				return err
			}
		}
	}
	if h.Boot != c.boot {
		if err := c.file.zero(c.layout.Answered, c.layout.Blocks, 0); err != nil {
			return c.file.explain("prepare", err)
		}
	}
	h.Opens++
	h.Boot, h.Clean = c.boot, false
	if err := c.store(); err != nil {
		return err
	}
	counted := c.file.latch.Lost
	c.file.latch.Lost = func(cause error) {
		if counted != nil {
			counted(cause)
		}
		// The page cache is not to be believed from now on.
		h.Boot = [16]byte{}
		_ = h.Store(overlayFile{c.file}) // it failed to store data before
	}
	return nil
}

// store stores the header, durably.
func (c *cow) store() error {
	err := c.header.Store(overlayFile{c.file})
	if err == nil {
		err = c.file.syncFile()
	}
	return c.file.explain("mark", err)
}

// end makes the file say that all of its blocks are in the map, durably.
func (c *cow) end() error {
	if c.file.info.Features&block.ReadOnly != 0 {
		return nil
	}
	c.header.Clean = true
	return c.store()
}

// close closes the layers.
func (c *cow) close() {
	if c == nil {
		return
	}
	for _, l := range c.lower {
		_ = unix.Close(l.fd) // it was only read
	}
	c.lower = nil
}

// overlayFile is the open overlay for package overlay.
type overlayFile struct{ *file }

func (f overlayFile) ReadAt(p []byte, off int64) error  { return f.readAll(p, off) }
func (f overlayFile) WriteAt(p []byte, off int64) error { return f.writeAll(p, off, false) }

func (f overlayFile) NextData(off int64) (int64, error) { return nextData(f.kernel, f.fd, off) }

// nextData returns where the next data of a file is.
func nextData(k kernel, fd int, off int64) (int64, error) {
	next, err := k.seek(fd, off, unix.SEEK_DATA)
	switch {
	case err == unix.ENXIO:
		return k.size(fd)
	case unsupported(err), errors.Is(err, unix.EINVAL):
		return off, nil // data is always true
	}
	return next, err
}
