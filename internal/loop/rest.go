package loop

import (
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// A loop that wakes seldom sleeps in the poller of the Go runtime, as an idle
// goroutine, not in a system call of its own. Each system call that the Go
// scheduler sees, and each timer of the runtime, wakes the runtime's monitor if
// it sleeps, which then looks around every 20 µs for a while: that costs more
// than all that an idle disk does for its keepalive. So the loop has a timerfd,
// and makes only raw calls, which do not block.
//
// The poller knows a gate, an epoll set that has the loop's own in it while the
// loop rests: otherwise each event would wake a thread of the runtime as well.

const (
	// restSleeps and restTime: a loop rests if its last so many sleeps took so
	// long in all.
	restSleeps = 8
	restTime   = 50 * time.Millisecond
)

// sleepTimes are when the last sleeps began, since the group's epoch.
type sleepTimes struct {
	times [restSleeps]time.Duration
	next  int
}

// seldom notes that a sleep begins and reports whether the last ones took long.
func (s *sleepTimes) seldom(now time.Duration) bool {
	oldest := s.times[s.next]
	s.times[s.next] = now
	s.next = (s.next + 1) % restSleeps
	return now-oldest >= restTime
}

// newGate returns a gate, nil if the runtime's poller takes none.
func newGate() *os.File {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil
	}
	_ = unix.SetNonblock(fd, true) // the poller takes what does not block
	gate := os.NewFile(uintptr(fd), "gate")
	if gate.SetReadDeadline(time.Time{}) != nil {
		_ = gate.Close()
		return nil
	}
	return gate
}

// rest returns how many events there are after a sleep in the runtime's poller,
// or that the poller does not take the epoll set.
func (l *Loop) rest(wait time.Duration) (n int, ok bool) {
	if l.gate == nil {
		return 0, false
	}
	raw, err := l.gate.SyscallConn()
	if err != nil || !setTimer(l.timer, wait) {
		return 0, false
	}
	gate := -1
	err = raw.Read(func(fd uintptr) bool {
		if gate < 0 { // the first call comes before the wait
			gate = int(fd)
			event := unix.EpollEvent{Events: unix.EPOLLIN}
			if err := unix.EpollCtl(gate, unix.EPOLL_CTL_ADD, l.epoll, &event); err != nil {
				return true // a set in too many others
			}
			ok = true
			runtime.UnlockOSThread() // else a second thread would have to wake this one
		}
		n = pollEvents(l.epoll, l.events[:])
		return n > 0
	})
	if ok {
		runtime.LockOSThread()
		_ = unix.EpollCtl(gate, unix.EPOLL_CTL_DEL, l.epoll, nil)
	}
	return n, ok && err == nil
}
