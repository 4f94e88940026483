package shm

import (
	"errors"

	"github.com/viablk/viablk/via"
)

// failure is an error of a part of a link that breaks the connection in its own
// way. After any other error the connection is lost, without a notice.
type failure struct {
	code    via.AsyncCode // of the event
	cause   error
	notice  record     // for the peer; kind 0 is none
	refused via.Status // with which the peer refused a work; 0 is none
}

func (f *failure) Error() string { return f.cause.Error() }

func (f *failure) Unwrap() error { return f.cause }

// failureOf returns the failure of an error.
func failureOf(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	return &failure{code: via.AsyncConnectionLost, cause: err}
}
