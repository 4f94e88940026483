package crashcheck

import (
	"encoding/gob"
	"fmt"
	"os"
	"slices"
	"sync"
)

// Disk is what is written to. Its methods are called concurrently, and what a
// method promises covers every call that returned before it was called.
type Disk interface {
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) (int, error)
	// WriteAtFUA is WriteAt that returns when the data is durable.
	WriteAtFUA(p []byte, off int64) (int, error)
	// Sync makes every write that has returned durable.
	Sync() error
}

// WriteLog records the writes and flushes of a disk. Its methods are safe for
// concurrent use, except that Check needs a disk without writes in flight.
type WriteLog struct {
	Seed uint64 // of the content; disks with different seeds have no sector in common

	mu       sync.Mutex
	last     uint64 // generation that was used
	blocks   []history
	answered map[int]uint64 // generation of blocks that are answered and not durable
	busy     map[int]bool   // blocks that are being written
	did      Counters
}

// history is what one block may hold, in the order of writing: the first
// generation was promised, each later one may be there.
type history []uint64

// Counters counts the requests that a disk has answered.
type Counters struct {
	Writes, Durable, Flushes int // writes, those with FUA, flushes
}

// Answers is how many there were.
func (t Counters) Answers() int { return t.Writes + t.Durable + t.Flushes }

// New returns the log of a disk of zeroes.
func New(seed uint64, blocks int) *WriteLog {
	l := &WriteLog{Seed: seed, blocks: make([]history, blocks)}
	for i := range l.blocks {
		l.blocks[i] = history{untouched}
	}
	l.forget()
	return l
}

// forget forgets the requests in flight.
func (l *WriteLog) forget() { l.answered, l.busy = make(map[int]uint64), make(map[int]bool) }

// Counters returns what the disk has answered up to now.
func (l *WriteLog) Counters() Counters {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.did
}

// begin notes that blocks are going to be written and returns the generation,
// or false if one of them is being written.
func (l *WriteLog) begin(first, n int) (uint64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for b := first; b < first+n; b++ {
		if l.busy[b] {
			return 0, false
		}
	}
	l.last++
	for b := first; b < first+n; b++ {
		l.busy[b] = true
		l.blocks[b] = append(l.blocks[b], l.last)
	}
	return l.last, true
}

// end notes that a write was answered.
func (l *WriteLog) end(first, n int, generation uint64, durable bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for b := first; b < first+n; b++ {
		delete(l.busy, b)
		if durable {
			l.promise(b, generation)
		} else {
			l.answered[b] = generation
		}
	}
	if durable {
		l.did.Durable++
	} else {
		l.did.Writes++
	}
}

// promise notes that a generation of a block is durable.
func (l *WriteLog) promise(block int, generation uint64) {
	if i := slices.Index(l.blocks[block], generation); i > 0 {
		l.blocks[block] = slices.Delete(l.blocks[block], 0, i)
	}
	if l.answered[block] <= generation {
		delete(l.answered, block)
	}
}

// beginFlush returns what a flush that is asked for now makes durable.
func (l *WriteLog) beginFlush() map[int]uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	covered := make(map[int]uint64, len(l.answered))
	for block, generation := range l.answered {
		covered[block] = generation
	}
	return covered
}

// endFlush notes that a flush was answered.
func (l *WriteLog) endFlush(covered map[int]uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for block, generation := range covered {
		l.promise(block, generation)
	}
	l.did.Flushes++
}

// record is a write log in a file.
type record struct {
	Seed, Last uint64
	Blocks     []history
	Did        Counters
}

// Save writes the log to a file as it is now: writes in flight have no
// answer.
func (l *WriteLog) Save(path string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := gob.NewEncoder(f).Encode(record{l.Seed, l.last, l.blocks, l.did}); err != nil {
		return fmt.Errorf("write the log %s: %w", path, err)
	}
	return f.Close()
}

// Open reads a write log from a file.
func Open(path string) (*WriteLog, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r record
	if err := gob.NewDecoder(f).Decode(&r); err != nil {
		return nil, fmt.Errorf("read the log %s: %w", path, err)
	}
	l := &WriteLog{Seed: r.Seed, last: r.Last, blocks: r.Blocks, did: r.Did}
	l.forget()
	return l, nil
}
