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

// poller is the epoll set that an endpoint's goroutine waits on by way of the
// runtime's poller. A goroutine in epoll_wait would hold one of the scheduler's
// Ps; sysmon, which retakes it when other goroutines need one, then wakes up
// every 20 µs, and takes a quarter of a CPU from a consumer that polls on it.
type poller struct {
	epoll, wakeFD int
	file          *os.File // owns epoll
	conn          syscall.RawConn
	events        [16]unix.EpollEvent
	consume       func(uintptr) bool
}

// newPoller returns an epoll set with an eventfd that interrupts wait.
func newPoller() (*poller, error) {
	w := &poller{wakeFD: -1}
	w.consume = func(uintptr) bool { return w.drain() }
	var err error
	if w.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	err = unix.SetNonblock(w.epoll, true) // the runtime's poller requires it
	w.file = os.NewFile(uintptr(w.epoll), "epoll")
	if err == nil {
		w.conn, err = w.file.SyscallConn()
	}
	if err == nil {
		w.wakeFD, err = eventfd.New()
	}
	if err == nil {
		err = watch(w.epoll, w.wakeFD)
	}
	if err != nil {
		w.close()
		return nil, fmt.Errorf("prepare epoll: %w", err)
	}
	return w, nil
}

func (w *poller) close() {
	_ = w.file.Close()
	_ = eventfd.Close(w.wakeFD)
}

// interrupt ends the current wait, or the next one.
func (w *poller) interrupt() { eventfd.Ring(w.wakeFD) }

// maxWait bounds a wait; the goroutine then waits again.
const maxWait = time.Hour

// wait waits for an event, for d at most. It returns false if the poller is not
// usable.
func (w *poller) wait(d time.Duration) bool {
	if d <= 0 {
		w.drain()
		return true
	}
	err := w.file.SetReadDeadline(time.Now().Add(min(d, maxWait)))
	if err == nil {
		err = w.conn.Read(w.consume)
	}
	return err == nil || errors.Is(err, os.ErrDeadlineExceeded)
}

// drain drains the ready events, and reports whether there were any.
func (w *poller) drain() bool {
	n, err := unix.EpollWait(w.epoll, w.events[:], 0)
	for i := range max(n, 0) {
		if int(w.events[i].Fd) == w.wakeFD {
			eventfd.Drain(w.wakeFD)
		}
	}
	return n > 0 || errors.Is(err, unix.EINTR)
}
