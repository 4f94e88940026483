package initiator

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
)

// awayError is why a disk has no queue for a new user: its target is away, and
// may return.
type awayError struct {
	host  string
	since time.Duration // 0: the loss was not noticed yet
	cause error         // of the last attempt; nil: none was made
}

func (e *awayError) Error() string {
	switch {
	case e.since > 0:
		return fmt.Sprintf("the target %s has been away for %v: try again", e.host, e.since)
	case e.cause != nil:
		return fmt.Sprintf("the target %s does not answer: try again (%v)", e.host, e.cause)
	default:
		return fmt.Sprintf("the target %s is away: try again", e.host)
	}
}

// Unwrap tells the error from that of a disk that is lost.
func (e *awayError) Unwrap() error { return syscall.ESHUTDOWN }

// awayError says for how long the target has been away.
func (k *reconnector) awayError(cause error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := &awayError{host: k.device.cfg.Host, cause: cause}
	if !k.lostAt.IsZero() {
		e.since = max(k.scheduler.Now().Sub(k.lostAt).Round(time.Second/10), time.Second/10)
	}
	return e
}

// unanswered reports whether a new queue got no answer of the target, or that
// it goes down or has lost the path: the session or the path may be lost, which
// keepalives find out.
func unanswered(err error) bool {
	if refused := new(refusedError); errors.As(err, &refused) {
		return refused.answer.Reason == wire.ReasonDraining || refused.answer.Reason == wire.ReasonEpoch
	}
	if errors.Is(err, errClosed) || errors.Is(err, seal.ErrForged) {
		return false
	}
	for _, e := range [...]error{
		via.ErrNotReachable, via.ErrNoMatch, via.ErrTimeout, via.ErrReject,
		errSession, errLost, context.DeadlineExceeded,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
