// Package vipl has the 41 functions of the VI Provider Library under their C
// names, for programs and readers of the Developer's Guide. Arguments are those
// of VIPL with Go's types, out parameters are results and the code is the last,
// handles are the objects of package via, whose comments say what each does.
// docs/via.md says where they deviate.
package vipl

import (
	"errors"
	"math"
	"time"

	"github.com/viablk/viablk/via"
)

// Return is a return code of VIPL (VIP_RETURN).
type Return int

const (
	// Success is the code that is no error; the others are those of
	// [via.Error].
	Success Return = 0
	// Infinite is the timeout that never ends (VIP_INFINITE); others are
	// milliseconds.
	Infinite uint32 = 0xffffffff

	invalid = Return(via.ErrInvalidParameter) // nil handles and pointers
)

var names = [...]string{
	"VIP_SUCCESS", "VIP_NOT_DONE", "VIP_INVALID_PARAMETER", "VIP_ERROR_RESOURCE",
	"VIP_TIMEOUT", "VIP_REJECT", "VIP_INVALID_RELIABILITY_LEVEL", "VIP_INVALID_MTU",
	"VIP_INVALID_QOS", "VIP_INVALID_PTAG", "VIP_INVALID_RDMAREAD", "VIP_DESCRIPTOR_ERROR",
	"VIP_INVALID_STATE", "VIP_ERROR_NAMESERVICE", "VIP_NO_MATCH", "VIP_NOT_REACHABLE",
	"VIP_ERROR_NOT_SUPPORTED",
}

// String returns the code's name in C.
func (r Return) String() string {
	if uint(r) < uint(len(names)) {
		return names[r]
	}
	return "VIP_RETURN unknown"
}

// on returns the code of a call on an object, which may be nil.
func on[T any](object *T, call func() error) Return {
	if object == nil {
		return invalid
	}
	return code(call())
}

// of is on for a call with a result.
func of[T, R any](object *T, call func() (R, error)) (result R, r Return) {
	if object == nil {
		return result, invalid
	}
	result, err := call()
	return result, code(err)
}

// code returns the code of an error of package via.
func code(err error) Return {
	var e via.Error
	if err != nil && !errors.As(err, &e) {
		e = via.ErrResource
	}
	return Return(e)
}

// duration returns a timeout; [Infinite] is 292 years.
func duration(milliseconds uint32) time.Duration {
	if milliseconds == Infinite {
		return math.MaxInt64
	}
	return time.Duration(milliseconds) * time.Millisecond
}
