package block

import (
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/pojntfx/go-nbd/pkg/backend"
)

var _ backend.Backend = (*Disk)(nil)

// diskQueues bounds the calls that a Disk runs at a time.
const diskQueues = 4

// Disk is the synchronous view of a Device: the device as Go programs know
// files. Every method blocks until the device has answered, and all are safe
// for concurrent use. [Errno] takes the errno of the device from their errors.
//
// Calls run on queues of the disk's own, in parallel if a Flush of one queue
// covers the others, and one at a time otherwise. Offsets and lengths are
// multiples of the device's minimum block.
type Disk struct {
	device Device
	info   Info         // but for its Size
	size   atomic.Int64 // of the disk, in bytes

	mu    sync.Mutex
	freed sync.Cond
	// +checklocks:mu
	idle []*syncQueue
	// +checklocks:mu
	opened int // opened
	// +checklocks:mu
	limit int
	// +checklocks:mu
	closed bool
}

// NewDisk returns a view of device, which stays the caller's: Close does not
// close it.
func NewDisk(device Device) (*Disk, error) {
	d := &Disk{device: device, info: device.Info(), limit: 1}
	if d.info.Features&CanMultiConn != 0 {
		d.limit = diskQueues
	}
	d.size.Store(d.info.Size)
	d.freed.L = &d.mu
	q, err := d.acquire() // a device without queues is refused here
	if err != nil {
		return nil, err
	}
	d.release(q)
	return d, nil
}

// Size returns the size of the disk in bytes: what the device had at the
// beginning, or at the last call of Resize.
func (d *Disk) Size() (int64, error) { return d.size.Load(), nil }

// Resize has the disk go by the size that its device has now.
func (d *Disk) Resize() { d.size.Store(d.device.Info().Size) }

// present returns the description by which calls are checked.
func (d *Disk) present() Info {
	info := d.info
	info.Size = d.size.Load()
	return info
}

// ReadAt implements [io.ReaderAt]: at the end of the disk it reads what there
// is and returns [io.EOF].
func (d *Disk) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read at %d: %w", off, syscall.EINVAL)
	}
	if len(p) == 0 {
		return 0, nil
	}
	left := d.size.Load() - off
	if left <= 0 {
		return 0, io.EOF
	}
	if int64(len(p)) <= left {
		return d.transfer(Read, 0, p, off)
	}
	n, err := d.transfer(Read, 0, p[:left], off)
	if err == nil {
		err = io.EOF
	}
	return n, err
}

// WriteAt implements [io.WriterAt]. Beyond the end of the disk it writes
// nothing and returns ENOSPC.
func (d *Disk) WriteAt(p []byte, off int64) (int, error) {
	return d.transfer(Write, 0, p, off)
}

// WriteAtFUA is WriteAt that returns when the data is durable.
func (d *Disk) WriteAtFUA(p []byte, off int64) (int, error) {
	if d.info.Features&CanFUA != 0 {
		return d.transfer(Write, FUA, p, off)
	}
	n, err := d.transfer(Write, 0, p, off)
	if err == nil {
		err = d.Sync()
	}
	return n, err
}

// Sync makes every write that has returned durable. A device that cannot flush
// has nothing to flush.
func (d *Disk) Sync() error {
	if d.info.Features&CanFlush == 0 {
		return nil
	}
	return d.one(Flush, 0, 0, 0)
}

// Trim tells the disk that length bytes at off are not needed any more.
func (d *Disk) Trim(off, length int64) error {
	return d.one(Trim, 0, off, length)
}

// WriteZeroes makes length bytes at off read as zeroes. The flags are FUA,
// NoHole and FastZero.
func (d *Disk) WriteZeroes(off, length int64, flags Flags) error {
	return d.one(WriteZeroes, flags, off, length)
}

// Close closes the queues of the disk, after the calls in progress. Later calls
// fail with [os.ErrClosed].
func (d *Disk) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.freed.Broadcast()
	for len(d.idle) < d.opened {
		d.freed.Wait()
	}
	var first error
	for _, q := range d.idle {
		if err := q.queue.Close(); err != nil && first == nil {
			first = err
		}
	}
	d.idle, d.opened = nil, 0
	return first
}

// one runs an operation without payload.
func (d *Disk) one(op Op, flags Flags, off, length int64) error {
	if length == 0 && op != Flush {
		return nil
	}
	info := d.present()
	if e := info.Check(op, flags, uint64(off), uint64(length)); e != 0 {
		return describe(op, off, e)
	}
	q, err := d.acquire()
	if err != nil {
		return err
	}
	defer d.release(q)
	return q.run(op, flags, nil, off, length)
}

// transfer runs a Read or Write of any length and returns how many bytes of p
// were certainly transferred.
func (d *Disk) transfer(op Op, flags Flags, p []byte, off int64) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	// The whole range is checked before a part of it is written.
	info := d.present()
	e := info.checkOp(op, flags)
	if e == 0 {
		e = info.checkRange(op, uint64(off), uint64(len(p)))
	}
	if e != 0 {
		return 0, describe(op, off, e)
	}
	q, err := d.acquire()
	if err != nil {
		return 0, err
	}
	defer d.release(q)
	longest := int(d.info.MaximumPayload &^ (max(d.info.MinimumBlock, 1) - 1))
	for done := 0; done < len(p); {
		n := min(len(p)-done, longest)
		if err := q.run(op, flags, p[done:done+n], off+int64(done), int64(n)); err != nil {
			return done, err
		}
		done += n
	}
	return len(p), nil
}

// describe adds the operation and the offset to an error.
func describe(op Op, off int64, err error) error {
	return fmt.Errorf("%s at %d: %w", op, off, err)
}

// acquire takes a queue for one call.
func (d *Disk) acquire() (*syncQueue, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		switch n := len(d.idle); {
		case d.closed:
			return nil, os.ErrClosed
		case n > 0:
			q := d.idle[n-1]
			d.idle = d.idle[:n-1]
			return q, nil
		case d.opened < d.limit:
			d.opened++
			d.mu.Unlock()
			queue, err := d.device.NewQueue(1)
			d.mu.Lock()
			if err == nil {
				return &syncQueue{queue: queue}, nil
			}
			d.opened--
			d.freed.Broadcast()
			if d.opened == 0 {
				return nil, fmt.Errorf("open a queue: %w", err)
			}
			d.limit = d.opened // continue with the queues that are open
		default:
			d.freed.Wait()
		}
	}
}

func (d *Disk) release(q *syncQueue) {
	d.mu.Lock()
	d.idle = append(d.idle, q)
	d.mu.Unlock()
	d.freed.Broadcast()
}
