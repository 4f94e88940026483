package via

import (
	"errors"
	"slices"
	"syscall"
)

// codeless is an error of an adapter that names no return code, with the one that
// it stands for. Its text is the adapter's.
type codeless struct {
	code Error
	err  error
}

func (e *codeless) Error() string   { return e.err.Error() }
func (e *codeless) Unwrap() []error { return []error{e.code, e.err} }

// exhausted are the errors of system calls that mean ErrResource wherever they
// are met.
var exhausted = []error{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOSPC, syscall.ENOBUFS, syscall.EDQUOT, syscall.EADDRINUSE,
}

// coded returns an error of an adapter so that it wraps a return code: its own, or
// else ErrResource if something is exhausted, or else the given one. Adapters name
// the codes that they know of; what the system says need not be one of these.
func coded(err error, code Error) error {
	var named Error
	if err == nil || errors.As(err, &named) {
		return err
	}
	if slices.ContainsFunc(exhausted, func(e error) bool { return errors.Is(err, e) }) {
		code = ErrResource
	}
	return &codeless{code, err}
}
