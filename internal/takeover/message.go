package takeover

import (
	"errors"
	"fmt"
	"time"
)

// kind says what a message is.
type kind byte

const (
	commit  kind = 'C' // successor: give me what you serve
	item    kind = 'I' // predecessor: a descriptor and its name
	last    kind = 'L' // predecessor: that was all
	opened  kind = 'O' // successor: everything is open, and nothing is served yet
	serve   kind = 'S' // predecessor: serve
	serving kind = 'D' // successor: done, I serve
	failed  kind = 'F' // successor: why it cannot
)

// ErrBroken means that the other end broke the protocol.
var ErrBroken = errors.New("the other process does not follow the protocol of a takeover")

// Message is one message. FD is -1 without a descriptor.
type Message struct {
	kind kind
	text string
	FD   int
}

// expect receives a message of a kind.
func expect(c Channel, want kind) error {
	m, err := c.Receive()
	switch {
	case err != nil:
		return err
	case m.kind == want && m.FD < 0:
		return nil
	case m.FD >= 0:
		c.Discard(m.FD)
	case m.kind == failed:
		return fmt.Errorf("%w: %s", errRefused, m.text)
	}
	return fmt.Errorf("%w: message %q instead of %q", ErrBroken, m.kind, want)
}

// errRefused is the end of a successor that could not open what it got.
var errRefused = errors.New("the successor gave up")

// Channel carries messages between the two processes, in order. One goroutine
// uses an end.
type Channel interface {
	// Send sends a message. The caller keeps its descriptor.
	Send(m Message) error

	// Receive receives a message, whose descriptor the caller owns. io.EOF is
	// the end of the other process between two messages.
	Receive() (Message, error)

	// SetTimeout bounds all that is sent and received until the next call; 0 is
	// no bound.
	SetTimeout(d time.Duration) error

	// Discard closes a descriptor of this process.
	Discard(fd int)

	// Close closes the end, which the other process receives as io.EOF.
	Close() error
}

// Process is the process of a successor.
type Process interface {
	// Ended waits until the process has ended, for d at most.
	Ended(d time.Duration) bool

	// Kill kills the process, which may have ended.
	Kill()

	// Close gives up the right to do so.
	Close()
}
