package backend

import (
	"fmt"
	"log/slog"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// memory is a disk of sparse memory: `memory:SIZE`. It ends with its process,
// unless that hands it over to a successor ([Held]).
//
// Requests run in Submit and are one copy. Requests of different queues run in
// parallel. Those that overlap are kept apart by block.Ranges, 4 KiB by 4 KiB:
// a queue that finds the range taken tries a few times, for a copy is short,
// and then hands the request to the executor. Memory is as durable as it will
// get once it is written, so Flush and FUA do nothing. Trim and WriteZeroes
// give whole pages back to the kernel.
type memory struct {
	info     block.Info
	file     *memoryFile
	held     *Held
	ranges   *block.Ranges
	executor *block.Executor
}

// memoryFeatures is what any disk in memory can do.
const memoryFeatures = block.CanFlush | block.CanFUA | block.CanTrim |
	block.CanWriteZeroes | block.CanFastZero | block.CanMultiConn

// openMemory opens the disk of an export, or makes it.
func openMemory(size int64, readOnly bool, export string, held *Held) (block.Device, error) {
	file, err := claimOrCreateMemory(size, export, held)
	if err != nil {
		return nil, fmt.Errorf("disk of %d bytes in memory: %w", size, err)
	}
	m := &memory{
		info: plainInfo(size, memoryFeatures|block.CanPrefetch|block.CanStatus, readOnly),
		file: file,
		held: held,
	}
	m.executor = block.NewExecutor(m, 0)
	m.guard(block.NewRanges())
	held.addMemory(export, file.fd)
	return m, nil
}

// claimOrCreateMemory returns the memory of the process before, or new memory.
func claimOrCreateMemory(size int64, export string, held *Held) (*memoryFile, error) {
	fd := held.claimMemory(export)
	if fd < 0 {
		return createMemory(size)
	}
	f, err := adoptMemory(fd, size)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("memory of the target before: %w", err)
	}
	return f, nil
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

// Identity implements [block.Identified].
func (m *memory) Identity() block.Identity { return m.file }

// Memory is [block.Mapped].
func (m *memory) Memory() []byte { return m.file.disk }

// Access is [block.Mapped].
func (m *memory) Access(off, length int64, write bool) bool {
	if write {
		m.changes()
		m.file.occupy(off, length)
		return true
	}
	return m.file.full(off, length)
}

// Ranges is [block.Mapped].
func (m *memory) Ranges() *block.Ranges { return m.ranges }

func (m *memory) NewQueue(depth int) (block.Queue, error) {
	m.changes()
	return m.executor.NewQueue(depth, block.PayloadLimit)
}

func (m *memory) Close() error {
	m.executor.Close()
	return m.file.close(m.held)
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
		m.file.read(r.Data, r.Offset)
	case block.Write:
		m.file.write(r.Data, r.Offset)
	case block.Trim:
		m.file.zero(r.Offset, r.Length, false)
	case block.WriteZeroes:
		m.file.zero(r.Offset, r.Length, r.Flags&block.NoHole != 0)
	case block.Status:
		m.file.status(r)
	case block.Flush, block.Prefetch:
	default:
		return unix.EINVAL
	}
	return nil
}
