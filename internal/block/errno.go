package block

import (
	"errors"
	"io/fs"
	"syscall"
)

// Errno returns the errno that an I/O error carries, for the reply to a client:
// 0 for nil, the wrapped [syscall.Errno] if there is one, EIO otherwise.
func Errno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if e, ok := err.(syscall.Errno); ok {
		return e
	}
	var e syscall.Errno
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, fs.ErrPermission):
		return syscall.EPERM
	default:
		return syscall.EIO
	}
}
