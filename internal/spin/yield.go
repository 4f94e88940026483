package spin

import "golang.org/x/sys/unix"

// yield lets another thread have the processor. The call returns at once if
// none wants it, so the Go scheduler need not know of it.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
