package ledger

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// longest is how many blocks a write has at most: more than fit into a message, so
// that payload travels in all ways that there are.
const longest = 24

// flushEvery is after how many operations there is a flush, about.
const flushEvery = 16

// Load writes to a disk until it fails, which is the error, or until stop says so. The
// workers write at the same time, never the same block; what they do is up to the seed.
// answered, unless it is nil, is called with each answer, concurrently.
func (l *Ledger) Load(d Disk, workers int, seed uint64, stop func() bool, answered func(Tally)) error {
	failures := make([]error, workers)
	var over atomic.Bool
	var group sync.WaitGroup
	for i := range workers {
		group.Go(func() {
			w := worker{l: l, disk: d, random: rand.New(rand.NewPCG(seed, uint64(i))), buffer: make([]byte, longest*Block)}
			for !over.Load() && !stop() {
				if err := w.step(); err != nil {
					failures[i] = fmt.Errorf("worker %d: %w", i, err)
					over.Store(true)
				} else if answered != nil {
					answered(l.Tally())
				}
			}
		})
	}
	group.Wait()
	return errors.Join(failures...)
}

// worker is one of those that write.
type worker struct {
	l      *Ledger
	disk   Disk
	random *rand.Rand
	buffer []byte
}

// step does one thing.
func (w *worker) step() error {
	if w.random.IntN(flushEvery) == 0 {
		covered := w.l.beginFlush()
		if err := w.disk.Sync(); err != nil {
			return fmt.Errorf("flush: %w", err)
		}
		w.l.endFlush(covered)
		return nil
	}
	first, n, generation := w.claim()
	p := w.buffer[:n*Block]
	for i := range n {
		w.l.stamp(p[i*Block:][:Block], first+i, generation)
	}
	write, durable := w.disk.WriteAt, w.random.IntN(4) == 0
	if durable {
		write = w.disk.WriteAtFUA
	}
	if _, err := write(p, int64(first)*Block); err != nil {
		return fmt.Errorf("write blocks %d to %d: %w", first, first+n-1, err)
	}
	w.l.end(first, n, generation, durable)
	return nil
}

// claim chooses blocks that nobody writes.
func (w *worker) claim() (first, n int, generation uint64) {
	for {
		if n = 1; w.random.IntN(4) == 0 {
			n += w.random.IntN(min(longest, len(w.l.blocks)))
		}
		first = w.random.IntN(len(w.l.blocks) - n + 1)
		if generation, ok := w.l.begin(first, n); ok {
			return first, n, generation
		}
	}
}
