package roce

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
)

// waiting is what an endpoint's goroutine waits for: file descriptors in an epoll set,
// which the runtime's poller watches. A goroutine in epoll_wait itself would hold one of
// the scheduler's processors; the monitor that takes it back, should others want one,
// then wakes up every 20 µs, and has a quarter of the time of a processor at which a
// consumer polls.
type waiting struct {
	epoll, wake int
	file        *os.File // owns epoll
	conn        syscall.RawConn
	events      [16]unix.EpollEvent
	look        func(uintptr) bool
}

// newWaiting returns an epoll set with an eventfd that interrupts the waiting.
func newWaiting() (*waiting, error) {
	w := &waiting{wake: -1}
	w.look = func(uintptr) bool { return w.answer() }
	var err error
	if w.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	err = unix.SetNonblock(w.epoll, true) // or the poller does not take it
	w.file = os.NewFile(uintptr(w.epoll), "epoll")
	if err == nil {
		w.conn, err = w.file.SyscallConn()
	}
	if err == nil {
		w.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	}
	if err == nil {
		err = watch(w.epoll, w.wake)
	}
	if err != nil {
		w.close()
		return nil, fmt.Errorf("prepare epoll: %w", err)
	}
	return w, nil
}

func (w *waiting) close() {
	_ = w.file.Close()
	if w.wake >= 0 {
		_ = unix.Close(w.wake)
	}
}

// ring interrupts the waiting, or the next one.
func (w *waiting) ring() { eventfd.Ring(w.wake) }

// longest bounds a waiting; who waits looks again then.
const longest = time.Hour

// until waits for an event, but not longer than for a time. It returns false if it
// cannot.
func (w *waiting) until(d time.Duration) bool {
	if d <= 0 {
		w.answer()
		return true
	}
	err := w.file.SetReadDeadline(time.Now().Add(min(d, longest)))
	if err == nil {
		err = w.conn.Read(w.look)
	}
	return err == nil || errors.Is(err, os.ErrDeadlineExceeded)
}

// answer takes what there is, and reports whether that was anything.
func (w *waiting) answer() bool {
	n, err := unix.EpollWait(w.epoll, w.events[:], 0)
	for i := range max(n, 0) {
		if int(w.events[i].Fd) == w.wake {
			eventfd.Drain(w.wake)
		}
	}
	return n > 0 || errors.Is(err, unix.EINTR)
}
