package block

import (
	"fmt"
	"sync/atomic"
	"syscall"
)

// Latch remembers that a disk has failed to make writes durable. After a failed
// fsync the kernel forgets what it could not write, so a second one succeeds
// although data is lost: the first failure stays the answer to every later
// Flush and FUA of this device. The zero Latch is open. It is safe for
// concurrent use.
type Latch struct {
	// Lost, if not nil, is called once, with the cause of the failure, before
	// any request gets the answer. It may block.
	Lost func(cause error)

	first atomic.Pointer[latched]
}

// latched is the answer after the failure.
type latched struct {
	cause   error
	counted chan struct{} // closed when Lost has returned
}

func (l *latched) Error() string {
	return fmt.Sprintf("writes were lost when the disk failed to make them durable: %v", l.cause)
}

func (l *latched) Unwrap() error { return syscall.EIO }

// Fail closes the latch, if it is open, because of cause, and returns the
// answer: an error with errno EIO.
func (l *Latch) Fail(cause error) error {
	mine := &latched{cause, make(chan struct{})}
	if l.first.CompareAndSwap(nil, mine) {
		defer close(mine.counted)
		if l.Lost != nil {
			l.Lost(cause)
		}
		return mine
	}
	return l.Err()
}

// Err returns the answer if the latch is closed, and nil otherwise.
func (l *Latch) Err() error {
	first := l.first.Load()
	if first == nil {
		return nil
	}
	<-first.counted
	return first
}
