package regcache

import (
	"errors"
	"syscall"

	"github.com/viablk/viablk/via"
)

// Errors of the cache. The data path returns them unwrapped, so that the
// fallback to a copy costs nothing.
var (
	// ErrNotArena says that a buffer is not inside one of the cache's arenas,
	// or has no bytes.
	ErrNotArena = errors.New("regcache: buffer is not in an arena")

	// ErrSpans says that a buffer crosses the end of a granule; see
	// [Cache.Reach].
	ErrSpans = errors.New("regcache: buffer crosses the end of a granule")

	// ErrBudget says that the registration budget is used up by leased regions.
	ErrBudget = errors.New("regcache: registration budget is used up")

	// ErrClosed says that the cache, arena or pool is closed.
	ErrClosed = errors.New("regcache: closed")

	// ErrInUse says that leases or buffers are out. The idle rest has been
	// withdrawn; the caller repeats the call when they are released.
	ErrInUse = errors.New("regcache: in use")

	// ErrNotAllocated says that the arena did not allocate the buffer, or that
	// it was freed before.
	ErrNotAllocated = errors.New("regcache: buffer is not allocated")
)

// CannotRegister reports whether an error says that memory is not registered
// because the NIC or the system has no room for it (ENOMEM, EAGAIN:
// RLIMIT_MEMLOCK among others), does not allow it (EPERM) or does not pin
// memory of its kind (EFAULT). The payload is then copied; the operation does
// not fail.
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
