// Package sched gives initiator, target and target/reserve their clock, their
// waits and their goroutines: they use a [Scheduler] in place of package time
// and the go statement. [Real] has those of the process. A simulation has its
// own, with a virtual clock and one goroutine at a time, so that a run depends
// on its seed alone.
package sched

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/loop"
)

// Scheduler is the clock, the waits and the goroutines. Code that takes one
// reads no other clock, starts no goroutine otherwise, and blocks in no other
// way, but for short sections under a mutex that contain no wait.
//
// All methods are safe for concurrent use.
type Scheduler interface {
	// Now returns the time. Differences between two times are monotonic.
	Now() time.Time

	// Go starts a goroutine.
	Go(f func())

	// Drive has a loop drive a task until it is done; see [loop.Drive].
	Drive(t loop.Task) error

	// NewEvent returns an event that is not set.
	NewEvent() *Event

	// Wait blocks until one of the events is set, ctx is done, or d has passed;
	// d < 0 is no limit. It takes at most [MaxEvents] events; nil ones are never
	// set. The caller asks which it was.
	Wait(ctx context.Context, d time.Duration, events ...*Event)

	// WithTimeout is context.WithTimeout with this clock, and WithCancel is
	// context.WithCancel.
	WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
	WithCancel(ctx context.Context) (context.Context, context.CancelFunc)

	// NewBell returns a bell that has not rung.
	NewBell() (Bell, error)

	// Poll blocks until one of the file descriptors is readable, as poll(2)
	// does, or d has passed; d < 0 is no limit. It may return early: the caller
	// looks again. It sets Revents.
	Poll(fds []unix.PollFd, d time.Duration) error
}

// Bell wakes a goroutine in Poll. Its descriptor is readable from the first
// Ring to the next Drain. No method blocks.
type Bell interface {
	FD() int
	Ring()
	Drain()
	Close() error // no other method is called afterwards
}

// MaxEvents is how many events a Wait takes.
const MaxEvents = 3

// Event is something that happens once. Its methods are safe for concurrent
// use.
type Event struct {
	once   sync.Once
	done   chan struct{}
	notify func() // of the scheduler; nil: none
}

// NewEvent returns an event that calls notify, if that is not nil, when it has
// been set. It is for schedulers.
func NewEvent(notify func()) *Event {
	return &Event{done: make(chan struct{}), notify: notify}
}

// Set sets the event. Later calls do nothing.
func (e *Event) Set() {
	e.once.Do(func() {
		close(e.done)
		if e.notify != nil {
			e.notify()
		}
	})
}

// IsSet reports whether the event is set.
func (e *Event) IsSet() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// Done returns a channel that is closed when the event is set, for callers
// outside of a session.
func (e *Event) Done() <-chan struct{} { return e.done }
