package nbd

import (
	"bytes"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/viablk/viablk/internal/block"
)

// memory is a disk in memory, with both shapes of a queue: one that completes
// requests before Kick returns, and one that completes them later, elsewhere
// and in another order.
type memory struct {
	info  block.Info
	data  []byte
	later bool // completes asynchronously

	mu     sync.RWMutex // makes overlapping requests of several queues whole; guards fail
	opened atomic.Int64 // queues ever opened
	open   atomic.Int64 // queues open now
	aborts atomic.Int64 // calls of Abort on queues that hold requests
	leaked atomic.Int64 // reservations not released when a queue was closed

	fail     func(*block.Request) error // if set, decides the result of a request
	interval time.Duration              // if set, idle queues want to be reaped that often
	idle     atomic.Int64               // reaps of idle queues
	refuse   atomic.Int64               // calls of Reserve to refuse
	hold     chan struct{}              // if set, later requests wait until it is closed
}

const everything = block.CanFlush | block.CanFUA | block.CanTrim | block.CanWriteZeroes | block.CanFastZero | block.CanMultiConn | block.CanStatus | block.CanPrefetch

func newMemory(size int64) *memory {
	return &memory{
		info: block.Info{Size: size, MinimumBlock: 1, PreferredBlock: 4096, MaximumPayload: 64 << 20, Features: everything},
		data: make([]byte, size),
	}
}

func (m *memory) Info() block.Info { return m.info }
func (m *memory) Close() error     { return nil }

func (m *memory) NewQueue(depth int) (block.Queue, error) {
	m.opened.Add(1)
	m.open.Add(1)
	q := &memoryQueue{m: m, depth: depth, free: map[int][][]byte{}}
	if m.later {
		return newLater(q), nil
	}
	return q, nil
}

// fill writes a pattern to the whole disk, and returns it.
func (m *memory) fill(seed byte) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	fill(m.data, seed)
	return bytes.Clone(m.data)
}

// snapshot returns the content of the disk.
func (m *memory) snapshot() []byte {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return bytes.Clone(m.data)
}

// holds says whether some bytes are on the disk.
func (m *memory) holds(offset int64, want []byte) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return bytes.Equal(m.data[offset:][:len(want)], want)
}

// failWith makes every request end with what f returns, if that is not nil.
func (m *memory) failWith(f func(*block.Request) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = f
}

// execute does a request.
func (m *memory) execute(r *block.Request) {
	m.mu.RLock()
	fail := m.fail
	m.mu.RUnlock()
	if fail != nil {
		if r.Err = fail(r); r.Err != nil {
			return
		}
	}
	r.Err = nil
	switch r.Op {
	case block.Read:
		m.mu.RLock()
		copy(r.Data, m.data[r.Offset:])
		m.mu.RUnlock()
	case block.Write:
		m.mu.Lock()
		copy(m.data[r.Offset:], r.Data)
		m.mu.Unlock()
	case block.WriteZeroes, block.Trim:
		m.mu.Lock()
		clear(m.data[r.Offset : r.Offset+r.Length])
		m.mu.Unlock()
	case block.Status:
		m.mu.RLock()
		m.status(r)
		m.mu.RUnlock()
	case block.Flush, block.Prefetch:
	default:
		r.Err = syscall.EINVAL
	}
}

// statusBlock is what the disk tells apart, in bytes.
const statusBlock = 4096

// status says that blocks of zeroes are holes.
func (m *memory) status(r *block.Request) {
	for off, more := r.Offset, true; more && off < r.Offset+r.Length; {
		next := min(off&^(statusBlock-1)+statusBlock, m.info.Size)
		flags := block.ExtentFlags(0)
		if m.zero(off, next) {
			flags = block.Hole | block.Zero
		}
		more = r.AddExtent(next-off, flags)
		off = next
	}
}

// blank is a block without data.
var blank [statusBlock]byte

// zero says whether a part of a block is zero. The caller has the lock; the
// race detector would spend seconds on what BLOCK_STATUS looks at.
//
//go:norace
func (m *memory) zero(off, next int64) bool {
	return bytes.Equal(m.data[off:next], blank[:next-off])
}

// memoryQueue is the inline queue, and the accounting of the other one.
type memoryQueue struct {
	m        *memory
	depth    int
	free     map[int][][]byte // reusable memory by capacity
	reserved int
	finished []*block.Request
}

func (q *memoryQueue) Reserve(r *block.Request) bool {
	if r.Memory != 0 {
		panic("Reserve on a request with memory")
	}
	if q.m.refuse.Add(-1) >= 0 {
		return false
	}
	size := 4096
	for size < int(r.Length) {
		size *= 2
	}
	list := q.free[size]
	if len(list) == 0 {
		list = append(list, make([]byte, size))
	}
	last := len(list) - 1
	r.Data = list[last][:r.Length]
	q.free[size] = list[:last]
	r.Memory = uint64(size)
	q.reserved++
	return true
}

func (q *memoryQueue) Release(r *block.Request) {
	if r.Memory == 0 {
		return
	}
	size := int(r.Memory)
	q.free[size] = append(q.free[size], r.Data[:size])
	r.Data, r.Memory = nil, 0
	q.reserved--
}

func (q *memoryQueue) Submit(r *block.Request) bool {
	if len(q.finished) == q.depth {
		return false
	}
	q.m.execute(r)
	q.finished = append(q.finished, r)
	return true
}

func (q *memoryQueue) Kick() {}

func (q *memoryQueue) Reap(dst []*block.Request) int {
	if len(q.finished) == 0 {
		q.m.idle.Add(1)
	}
	n := copy(dst, q.finished)
	q.finished = append(q.finished[:0], q.finished[n:]...)
	return n
}

func (q *memoryQueue) Arm() (time.Duration, bool) {
	return orDefault(q.m.interval, -1), len(q.finished) == 0
}

func (q *memoryQueue) FD() int { return -1 }

func (q *memoryQueue) Abort() {}

func (q *memoryQueue) Close() error {
	held := 0 // by requests that are not reaped
	for _, r := range q.finished {
		if r.Memory != 0 {
			held++
		}
	}
	q.m.leaked.Add(int64(q.reserved - held))
	q.m.open.Add(-1)
	return nil
}
