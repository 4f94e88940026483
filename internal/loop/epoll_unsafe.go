package loop

import (
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pollEvents fills events with what is ready now. The Go scheduler does not see
// the call, which never sleeps.
func pollEvents(epoll int, events []unix.EpollEvent) int {
	// Safety: the kernel writes at most len(events) events during the call and
	// keeps nothing; RawSyscall6 keeps events alive and the stack in place.
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	if e != 0 {
		return 0
	}
	return int(n)
}

// awaitEvents is pollEvents after a sleep that ends when something is ready or
// the time has passed; negative: no limit. It may end early.
func awaitEvents(epoll int, events []unix.EpollEvent, wait time.Duration) int {
	var limit *unix.Timespec
	if wait >= 0 {
		t := unix.NsecToTimespec(int64(wait))
		limit = &t
	}
	// Safety: as above, and limit outlives the call; no signal mask is passed.
	n, _, e := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(epoll), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)),
		uintptr(unsafe.Pointer(limit)), 0, 0)
	if e == syscall.ENOSYS || e == syscall.EPERM { // before Linux 5.11, or an old seccomp profile
		milliseconds := -1
		if wait >= 0 {
			milliseconds = int((min(wait, time.Hour) + time.Millisecond - 1) / time.Millisecond)
		}
		got, err := unix.EpollWait(epoll, events, milliseconds)
		if err != nil {
			return 0
		}
		return got
	}
	if e != 0 {
		return 0
	}
	return int(n)
}

// setTimer has a timerfd expire after a time; negative: never. The Go scheduler
// does not see the call.
func setTimer(timer int, wait time.Duration) bool {
	var limit unix.ItimerSpec
	if wait >= 0 {
		limit.Value = unix.NsecToTimespec(int64(max(wait, 1)))
	}
	// Safety: the kernel reads limit during the call and keeps nothing.
	_, _, e := unix.RawSyscall6(unix.SYS_TIMERFD_SETTIME, uintptr(timer), 0, uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	return e == 0
}
