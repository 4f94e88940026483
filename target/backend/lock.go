package backend

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// lockPoll is how often a lock of another process is tried again.
const lockPoll = 20 * time.Millisecond

// lockFile takes the lock that keeps a second writer out: exclusive for
// writers, shared for readers. It belongs to the open file, so it lasts until
// the last descriptor is closed and the last system call on it has returned,
// even if the process is killed. QEMU's image locks and fcntl locks conflict
// with it.
func lockFile(fd int, path string, readOnly bool, wait time.Duration) error {
	kind := int16(unix.F_WRLCK)
	if readOnly {
		kind = unix.F_RDLCK
	}
	deadline := time.Now().Add(wait)
	for {
		lock := unix.Flock_t{Type: kind, Whence: unix.SEEK_SET}
		err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lock)
		switch {
		case err == nil:
			return nil
		case err == unix.EINTR:
		case err != unix.EAGAIN && err != unix.EACCES:
			return fmt.Errorf("lock backing file %q: %w: if its file system has no locks, add lock=0 and make sure that no other process writes", path, err)
		case time.Now().After(deadline) && readOnly:
			return fmt.Errorf("backing file %q is %w by a writer: stop that one first", path, ErrLocked)
		case time.Now().After(deadline):
			return fmt.Errorf("backing file %q is %w: stop the other process that serves it (fuser shows it), or open it with readonly=1 in both", path, ErrLocked)
		default:
			time.Sleep(lockPoll)
		}
	}
}
