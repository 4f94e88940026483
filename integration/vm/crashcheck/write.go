package crashcheck

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// longest is how many blocks a write has at most: more than fit into a message,
// so that payload travels in all ways that there are.
const longest = 24

// flushEvery is after how many operations there is a flush, about.
const flushEvery = 16

// Load is what is done to a disk.
type Load struct {
	Seed    uint64
	Workers int  // who write at the same time, never the same block
	Durable bool // every write has FUA, and nothing is flushed

	Stop     func() bool    // tells workers to end
	Answered func(Counters) // is called with each answer, concurrently; may be nil
}

// Load writes to a disk until it fails, which is the error, or is told to stop.
func (l *WriteLog) Load(d Disk, c Load) error {
	failures := make([]error, c.Workers)
	var over atomic.Bool
	var group sync.WaitGroup
	for i := range c.Workers {
		group.Go(func() {
			w := worker{
				l: l, disk: d, durable: c.Durable, random: rand.New(rand.NewPCG(c.Seed, uint64(i))), buffer: make([]byte, longest*Block),
			}
			for !over.Load() && !c.Stop() {
				if err := w.step(); err != nil {
					failures[i] = fmt.Errorf("worker %d: %w", i, err)
					over.Store(true)
				} else if c.Answered != nil {
					c.Answered(l.Counters())
				}
			}
		})
	}
	group.Wait()
	return errors.Join(failures...)
}

// worker is one of those that write.
type worker struct {
	l       *WriteLog
	disk    Disk
	durable bool // always
	random  *rand.Rand
	buffer  []byte
}

// step does one thing.
func (w *worker) step() error {
	if !w.durable && w.random.IntN(flushEvery) == 0 {
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
	write, durable := w.disk.WriteAt, w.durable || w.random.IntN(4) == 0
	if durable {
		write = w.disk.WriteAtFUA
	}
	if _, err := write(p, int64(first)*Block); err != nil {
		return fmt.Errorf("write blocks %d to %d: %w", first, first+n-1, err)
	}
	w.l.end(first, n, generation, durable)
	return nil
}

// claim chooses blocks that no worker is writing.
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
