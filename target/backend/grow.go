package backend

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/block"
)

// ErrFixedSize is why a disk does not get another size while it is open.
var ErrFixedSize = errors.New("the size of the disk stays")

// growable is a disk of another package that can grow while it is open.
type growable interface {
	block.Device

	// FixedSize returns why the disk cannot grow, or nil.
	FixedSize() error

	// Grow makes the disk larger, durably. It never makes it smaller.
	Grow(size int64) error
}

// PrepareGrow checks that an open disk, as [Open] returned it, can have size
// bytes, and changes nothing. The function that it returns makes the disk that
// large, durably; it may block. To grow to the present size is no error. One
// goroutine at a time grows a disk. Errors of PrepareGrow wrap [ErrFixedSize].
func PrepareGrow(d block.Device, size int64) (grow func() error, err error) {
	info := d.Info()
	least := max(int64(info.MinimumBlock), sector)
	switch {
	case size == info.Size:
		return func() error { return nil }, nil
	case size < info.Size:
		return nil, fmt.Errorf("%w: it has %d bytes, and %d are less: a disk does not shrink while it is exported", ErrFixedSize, info.Size, size)
	case size%least != 0:
		return nil, fmt.Errorf("%w: %d bytes are not a multiple of its block of %d", ErrFixedSize, size, least)
	}
	grow, fixed := growing(d, size)
	if fixed != nil {
		return nil, fmt.Errorf("%w: %w", ErrFixedSize, fixed)
	}
	return grow, nil
}

// growing returns what makes a disk larger, or why it cannot become so. A disk
// inside another one grows with it only where the outer one has no size of its
// own.
func growing(d block.Device, size int64) (grow func() error, fixed error) {
	switch d := d.(type) {
	case *wrapper:
		return growing(d.inner, size)
	case *file:
		return func() error { return d.grow(size) }, d.fixedSize()
	case growable:
		return func() error { return d.Grow(size) }, d.FixedSize()
	case *mapped:
		return nil, fmt.Errorf("mmap: maps %q as a whole when it is opened: remove the export, grow the file, and add it again", d.path)
	case *crc:
		return d.growing(size)
	case *Volatile:
		return nil, errors.New("the cache of volatile: is that of the size at opening")
	}
	return nil, errors.New("only file: with a regular file and rbd: grow while they are exported")
}

// fixedSize returns why the file cannot be made larger, or nil.
func (f *file) fixedSize() error {
	switch {
	case f.cow != nil:
		return errors.New("a cow: disk has the size of its base")
	case f.device:
		return fmt.Errorf("%q is a block device: grow its volume, and the disk follows", f.path)
	case f.info.Features&block.ReadOnly != 0:
		return fmt.Errorf("%q is open for reading only", f.path)
	case !f.locked:
		return fmt.Errorf("%q is open with lock=0, and another process may change its size: grow the file, and the disk follows", f.path)
	}
	return f.latch.Err()
}

// grow makes the file larger, and that durable: a client that was told the size
// finds it after a power cut. The lock keeps other processes from shrinking the
// file, and the caller other calls of grow.
//
// The kernel fills the block that was the last with zeroes, in the page cache.
// A direct write of it meanwhile fails the next flush: it is held until the
// zeroes are on the disk.
func (f *file) grow(size int64) error {
	now, err := f.size()
	if err == nil && now < size {
		if now%block.AtomicUnit != 0 {
			defer hold(f.ranges, now-1)()
		}
		err = f.truncate(size)
	}
	if err != nil {
		return fmt.Errorf("grow backing file %q to %d bytes: %w", f.path, size, err)
	}
	if err := f.sync(); err != nil {
		return fmt.Errorf("backing file %q has grown to %d bytes, and that is not durable: %w", f.path, size, err)
	}
	return nil
}

// hold holds the block at off for writing, when requests for it have ended.
func hold(ranges *block.Ranges, off int64) (release func()) {
	granted := make(chan struct{})
	w := block.Wait{Granted: func() { close(granted) }}
	if !ranges.Acquire(&w, off, 1, true) {
		<-granted
	}
	return func() { ranges.Release(off, 1, true) }
}

// truncate is ftruncate(2).
func (f *file) truncate(size int64) error {
	for {
		if err := f.kernel.truncate(f.fd, size); err != unix.EINTR {
			return err
		}
	}
}
