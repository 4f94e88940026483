package nbdclient

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"
)

// generations is what a device knows of its server: which process of it the
// connections are to, as far as that can be told, and whether answered writes
// may be lost with it.
//
// NBD has no number that changes when a server forgets writes. So every loss of
// a connection begins another generation, all connections of the one before are
// given up, and if a write was not flushed, the disk fails for good.
type generations struct {
	durable bool // the server keeps what it answered

	mu sync.Mutex
	// +checklocks:mu
	generation uint64
	// +checklocks:mu
	answered uint64 // writes, of all queues
	// +checklocks:mu
	flushed uint64 // of answered
	// +checklocks:mu
	failure error
	// +checklocks:mu
	away error // why the server is lost; nil while there is a connection
	// +checklocks:mu
	since time.Time // of away
	// +checklocks:mu
	losses uint64
}

// errUnflushed is the loss of a server that had writes which were not flushed.
var errUnflushed = errors.New("the server was lost, and writes that were not flushed may be lost with it: check the disk and attach it again")

// lostError is the answer to requests of a disk without a server: EIO, whatever
// the cause has for an errno.
type lostError struct {
	text  string
	cause error
}

func (e *lostError) Error() string   { return e.text + ": " + e.cause.Error() }
func (e *lostError) Unwrap() []error { return []error{syscall.EIO, e.cause} }

// failed is the answer to requests of a disk that has failed.
func failed(cause error) error { return &lostError{"the disk has failed", cause} }

// current returns the generation that new connections belong to, or why there
// are none.
func (l *generations) current() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.generation, l.failure
}

// count counts writes that a connection of a generation answered. If it returns
// false, the connection is not to be used: the answers count as not given.
func (l *generations) count(generation uint64, writes int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if generation != l.generation || l.failure != nil {
		return false
	}
	l.answered += uint64(writes)
	return true
}

// covers returns which writes a flush covers that is sent now.
func (l *generations) covers() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.answered
}

// flush notes that writes are durable.
func (l *generations) flush(generation, covered uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if generation == l.generation {
		l.flushed = max(l.flushed, covered)
	}
}

// lose notes that a connection of a generation is lost, and whether writes that
// it had sent were not answered: their effect is not known, and may come late.
// It returns why the disk failed, or nil, and whether that or the loss is new.
func (l *generations) lose(generation uint64, writes bool, cause error) (failure error, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	dirty := writes
	if first = generation == l.generation; first {
		l.generation++
		l.losses++
		l.noteAway(cause)
		dirty = dirty || l.answered != l.flushed
	}
	if dirty && !l.durable && l.failure == nil {
		l.failure, first = fmt.Errorf("%w (%w)", errUnflushed, cause), true
	}
	return l.failure, first
}

// noteAway notes since when the server is away.
//
// +checklocks:l.mu
func (l *generations) noteAway(cause error) {
	if l.away == nil {
		l.away, l.since = cause, time.Now()
	}
}

// miss notes that a server could not be connected to.
func (l *generations) miss(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.noteAway(cause)
}

// found notes that a connection of a generation has been opened.
func (l *generations) found(generation uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if generation == l.generation {
		l.away = nil
	}
}

// state returns whether there is a server.
func (l *generations) state() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := State{Away: l.away, Failure: l.failure, Losses: l.losses}
	if l.away != nil {
		s.For = time.Since(l.since)
	}
	return s
}

// fail makes the disk fail for good. The first cause stays.
func (l *generations) fail(cause error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure == nil {
		l.failure = cause
	}
	return l.failure
}
