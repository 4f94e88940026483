package backend

import (
	"fmt"
	"log/slog"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// memory is a disk of private, anonymous, sparse memory: `memory:SIZE`.
//
// Requests run in Submit and are one copy. Requests of different queues run in
// parallel. Those that overlap are kept apart by block.Ranges, 4 KiB by 4 KiB:
// a queue that finds the range taken tries a few times, for a copy is short,
// and then hands the request to the executor. Memory is as durable as it will
// get once it is written, so Flush and FUA do nothing. Trim and WriteZeroes
// give whole pages back to the kernel.
type memory struct {
	info     block.Info
	bytes    []byte
	page     int64     // bytes
	pages    *pageView // nil where the kernel does not tell
	ranges   *block.Ranges
	executor *block.Executor
}

// memoryFeatures is what any disk in memory can do.
const memoryFeatures = block.CanFlush | block.CanFUA | block.CanTrim |
	block.CanWriteZeroes | block.CanFastZero | block.CanMultiConn

func openMemory(size int64, readOnly bool) (block.Device, error) {
	bytes, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map a disk of %d bytes: %w", size, err)
	}
	features := memoryFeatures | block.CanPrefetch
	pages, err := newPageView(bytes)
	if err == nil {
		features |= block.CanStatus
	}
	m := &memory{
		info:  plainInfo(size, features, readOnly),
		bytes: bytes,
		page:  int64(unix.Getpagesize()),
		pages: pages,
	}
	m.executor = block.NewExecutor(m, 0)
	m.guard(block.NewRanges())
	return m, nil
}

// machineMemory returns the size of the machine's memory in bytes, or 0 if the
// kernel does not tell.
func machineMemory() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}

// warnOfSize warns of a disk that does not fit into the memory of the machine.
// log may be nil.
func warnOfSize(size, memory int64, log *slog.Logger) {
	if log == nil || memory == 0 || size <= memory {
		return
	}
	log.Warn("the disk is larger than the memory of this machine: the kernel ends the process when it is full",
		"event", "memory_short", "size", size, "memory", memory)
}

// guard keeps overlapping accesses apart by ranges; nil does not.
func (m *memory) guard(ranges *block.Ranges) {
	m.ranges = ranges
	m.executor.Guard(ranges)
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

// Durability implements [block.DurabilityReporter].
func (m *memory) Durability() block.Durability { return block.Volatile }

// Memory is [block.Mapped].
func (m *memory) Memory() []byte { return m.bytes }

// Ranges is [block.Mapped].
func (m *memory) Ranges() *block.Ranges { return m.ranges }

func (m *memory) NewQueue(depth int) (block.Queue, error) {
	return m.executor.NewQueue(depth, block.PayloadLimit)
}

func (m *memory) Close() error {
	if m.bytes == nil {
		return nil
	}
	m.executor.Close()
	err := unix.Munmap(m.bytes)
	m.bytes = nil
	m.pages.close()
	if err != nil {
		return fmt.Errorf("unmap a disk: %w", err)
	}
	return nil
}

// rangeAttempts is how often Attempt tries to acquire its range: longer than
// that, and handing the request to a worker is cheaper.
const rangeAttempts = 32

// Attempt implements [block.Engine]. The executor splits a request that is
// longer than any payload.
func (m *memory) Attempt(r *block.Request) bool {
	switch r.Op {
	case block.Read, block.Write, block.Trim, block.WriteZeroes:
		if r.Length > block.PayloadLimit || !m.acquire(r) {
			return false
		}
		r.Err = m.Execute(r)
		m.ranges.Release(r.Offset, r.Length, r.Op != block.Read)
	default:
		r.Err = m.Execute(r)
	}
	return true
}

// acquire holds the range of a request, if that is soon possible.
func (m *memory) acquire(r *block.Request) bool {
	for range rangeAttempts {
		if m.ranges.TryAcquire(r.Offset, r.Length, r.Op != block.Read) {
			return true
		}
	}
	return false
}

// Execute implements [block.Engine]: it is every operation, with its range
// held.
func (m *memory) Execute(r *block.Request) error {
	switch r.Op {
	case block.Read:
		copy(r.Data, m.bytes[r.Offset:r.Offset+r.Length])
	case block.Write:
		copy(m.bytes[r.Offset:r.Offset+r.Length], r.Data)
	case block.Trim:
		m.zero(r.Offset, r.Length, false)
	case block.WriteZeroes:
		m.zero(r.Offset, r.Length, r.Flags&block.NoHole != 0)
	case block.Status:
		return m.pages.status(r)
	case block.Flush, block.Prefetch:
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
