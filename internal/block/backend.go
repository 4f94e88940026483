package block

import (
	"fmt"
	"io"
	"runtime/debug"
	"syscall"

	"github.com/pojntfx/go-nbd/pkg/backend"
)

// BackendOptions describe properties that a go-nbd backend does not report.
type BackendOptions struct {
	// ReadOnly refuses writes.
	ReadOnly bool

	// MinimumBlock is the block size that the backend insists on, in bytes, a
	// power of two. 0 means 1.
	MinimumBlock uint32

	// Workers bounds the calls into the backend at a time. 0 means
	// DefaultWorkers.
	Workers int

	// Panicked is called for every panic of the backend, with its stack. With
	// nil a panic shows only as the EIO of the request.
	Panicked func(value any, stack []byte)
}

// backendDevice is a go-nbd backend as a Device. Requests run in parallel;
// Flush is Sync, which covers every queue; FUA and WriteZeroes are emulated.
type backendDevice struct {
	backend  backend.Backend
	info     Info
	panicked func(any, []byte)
	executor *Executor
	latch    Latch
}

// zeroes is what emulated WriteZeroes writes. It is never written.
var zeroes [256 << 10]byte

// FromBackend returns a Device that serves b, whose size must not change and be
// a multiple of the minimum block. b has to be safe for concurrent use. Closing
// the device does not close b. A panic of b is an EIO of the request.
func FromBackend(b backend.Backend, options BackendOptions) (Device, error) {
	size, err := b.Size()
	if err != nil {
		return nil, fmt.Errorf("size of a backend: %w", err)
	}
	least := max(options.MinimumBlock, 1)
	if least&(least-1) != 0 || least > 1<<16 || size <= 0 || size%int64(least) != 0 {
		return nil, fmt.Errorf("serve a backend of %d bytes in blocks of %d: %w", size, least, syscall.EINVAL)
	}
	d := &backendDevice{backend: b, panicked: options.Panicked}
	d.info = Info{
		Size:           size,
		MinimumBlock:   least,
		PreferredBlock: max(least, 4096),
		MaximumPayload: PayloadLimit,
		Features:       CanFlush | CanFUA | CanWriteZeroes | CanMultiConn,
	}
	if options.ReadOnly {
		d.info.Features = CanFlush | CanFUA | CanMultiConn | ReadOnly
	}
	d.executor = NewExecutor(d, options.Workers)
	d.executor.Guard(NewRanges()) // overlapping requests of a backend have no defined order
	return d, nil
}

func (d *backendDevice) Info() Info { return d.info }

func (d *backendDevice) NewQueue(depth int) (Queue, error) {
	return d.executor.NewQueue(depth, PayloadLimit)
}

func (d *backendDevice) Close() error {
	d.executor.Close()
	return nil
}

// Attempt leaves everything to Execute: any call of the backend may block.
func (d *backendDevice) Attempt(*Request) bool { return false }

// Execute implements [Engine].
func (d *backendDevice) Execute(r *Request) (err error) {
	defer func() {
		if value := recover(); value != nil {
			if err = syscall.EIO; r.Op == Flush || r.Flags&FUA != 0 {
				err = d.latch.Fail(fmt.Errorf("panic: %v", value))
			}
			if d.panicked != nil {
				d.panicked(value, debug.Stack())
			}
		}
	}()
	switch r.Op {
	case Read:
		return d.read(r)
	case Write:
		err = d.write(r.Data, r.Offset)
	case WriteZeroes:
		err = d.zero(r.Offset, r.Length)
	case Flush:
		return d.sync()
	default:
		return syscall.EINVAL
	}
	if err == nil && r.Flags&FUA != 0 {
		err = d.sync()
	}
	return err
}

func (d *backendDevice) read(r *Request) error {
	n, err := d.backend.ReadAt(r.Data, r.Offset)
	switch {
	case n == len(r.Data) && (err == nil || err == io.EOF):
		return nil
	case err == nil || err == io.EOF:
		return fmt.Errorf("backend read %d of %d bytes: %w", n, len(r.Data), syscall.EIO)
	}
	return err
}

func (d *backendDevice) write(p []byte, off int64) error {
	n, err := d.backend.WriteAt(p, off)
	if err == nil && n != len(p) {
		return fmt.Errorf("backend wrote %d of %d bytes: %w", n, len(p), syscall.EIO)
	}
	return err
}

func (d *backendDevice) zero(off, length int64) error {
	for length > 0 {
		p := zeroes[:min(length, int64(len(zeroes)))]
		if err := d.write(p, off); err != nil {
			return err
		}
		off += int64(len(p))
		length -= int64(len(p))
	}
	return nil
}

func (d *backendDevice) sync() error {
	if err := d.latch.Err(); err != nil {
		return err
	}
	if err := d.backend.Sync(); err != nil {
		return d.latch.Fail(err)
	}
	return nil
}
