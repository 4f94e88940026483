package nbd

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/eventfd"
)

// laterQueue completes requests on a goroutine of its own, a batch at a time in
// random order, and rings an eventfd when its owner has armed it.
type laterQueue struct {
	*memoryQueue
	fd      int
	pending []*block.Request // submitted, not kicked
	under   int

	kicked chan []*block.Request
	wait   sync.WaitGroup

	mu    sync.Mutex
	done  []*block.Request
	armed atomic.Bool
}

func newLater(q *memoryQueue) *laterQueue {
	fd, err := eventfd.New()
	if err != nil {
		panic(err)
	}
	l := &laterQueue{memoryQueue: q, fd: fd, kicked: make(chan []*block.Request, 2048)}
	l.wait.Go(l.run)
	return l
}

// run executes batches. With a hold it waits for that first.
func (l *laterQueue) run() {
	for batch := range l.kicked {
		if l.m.hold != nil {
			<-l.m.hold
		}
		rand.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
		for _, r := range batch {
			l.m.execute(r)
			l.mu.Lock()
			l.done = append(l.done, r)
			ring := l.armed.Swap(false)
			l.mu.Unlock()
			if ring {
				eventfd.Ring(l.fd)
			}
		}
	}
}

func (l *laterQueue) Submit(r *block.Request) bool {
	if l.under == l.depth {
		return false
	}
	l.under++
	l.pending = append(l.pending, r)
	return true
}

func (l *laterQueue) Kick() {
	if len(l.pending) > 0 {
		l.kicked <- l.pending
		l.pending = nil
	}
}

func (l *laterQueue) Reap(dst []*block.Request) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := copy(dst, l.done)
	l.done = l.done[n:]
	l.under -= n
	return n
}

func (l *laterQueue) Arm() (time.Duration, bool) {
	eventfd.Drain(l.fd)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.done) > 0 {
		return 0, false
	}
	l.armed.Store(true)
	return orDefault(l.m.interval, -1), true
}

func (l *laterQueue) FD() int { return l.fd }

// Abort drops what is not kicked.
func (l *laterQueue) Abort() {
	l.m.aborts.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.pending {
		r.Err = syscall.ECANCELED
		l.done = append(l.done, r)
	}
	l.pending = nil
}

func (l *laterQueue) Close() error {
	l.Kick()
	close(l.kicked)
	l.wait.Wait()
	eventfd.Close(l.fd)
	l.m.leaked.Add(int64(l.reserved))
	for _, r := range l.done {
		if r.Memory != 0 {
			l.m.leaked.Add(-1)
		}
	}
	l.m.open.Add(-1)
	return nil
}
