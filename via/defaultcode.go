package via

import (
	"errors"
	"slices"
	"syscall"
)

// defaultCode is an error of an adapter that names no return code, with the one
// that it stands for. Its text is the adapter's.
type defaultCode struct {
	code Error
	err  error
}

func (e *defaultCode) Error() string   { return e.err.Error() }
func (e *defaultCode) Unwrap() []error { return []error{e.code, e.err} }

// exhausted are the errors of system calls that mean ErrResource wherever they
// are met.
var exhausted = []error{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOSPC, syscall.ENOBUFS, syscall.EDQUOT, syscall.EADDRINUSE,
}

// withCode makes an adapter's error wrap a return code: the one that it wraps
// already, else ErrResource if a system resource is exhausted, else the given
// one. Adapters name the codes that they know; system call errors have none.
func withCode(err error, code Error) error {
	var named Error
	if err == nil || errors.As(err, &named) {
		return err
	}
	if slices.ContainsFunc(exhausted, func(e error) bool { return errors.Is(err, e) }) {
		code = ErrResource
	}
	return &defaultCode{code, err}
}
