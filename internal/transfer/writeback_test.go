package transfer_test

import (
	"bytes"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/transfer"
)

// caching is a disk that writes back slowly: until the first flush begins.
type caching struct {
	block.Device
	asked   *atomic.Int32
	flushed chan struct{}
	once    *sync.Once
}

func (d caching) WriteBack() {
	d.asked.Add(1)
	<-d.flushed
}

func (d caching) NewQueue(depth int) (block.Queue, error) {
	q, err := d.Device.NewQueue(depth)
	return cachingQueue{q, d}, err
}

type cachingQueue struct {
	block.Queue
	disk caching
}

func (q cachingQueue) Submit(r *block.Request) bool {
	if r.Op == block.Flush {
		q.disk.once.Do(func() { close(q.disk.flushed) })
	}
	return q.Queue.Submit(r)
}

// TestDestinationWritesBack: a destination is asked to write back while data
// comes, which does not wait for it, and is not asked when nothing is written.
func TestDestinationWritesBack(t *testing.T) {
	const size = 32 << 20
	from, to := open(t, "memory:32M"), open(t, "memory:32M")
	fill(t, from, bytes.Repeat([]byte{1}, size))
	d := caching{to, new(atomic.Int32), make(chan struct{}), new(sync.Once)}
	if _, err := run(t, transfer.Compare, from, d, nil); err != nil || d.asked.Load() != 0 {
		t.Errorf("a comparison: %v, asked %d times", err, d.asked.Load())
	}
	r, err := run(t, transfer.Copy, from, d, nil)
	if err != nil || r.Copied != size {
		t.Errorf("a copy: %+v, %v", r, err)
	}
	if d.asked.Load() == 0 {
		t.Error("the disk is never asked to write back")
	}
}
