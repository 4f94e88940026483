package backend

import (
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// againLimit bounds how often a call that answers EAGAIN, which no call here
// should, is repeated.
const againLimit = 1000

// read fills p from off.
func (f *file) read(p []byte, off int64) error {
	if f.misaligned(p) {
		return f.bounce(p, off, true, false)
	}
	return f.readAll(p, off)
}

// readAll reads until p is full.
func (f *file) readAll(p []byte, off int64) error {
	again := 0
	for len(p) > 0 {
		n, err := f.kernel.pread(f.fd, p, off, false)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN && again < againLimit:
			again++
			runtime.Gosched()
		case err == unix.EAGAIN:
			return unix.EIO
		case err != nil:
			return err
		case n == 0:
			return fmt.Errorf("the file ends at %d: %w", off, unix.EINVAL)
		default:
			p, off = p[n:], off+int64(n)
		}
	}
	return nil
}

// write stores the payload of r.
func (f *file) write(r *block.Request, durable bool) error {
	if err := f.within(r.Offset, r.Length, unix.ENOSPC); err != nil {
		return err
	}
	if err := f.reserve(r.Offset, r.Length, durable); err != nil {
		return err
	}
	return f.store(r.Data, r.Offset, durable)
}

// within refuses a range behind the present end of a regular file, which
// another process may have moved. Writing there would grow the file.
func (f *file) within(off, length int64, errno unix.Errno) error {
	if f.device {
		return nil
	}
	size, err := f.kernel.size(f.fd)
	if err != nil {
		return err
	}
	if f.room != nil {
		f.room.resized(size)
	}
	if off+length > size {
		return fmt.Errorf("the file ends at %d: %w", size, errno)
	}
	return nil
}

// store writes p at off, durably if asked to.
func (f *file) store(p []byte, off int64, durable bool) error {
	if durable && f.noDsync.Load() {
		if err := f.store(p, off, false); err != nil {
			return err
		}
		return f.sync()
	}
	if f.misaligned(p) {
		return f.bounce(p, off, false, durable)
	}
	return f.writeAll(p, off, durable)
}

// writeAll writes until p is stored.
func (f *file) writeAll(p []byte, off int64, durable bool) error {
	again := 0
	for len(p) > 0 {
		n, err := f.kernel.pwrite(f.fd, p, off, durable)
		switch {
		case err == nil && n > 0:
			p, off = p[n:], off+int64(n)
		case err == unix.EINTR:
		case err == unix.EAGAIN && again < againLimit:
			again++
			runtime.Gosched()
		case err == nil || err == unix.EAGAIN:
			return unix.EIO
		case durable && unsupported(err):
			f.noDsync.Store(true)
			return f.store(p, off, true)
		case durable:
			return f.failDurable(p, off, err)
		default:
			return err
		}
	}
	return nil
}

// failDurable answers a durable write that failed with cause. Whether writing
// failed, which loses nothing that was promised, or making durable did, which
// must close the latch, shows in a write without the second half.
func (f *file) failDurable(p []byte, off int64, cause error) error {
	if cause != unix.ENOSPC && cause != unix.EDQUOT {
		return f.latch.Fail(cause)
	}
	if err := f.writeAll(p, off, false); err == cause {
		return err
	}
	return f.latch.Fail(cause)
}

// trim frees a range. Trimming is a hint: what the disk behind cannot do is
// done.
func (f *file) trim(off, length int64) error {
	if err := f.within(off, length, unix.EINVAL); err != nil {
		return err
	}
	if !f.device {
		err := f.allocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, length)
		if unsupported(err) {
			return nil
		}
		f.punched(off, length)
		return err
	}
	for {
		err := f.kernel.discard(f.fd, off, length)
		switch {
		case err == unix.EINTR:
			continue
		case unsupported(err):
			return nil
		}
		return err
	}
}

// zero makes a range read as zeroes, in the fastest way there is.
func (f *file) zero(off, length int64, flags block.Flags) error {
	if err := f.within(off, length, unix.ENOSPC); err != nil {
		return err
	}
	keep, fast := flags&block.NoHole != 0, flags&block.FastZero != 0
	if !keep {
		err := f.attempt(&f.noPunch, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, length)
		if !unsupported(err) {
			f.punched(off, length)
			return err
		}
	}
	// On a block device this may write every byte, without a way to tell.
	if !f.device || !fast {
		err := f.attempt(&f.noZeroRange, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, off, length)
		if err != nil {
			f.punched(off, length) // some file systems punch first, and then allocate
		}
		if !unsupported(err) {
			return err
		}
	}
	if fast {
		return unix.ENOTSUP
	}
	if f.device {
		err := f.kernel.zeroOut(f.fd, off, length)
		if !unsupported(err) && err != unix.EINTR {
			return err
		}
	}
	if err := f.reserve(off, length, false); err != nil {
		return err
	}
	return f.writeZeroes(off, length)
}

// punched notes that a range may have become a hole. The range is still held.
func (f *file) punched(off, length int64) {
	if f.room != nil {
		f.room.forget(off, length)
	}
}

// attempt is allocate, remembering in missing that the file system does not
// know the mode.
func (f *file) attempt(missing *atomic.Bool, mode uint32, off, length int64) error {
	if missing.Load() {
		return unix.EOPNOTSUPP
	}
	err := f.allocate(mode, off, length)
	if unsupported(err) {
		missing.Store(true)
	}
	return err
}

func (f *file) allocate(mode uint32, off, length int64) error {
	for {
		if err := f.kernel.fallocate(f.fd, mode, off, length); err != unix.EINTR {
			return err
		}
	}
}

// writeZeroes writes zeroes.
func (f *file) writeZeroes(off, length int64) error {
	zeroes, err := zeroMemory()
	if err != nil {
		return err
	}
	for length > 0 {
		n := min(length, int64(len(zeroes)))
		if err := f.writeAll(zeroes[:n], off, false); err != nil {
			return err
		}
		off, length = off+n, length-n
	}
	return nil
}
