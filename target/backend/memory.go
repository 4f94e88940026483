package backend

import (
	"fmt"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// memory is a disk of private, anonymous, sparse memory: `memory:SIZE`.
//
// Requests run in Submit and are one copy. Requests of different queues run in
// parallel without a lock, as on a disk: what overlapping ones leave or see is
// any mixture of their bytes. Memory is as durable as it will get once it is
// written, so Flush and FUA do nothing. Trim and WriteZeroes give whole pages
// back to the kernel.
type memory struct {
	info  block.Info
	bytes []byte
	page  int64 // bytes
}

// memoryFeatures is what any disk in memory can do.
const memoryFeatures = block.CanFlush | block.CanFUA | block.CanTrim |
	block.CanWriteZeroes | block.CanFastZero | block.CanMultiConn

func openMemory(size int64, readOnly bool) (block.Device, error) {
	if size != int64(int(size)) {
		return nil, fmt.Errorf("%w: %d bytes are more than this machine can address", ErrUsage, size)
	}
	bytes, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map a disk of %d bytes: %w", size, err)
	}
	return &memory{
		info:  plainInfo(size, memoryFeatures, readOnly),
		bytes: bytes,
		page:  int64(unix.Getpagesize()),
	}, nil
}

// plainInfo describes a disk without peculiarities.
func plainInfo(size int64, features block.Features, readOnly bool) block.Info {
	if readOnly {
		features |= block.ReadOnly
		features &^= block.CanTrim | block.CanWriteZeroes | block.CanFastZero
	}
	return block.Info{
		Size:           size,
		MinimumBlock:   1,
		PreferredBlock: 4096,
		MaximumPayload: block.PayloadLimit,
		Features:       features,
	}
}

func (m *memory) Info() block.Info { return m.info }

// Memory is [block.Mapped].
func (m *memory) Memory() []byte { return m.bytes }

func (m *memory) NewQueue(depth int) (block.Queue, error) {
	return block.NewInlineQueue(depth, block.PayloadLimit, m.run)
}

func (m *memory) Close() error {
	if m.bytes == nil {
		return nil
	}
	err := unix.Munmap(m.bytes)
	m.bytes = nil
	if err != nil {
		return fmt.Errorf("unmap a disk: %w", err)
	}
	return nil
}

// run is every operation.
func (m *memory) run(r *block.Request) error {
	switch r.Op {
	case block.Read:
		copy(r.Data, m.bytes[r.Offset:r.Offset+r.Length])
	case block.Write:
		copy(m.bytes[r.Offset:r.Offset+r.Length], r.Data)
	case block.Trim:
		m.zero(r.Offset, r.Length, false)
	case block.WriteZeroes:
		m.zero(r.Offset, r.Length, r.Flags&block.NoHole != 0)
	case block.Flush:
	default:
		return unix.EINVAL
	}
	return nil
}

// zero clears a range. Whole pages go back to the kernel unless keep is set.
func (m *memory) zero(off, length int64, keep bool) {
	end := off + length
	first := (off + m.page - 1) &^ (m.page - 1)
	last := end &^ (m.page - 1)
	if end == int64(len(m.bytes)) {
		last = (end + m.page - 1) &^ (m.page - 1) // nothing lives behind the end
	}
	if keep || first >= last {
		clear(m.bytes[off:end])
		return
	}
	clear(m.bytes[off:first])
	whole := m.bytes[first:min(last, int64(len(m.bytes)))]
	if unix.Madvise(whole, unix.MADV_DONTNEED) != nil {
		clear(whole)
	}
	if last < end {
		clear(m.bytes[last:end])
	}
}
