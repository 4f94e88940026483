package nbdkernel

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// flushIO tells the kernel that this process writes out what the kernel has in
// memory. When memory is short and it needs some, it does not wait then until
// the kernel has written something, which this process would have to do. It
// applies to all threads there are and will be.
func flushIO() error {
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_IO_FLUSHER, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("prctl PR_SET_IO_FLUSHER: %w", errno)
	}
	return nil
}
