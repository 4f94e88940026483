package block

import (
	"fmt"
	"sync/atomic"
	"syscall"
)

// Latch remembers that a disk has failed to make writes durable. After a failed
// fsync the kernel forgets what it could not write, so a second one succeeds
// although data is lost: the first failure stays the answer to every later Flush
// and FUA until the disk is opened again. The zero Latch is open. It is safe for
// concurrent use.
type Latch struct {
	first atomic.Pointer[latched]
}

// latched is the answer after the failure.
type latched struct {
	cause error
}

func (l *latched) Error() string {
	return fmt.Sprintf("writes were lost when the disk failed to make them durable (%v): reopen it", l.cause)
}

func (l *latched) Unwrap() error { return syscall.EIO }

// Fail closes the latch, if it is open, because of cause, and returns the answer:
// an error with errno EIO.
func (l *Latch) Fail(cause error) error {
	l.first.CompareAndSwap(nil, &latched{cause})
	return l.first.Load()
}

// Err returns the answer if the latch is closed, and nil otherwise.
func (l *Latch) Err() error {
	if first := l.first.Load(); first != nil {
		return first
	}
	return nil
}
