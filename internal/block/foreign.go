package block

import (
	"fmt"
	"io"
	"runtime/debug"
	"syscall"

	"github.com/pojntfx/go-nbd/pkg/backend"
)

// BackendOptions are what a go-nbd backend does not tell about itself.
type BackendOptions struct {
	// ReadOnly refuses writes.
	ReadOnly bool

	// MinimumBlock is the block size that the backend insists on, in bytes, a power
	// of two. 0 means 1.
	MinimumBlock uint32

	// Workers bounds the calls into the backend at a time. 0 means DefaultWorkers.
	Workers int

	// Panicked is told of every panic of the backend, with its stack. nil means that
	// only the EIO of the request tells.
	Panicked func(value any, stack []byte)
}

// foreign is a go-nbd backend as a Device. Requests run in parallel; Flush is
// Sync, which covers every queue; what the backend does not know, FUA and
// WriteZeroes, is made from what it knows.
type foreign struct {
	backend  backend.Backend
	info     Info
	panicked func(any, []byte)
	executor *Executor
	latch    Latch
}

// zeroes is what emulated WriteZeroes writes. Nobody changes it.
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
	f := &foreign{backend: b, panicked: options.Panicked}
	f.info = Info{
		Size:           size,
		MinimumBlock:   least,
		PreferredBlock: max(least, 4096),
		MaximumPayload: PayloadLimit,
		Features:       CanFlush | CanFUA | CanWriteZeroes | CanMultiConn,
	}
	if options.ReadOnly {
		f.info.Features = CanFlush | CanFUA | CanMultiConn | ReadOnly
	}
	f.executor = NewExecutor(f, options.Workers)
	f.executor.Guard(NewRanges()) // a backend promises nothing of requests that overlap
	return f, nil
}

func (f *foreign) Info() Info { return f.info }

func (f *foreign) NewQueue(depth int) (Queue, error) {
	return f.executor.NewQueue(depth, PayloadLimit)
}

func (f *foreign) Close() error {
	f.executor.Close()
	return nil
}

// Attempt leaves everything to Execute: any call of the backend may block.
func (f *foreign) Attempt(*Request) bool { return false }

// Execute implements [Engine].
func (f *foreign) Execute(r *Request) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = syscall.EIO
			if f.panicked != nil {
				f.panicked(value, debug.Stack())
			}
		}
	}()
	switch r.Op {
	case Read:
		return f.read(r)
	case Write:
		err = f.write(r.Data, r.Offset)
	case WriteZeroes:
		err = f.zero(r.Offset, r.Length)
	case Flush:
		return f.sync()
	default:
		return syscall.EINVAL
	}
	if err == nil && r.Flags&FUA != 0 {
		err = f.sync()
	}
	return err
}

func (f *foreign) read(r *Request) error {
	n, err := f.backend.ReadAt(r.Data, r.Offset)
	switch {
	case n == len(r.Data) && (err == nil || err == io.EOF):
		return nil
	case err == nil || err == io.EOF:
		return fmt.Errorf("backend read %d of %d bytes: %w", n, len(r.Data), syscall.EIO)
	}
	return err
}

func (f *foreign) write(p []byte, off int64) error {
	n, err := f.backend.WriteAt(p, off)
	if err == nil && n != len(p) {
		return fmt.Errorf("backend wrote %d of %d bytes: %w", n, len(p), syscall.EIO)
	}
	return err
}

func (f *foreign) zero(off, length int64) error {
	for length > 0 {
		p := zeroes[:min(length, int64(len(zeroes)))]
		if err := f.write(p, off); err != nil {
			return err
		}
		off += int64(len(p))
		length -= int64(len(p))
	}
	return nil
}

func (f *foreign) sync() error {
	if err := f.latch.Err(); err != nil {
		return err
	}
	if err := f.backend.Sync(); err != nil {
		return f.latch.Fail(err)
	}
	return nil
}
