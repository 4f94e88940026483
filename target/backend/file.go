package backend

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/identity"
	"golang.org/x/sys/unix"
)

// file is a disk in a regular file or on a block device:
// `file:PATH[?OPTION=VALUE&…]`.
//
//	readonly=1   refuse writes; many may read the same file
//	direct=1     bypass the page cache (O_DIRECT)
//	create=SIZE  make a sparse file of SIZE if there is none
//	lock=0       do not lock, for file systems that have no locks
//	identity=0   keep no identity: initiators do not return to the disk
//	             after its target was started again
//	io=ENGINE    who waits for the disk: uring, threads, or auto
//
// In PATH, % is written %25 and ? is written %3F.
//
// Reads that hit the page cache finish in Submit, and so do short writes while
// the page cache takes them without delay. Other reads, and writes past the
// page cache, are the kernel's, by a ring of the queue (ringQueue), where it
// lets us have one; the rest runs on the executor.
//
// One process at a time has a file open for writing: an exclusive lock says so
// until the last system call on the file has returned. Requests never grow the
// file. Another process that does so, or truncates it, changes the size of the
// disk, in whole blocks of 512 bytes at least; a request behind the end is an
// error.
//
// A write to the page cache, and a durable one, has its blocks before it
// begins, see room: the answer of a full file system is that of the write, not
// of a later flush. File systems that cannot allocate ahead, and thinly
// provisioned block devices, do not let us promise that.
//
// Kernels keep a read and a write of the same page apart, or do not:
// block.Ranges does, 4 KiB by 4 KiB.
type file struct {
	info     block.Info
	path     string
	fd       int
	device   bool // a block device
	locked   bool // against other processes
	align    int  // of memory for direct I/O; 1 without it
	kernel   kernel
	ranges   *block.Ranges
	executor *block.Executor
	latch    block.Latch
	identity *identity.Disk // nil: it ends with the process
	bounces  bounces
	room     *room // nil: of a block device, and of a disk that is not written
	cow      *cow  // nil: the file has the whole disk
	full     fullWarning
	held     *Held // of a disk with a lock; may be nil

	openRing func(fd, depth int) (ring, error) // nil: the executor does everything

	// Operations that the file system turned out not to have.
	noNoWait, noDsync, noPunch, noZeroRange atomic.Bool
}

// inlineRead is the longest read that Submit tries, in bytes. A longer one is
// worth a hand-off, because the copy takes another processor.
const inlineRead = 256 << 10

// Info implements [block.Device]. A size that the kernel does not tell is the
// last that is known: that of the file when it was opened.
func (f *file) Info() block.Info {
	info := f.info
	if f.fd < 0 || f.cow != nil {
		return info
	}
	if size, err := f.size(); err == nil {
		info.Size = size - size%max(int64(info.MinimumBlock), sector)
	}
	return info
}

// size returns the present size of the file or block device, in bytes.
func (f *file) size() (int64, error) {
	if f.device {
		return unix.Seek(f.fd, 0, unix.SEEK_END)
	}
	return f.kernel.size(f.fd)
}

// Durability implements [block.DurabilityReporter]: the page cache is not the
// process's.
func (f *file) Durability() block.Durability { return block.OutlivesProcess }

// WriteBack implements [block.WriteBacker]. The kernel keeps an error for the
// next fdatasync.
func (f *file) WriteBack() { _ = f.kernel.writeBack(f.fd) }

// Identity implements [block.Identified].
func (f *file) Identity() block.Identity {
	if f.identity == nil {
		return nil
	}
	return f.identity
}

func (f *file) NewQueue(depth int) (block.Queue, error) {
	q, err := f.executor.NewQueue(depth, block.PayloadLimit)
	if err != nil || f.openRing == nil {
		return q, err
	}
	ringed, err := newRingQueue(f, q, depth)
	if err != nil {
		return nil, errors.Join(err, q.Close())
	}
	return ringed, nil
}

// Close makes what was written durable, and gives up the lock.
func (f *file) Close() error {
	if f.fd < 0 {
		return nil
	}
	f.executor.Close()
	err := f.sync()
	if err == nil && f.cow != nil {
		err = f.cow.end()
	}
	if err == nil && f.identity != nil {
		err = f.identity.Close()
	}
	f.bounces.free()
	f.held.remove(f.fd)
	if e := unix.Close(f.fd); e != nil && err == nil {
		err = e
	}
	f.cow.close()
	f.fd = -1
	if err != nil {
		return fmt.Errorf("close backing file %q: %w", f.path, err)
	}
	return nil
}

