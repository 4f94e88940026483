package regcache

import (
	"errors"
	"syscall"

	"github.com/viablk/viablk/via"
)

// Errors of the cache. They are returned as they are where a request may meet
// them, so that the answer "copy instead" costs nothing.
var (
	// ErrNotArena says that a buffer is not inside one of the cache's arenas,
	// or has no bytes.
	ErrNotArena = errors.New("regcache: buffer is not in an arena")

	// ErrSpans says that a buffer crosses the end of a granule; see
	// [Cache.Reach].
	ErrSpans = errors.New("regcache: buffer crosses the end of a granule")

	// ErrBudget says that no more memory may be registered now.
	ErrBudget = errors.New("regcache: registration budget is used up")

	// ErrClosed says that the cache, arena or pool is closed.
	ErrClosed = errors.New("regcache: closed")

	// ErrInUse says that leases, buffers or slots are still out. What could be
	// withdrawn has been; the call is repeated when they are back.
	ErrInUse = errors.New("regcache: in use")

	// ErrNotAllocated says that a buffer is not one that the arena handed out,
	// or that it was given back before.
	ErrNotAllocated = errors.New("regcache: buffer is not allocated")
)

// CannotRegister reports whether an error says that memory is not registered because
// the NIC or the system has no room for it (ENOMEM, EAGAIN: RLIMIT_MEMLOCK among
// others), does not allow it (EPERM) or does not pin memory of its kind (EFAULT).
// Payload is then copied; it is no error of an operation.
func CannotRegister(err error) bool {
	for _, reason := range []error{
		via.ErrResource, ErrBudget, syscall.ENOMEM, syscall.EAGAIN, syscall.EPERM, syscall.EFAULT,
	} {
		if errors.Is(err, reason) {
			return true
		}
	}
	return false
}
