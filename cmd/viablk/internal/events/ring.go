// Package events keeps the last records of a log and streams them to readers.
//
// A Ring is where the records are, numbered from 1 on. Readers have no queues:
// each remembers the number of the next event, and learns how many the ring has
// replaced before it came to them. A log call never waits for a reader.
package events

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Limits of a ring.
const (
	MaximumEvents  = 1000
	maximumBytes   = 1 << 20  // of all events
	MaximumRecord  = 64 << 10 // bytes; a longer one is lost to readers
	MaximumReaders = 16
)

// Why a reader is refused.
var (
	ErrReaders = errors.New("16 clients read the events: try again")
	ErrEnded   = errors.New("the process ends")
)

// Ring holds the last events of a process. Its methods may be called from any
// goroutine.
type Ring struct {
	origin string // of this process's events, in their IDs
	ending context.Context
	cancel context.CancelFunc
	left   chan struct{} // closed when the last reader has left an ended ring

	mu sync.Mutex
	// +checklocks:mu
	records [MaximumEvents][]byte // of event n in n % MaximumEvents
	// +checklocks:mu
	first uint64 // the oldest event that is kept
	// +checklocks:mu
	next uint64 // the next event to come
	// +checklocks:mu
	size int // bytes of the records
	// +checklocks:mu
	changed chan struct{} // closed at the next event, and at the end
	// +checklocks:mu
	ended bool
	// +checklocks:mu
	readers int
}

// NewRing returns an empty ring.
func NewRing() *Ring {
	r := &Ring{
		origin: strconv.FormatInt(time.Now().UnixNano(), 36),
		first:  1, next: 1, changed: make(chan struct{}), left: make(chan struct{}),
	}
	r.ending, r.cancel = context.WithCancel(context.Background())
	return r
}

// Write adds an event: a record that slog.JSONHandler made. It keeps a copy,
// and returns len(p) and no error.
func (r *Ring) Write(p []byte) (int, error) {
	record := bytes.Clone(bytes.TrimSuffix(p, []byte("\n")))
	if len(record) > MaximumRecord {
		record = nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.next-r.first == MaximumEvents || r.first < r.next && r.size+len(record) > maximumBytes {
		oldest := &r.records[r.first%MaximumEvents]
		r.size -= len(*oldest)
		*oldest = nil
		r.first++
	}
	r.records[r.next%MaximumEvents] = record
	r.size += len(record)
	r.next++
	close(r.changed)
	r.changed = make(chan struct{})
	return len(p), nil
}

// batch is what a reader takes from a ring at a time.
type batch struct {
	begin   uint64   // the number of the first record
	records [][]byte // nil is an event that is lost
	lost    uint64   // events before them
	changed <-chan struct{}
	ended   bool // no event follows them
}

// maximumBatch bounds how long a reader holds the lock.
const maximumBatch = 64

// read returns events from the number next on.
func (r *Ring) read(next uint64) batch {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := batch{begin: max(next, r.first), changed: r.changed}
	b.lost = b.begin - next
	end := min(r.next, b.begin+maximumBatch)
	for n := b.begin; n < end; n++ {
		b.records = append(b.records, r.records[n%MaximumEvents])
	}
	b.ended = r.ended && end == r.next
	return b
}

// id returns the ID of an event.
func (r *Ring) id(n uint64) string { return r.origin + "-" + strconv.FormatUint(n, 10) }

// after returns the number of the event that follows one with an ID. Other text
// and the events of other processes are followed by the oldest event.
func (r *Ring) after(id string) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if text, ok := strings.CutPrefix(id, r.origin+"-"); ok {
		if n, err := strconv.ParseUint(text, 10, 64); err == nil && n < r.next {
			return n + 1
		}
	}
	return r.first
}

// attach admits a reader, which calls detach.
func (r *Ring) attach() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.ended:
		return ErrEnded
	case r.readers == MaximumReaders:
		return ErrReaders
	}
	r.readers++
	return nil
}

func (r *Ring) detach() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readers--
	if r.ended && r.readers == 0 {
		close(r.left)
	}
}

// End has readers end after the events that are there. None comes any more.
func (r *Ring) End() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	r.ended = true
	r.cancel()
	close(r.changed)
	r.changed = make(chan struct{})
	if r.readers == 0 {
		close(r.left)
	}
}

// Close calls End and waits until the last reader has left.
func (r *Ring) Close() {
	r.End()
	<-r.left
}