// Attempt implements [block.Engine]: it serves reads from the page cache. Bytes
// it has read stay read, and Execute reads the rest.
func (f *file) Attempt(r *block.Request) bool {
	if r.Op != block.Read || r.Length > inlineRead || f.align > 1 || f.noNoWait.Load() {
		return false
	}
	if !f.ranges.TryAcquire(r.Offset, r.Length, false) {
		return false
	}
	if !f.holds(r) {
		done := f.cow.attempt(r)
		f.ranges.Release(r.Offset, r.Length, false)
		return done
	}
	n, err := f.kernel.pread(f.fd, r.Data, r.Offset, true)
	f.ranges.Release(r.Offset, r.Length, false)
	switch {
	case err == nil && n == len(r.Data):
		return true
	case err == nil:
		// Execute goes on at a later time, so it does at the beginning of a
		// unit.
		whole := (r.Offset+int64(n))&^(block.AtomicUnit-1) - r.Offset
		r.Token = uint64(max(whole, 0))
	case unsupported(err):
		f.noNoWait.Store(true)
	}
	return false
}

// inlineWrite is the longest write that Submit runs, in bytes.
const inlineWrite = 32 << 10

// ExecuteInline implements [block.InlineEngine]: it writes to the page cache,
// where the file has its blocks.
func (f *file) ExecuteInline(r *block.Request) bool {
	if r.Length > inlineWrite || f.align > 1 || r.Flags&block.FUA != 0 || !f.holds(r) {
		return false
	}
	if !f.ranges.TryAcquire(r.Offset, r.Length, true) {
		return false
	}
	ready := f.ready(r.Offset, r.Length)
	if ready {
		if err := f.store(r.Data, r.Offset, false); err != nil {
			r.Err = f.describe(r, err)
		}
	}
	f.ranges.Release(r.Offset, r.Length, true)
	return ready
}

// guard keeps overlapping accesses apart by ranges; nil does not.
func (f *file) guard(ranges *block.Ranges) {
	f.ranges = ranges
	f.executor.Guard(ranges)
}

// Ranges is [block.FileMapped], of a file that is mapped.
func (f *file) Ranges() *block.Ranges { return f.ranges }

// Execute implements [block.Engine].
func (f *file) Execute(r *block.Request) error {
	err := f.execute(r)
	if err != nil {
		return f.describe(r, err)
	}
	return nil
}

// describe adds to an error what failed, and logs it if the disk is full.
func (f *file) describe(r *block.Request, err error) error {
	if noRoom(err) && f.within(r.Offset, r.Length, unix.EINVAL) == nil {
		f.full.warn(f.path, err)
	}
	return fmt.Errorf("%v of %d bytes at %d of %q: %w", r.Op, r.Length, r.Offset, f.path, err)
}

func (f *file) execute(r *block.Request) error {
	durable := r.Flags&block.FUA != 0 && (r.Op == block.Write || r.Op == block.Trim || r.Op == block.WriteZeroes)
	if durable {
		if err := f.latch.Err(); err != nil {
			return err
		}
	}
	if f.cow != nil && r.Op != block.Flush {
		return f.cow.execute(r, durable)
	}
	var err error
	switch r.Op {
	case block.Read:
		return f.read(r.Data[r.Token:], r.Offset+int64(r.Token))
	case block.Write:
		return f.write(r, durable)
	case block.Flush:
		return f.sync()
	case block.Status:
		return f.status(r)
	case block.Prefetch:
		return f.prefetch(r.Offset, r.Length)
	case block.Trim:
		err = f.trim(r.Offset, r.Length)
	case block.WriteZeroes:
		err = f.zero(r.Offset, r.Length, r.Flags)
	default:
		return unix.EINVAL
	}
	if err == nil && durable {
		err = f.sync()
	}
	return err
}

// sync makes everything written durable. It is never tried again after a
// failure: the kernel has forgotten by then what it could not write.
func (f *file) sync() error {
	if f.info.Features&block.ReadOnly != 0 {
		return nil
	}
	if err := f.latch.Err(); err != nil {
		return err
	}
	var err error
	if f.cow != nil {
		err = f.cow.top.Save(f.fdatasync)
	} else {
		err = f.fdatasync()
	}
	if err != nil {
		return f.latch.Fail(err)
	}
	return nil
}

// fdatasync is fdatasync(2). It does not begin after a failure.
func (f *file) fdatasync() error {
	if err := f.latch.Err(); err != nil {
		return err
	}
	return f.syncFile()
}

// syncFile is fdatasync(2), also of a disk that has lost writes, for bytes that
// were written since.
func (f *file) syncFile() error {
	for {
		if err := f.kernel.fdatasync(f.fd); err != unix.EINTR {
			return err
		}
	}
}

// unsupported reports whether the file system does not have what it was asked
// for.
func unsupported(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || err == unix.ENOSYS || err == unix.ENODEV
}
