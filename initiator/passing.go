package initiator

import (
	"errors"

	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
)

// The loss timeout measures how long a target is absent, not how slow its disk
// is. A target that refuses for a reason that passes without a person is
// present: it is full, its successor takes over, or the disk is in use, perhaps
// by requests of the last session that hang in it. Requests wait for such a
// target for any time. One that drains is leaving, and a refusal that only a
// person can end is final: the loss timeout goes on.

// errOpenPending is an open that a target does not answer, which answers
// keepalives: its disk may be slow.
var errOpenPending = errors.New("the target has not opened the disk yet")

// present reports whether an attempt that failed with err shows that the target
// is there and refuses for a reason that passes.
func present(err error) bool {
	if final := new(SecurityError); errors.As(err, &final) {
		return false
	}
	if login := new(refusedError); errors.As(err, &login) {
		switch login.answer.Reason {
		case wire.ReasonResources, wire.ReasonConn, wire.ReasonFence, wire.ReasonEpoch, wire.ReasonSession, wire.ReasonGeneration:
			return true
		}
		return false
	}
	if open := new(openRefusedError); errors.As(err, &open) {
		switch open.status {
		case wire.StatusBusy, wire.StatusRetry, wire.StatusShutdown, wire.StatusNoMemory:
			return true
		}
		return false
	}
	busy := new(handshake.BusyError)
	return errors.As(err, &busy) || errors.Is(err, errOpenPending) || isFull(err)
}

// isFull reports whether a target rejected a connection because it has no place
// for another one.
func isFull(err error) bool {
	rejection := new(via.RejectError)
	return errors.As(err, &rejection) && rejection.Reason == wire.RejectFull
}

// isFinal reports whether a target refused the I/O connection with an index of
// a session for a reason that does not pass.
func isFinal(err error, index uint16, s *session) bool {
	login := new(refusedError)
	switch {
	case !errors.As(err, &login):
		security := new(SecurityError)
		return errors.As(err, &security)
	case login.answer.Reason == wire.ReasonConn:
		return index > s.conns // else the connection before it has not left
	}
	return login.answer.Reason != wire.ReasonDraining && !present(err)
}
