package backend

import (
	"fmt"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend/checksum"
	"golang.org/x/sys/unix"
)

// Attempt implements [block.Engine]: the owner of the queue has tried.
func (c *crc) Attempt(*block.Request) bool { return false }

// Execute implements [block.Engine]. The range of the request is held.
func (c *crc) Execute(r *block.Request) error {
	durable := r.Flags&block.FUA != 0
	switch r.Op {
	case block.Read:
		return c.read(r)
	case block.Flush:
		return c.flush()
	case block.Write, block.Trim, block.WriteZeroes:
	default:
		return unix.EINVAL
	}
	if durable {
		if err := c.latch.Err(); err != nil {
			return err
		}
	}
	first, last := regionsOf(r.Offset, r.Length)
	if err := c.open(first, last); err != nil {
		return fmt.Errorf("%v of %d bytes at %d: %w", r.Op, r.Length, r.Offset, err)
	}
	err := c.change(r)
	c.endWrite(first, last)
	switch {
	case err != nil || !durable:
		return err
	case r.Op == block.Write:
		return c.save() // the data is durable
	}
	return c.flush()
}

// change executes a change of regions that are open.
func (c *crc) change(r *block.Request) error {
	switch r.Op {
	case block.Write:
		return c.write(r)
	case block.Trim:
		return c.trim(r)
	}
	return c.zero(r)
}

// read reads a range of any alignment.
func (c *crc) read(r *block.Request) error {
	if err := c.load(regionsOf(r.Offset, r.Length)); err != nil {
		return err
	}
	var e edges
	defer e.release()
	if err := e.read(c, r.Offset, r.Length); err != nil {
		return err
	}
	head, tail := e.parts(r.Data)
	copy(head, e.head.inside()) // the bytes of the answer are those that were checked
	copy(tail, e.tail.inside())
	p, off := r.Data[len(head):len(r.Data)-len(tail)], r.Offset+int64(len(head))
	if _, err := c.disk.ReadAt(p, off); err != nil {
		return err
	}
	return c.check(p, off)
}

// write writes a range of any alignment. A block that it covers in part has to
// be right before.
func (c *crc) write(r *block.Request) error {
	var e edges
	defer e.release()
	if err := e.read(c, r.Offset, r.Length); err != nil {
		return err
	}
	head, tail := e.parts(r.Data)
	copy(e.head.inside(), head)
	copy(e.tail.inside(), tail)
	write := c.disk.WriteAt
	if r.Flags&block.FUA != 0 {
		write = c.disk.WriteAtFUA
	}
	if _, err := write(r.Data, r.Offset); err != nil {
		c.forget(r.Offset, r.Length)
		if r.Flags&block.FUA != 0 && !noRoomFor(err) {
			return c.latch.Fail(err) // whether it was lost is not known
		}
		return err
	}
	c.keep(r.Data[len(head):len(r.Data)-len(tail)], r.Offset+int64(len(head)))
	e.keep(c)
	return nil
}

// noRoomFor reports whether a write failed because there is no room for it.
func noRoomFor(err error) bool { return noRoom(unix.Errno(block.Errno(err))) }

// zero makes a range of any alignment read as zeroes.
func (c *crc) zero(r *block.Request) error {
	var e edges
	defer e.release()
	if err := e.read(c, r.Offset, r.Length); err != nil {
		return err
	}
	clear(e.head.inside())
	clear(e.tail.inside())
	err := c.disk.WriteZeroes(r.Offset, r.Length, r.Flags&^block.FUA)
	switch {
	case err == nil:
		off, n := e.between(r.Offset, r.Length)
		c.fill(off, n, true)
		e.keep(c)
	case r.Flags&block.FastZero == 0 || block.Errno(err) != unix.ENOTSUP: // which has no effect
		c.forget(r.Offset, r.Length)
	}
	return err
}

// trim trims the whole blocks of a range. Their content is not defined then, so
// they have no sums.
func (c *crc) trim(r *block.Request) error {
	off := (r.Offset + checksum.BlockSize - 1) &^ (checksum.BlockSize - 1)
	end := r.Offset + r.Length
	if end != c.size.Load() {
		end &^= checksum.BlockSize - 1
	}
	if off >= end {
		return nil
	}
	c.fill(off, end-off, false)
	err := c.disk.Trim(off, end-off)
	if err != nil {
		c.forget(off, end-off)
	}
	return err
}
