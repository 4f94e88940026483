package block

import (
	"fmt"
	"syscall"
	"time"

	"github.com/viablk/viablk/internal/ring"
)

// inline is a queue of a device that never waits: Submit runs the request.
type inline struct {
	*Buffers
	run  func(*Request) error
	done ring.Ring[*Request]
	cap  int // depth
}

// NewInlineQueue returns a queue that runs every request within Submit, by run,
// which must not block. Its memory is a [Buffers] of the given limit, in bytes.
// It has no file descriptor.
func NewInlineQueue(depth, memory int, run func(*Request) error) (Queue, error) {
	if err := CheckDepth(depth); err != nil {
		return nil, err
	}
	buffers, err := NewBuffers(memory)
	if err != nil {
		return nil, err
	}
	return &inline{Buffers: buffers, run: run, done: ring.New[*Request](depth), cap: depth}, nil
}

// CheckDepth refuses a depth that no queue may have.
func CheckDepth(depth int) error {
	if depth < 1 || depth > MaximumDepth {
		return fmt.Errorf("open a queue of depth %d, not 1 to %d: %w", depth, MaximumDepth, syscall.EINVAL)
	}
	return nil
}

func (q *inline) Submit(r *Request) bool {
	if q.done.Len() == q.cap {
		return false
	}
	r.Err = q.run(r)
	q.done.Push(r)
	return true
}

func (q *inline) Kick() {}

// Abort implements [Queue]: every request has ended.
func (q *inline) Abort() {}

func (q *inline) Reap(dst []*Request) int { return q.done.PopInto(dst) }

func (q *inline) Arm() (time.Duration, bool) {
	if !q.done.Empty() {
		return 0, false
	}
	return q.Tidy(), true
}

func (q *inline) FD() int { return -1 }
