package nbd

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/block"
)

// A connection whose client is idle is parked: it has no thread, no buffers and no
// slots, and its goroutine waits in the runtime's poller, as thousands of others may.
// A connection begins like that, and comes back to it when it had nothing to do for
// a while:
//
//	park ─▶ readable, drained or stopped ─▶ loop on a thread of its own ─▶ idle ─▶ park
//
// While the loop runs the poller does not know the socket: it would wake a thread of
// the runtime for every request. So what the poller watches is a descriptor of its
// own, made to park and closed to wake. A client in transmission is never lost for
// want of a descriptor: without one it stays awake, and to wake it needs none.

// How long a client is idle before it is parked: as briefly as firstRest if it comes
// once in a while, so that many such clients never have many threads at a time, and
// twice as long, up to longestRest, with each time that it comes back within that.
const (
	firstRest   = 2 * time.Millisecond
	longestRest = time.Second
)

// watched is a socket that the runtime's poller knows.
type watched interface {
	syscall.Conn
	SetReadDeadline(time.Time) error
	Close() error
}

// serve serves the client until the connection ends.
func (t *transmission) serve() error {
	defer t.release()
	awake := t.secure != nil // crypto/tls may have read the first requests already
	for ; ; awake = false {
		if !awake {
			if err := t.park(); err != nil {
				return err
			}
		}
		t.conn.unwatch() // what was not parked was watched in the handshake
		if err := t.conn.onThread(t.run); !errors.Is(err, errIdle) {
			return err
		}
	}
}

// threads are those of loops, in all servers of the process.
var threads atomic.Int32

// keptThreads is how many threads stay for the next loops when theirs has ended: the
// runtime never ends one that is idle, and each costs some 50 KiB.
const keptThreads = 16

// onThread runs f on a thread of its own: the queue of a device is driven, and the
// socket waited for, without the Go scheduler in between.
func (c *conn) onThread(f func() error) error {
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		threads.Add(1)
		ended <- func() (err error) {
			defer c.recover(&err)
			return f()
		}()
		if threads.Add(-1) < keptThreads {
			runtime.UnlockOSThread() // else the thread ends with the goroutine
		}
	}()
	return <-ended
}

// park waits until there is something to do, if it can.
func (t *transmission) park() error {
	if t.shedder != nil {
		t.shedder.Shed()
	}
	if wait, ok := t.queue.Arm(); !ok || wait >= 0 {
		t.shedder = nil // it takes longer
		return nil      // or is a remote device, which keeps its connection alive
	}
	raw := t.conn.watch(t.sock)
	if raw == nil {
		return nil
	}
	t.shed()
	t.counts[countParks]++
	t.conn.published.store(&t.counts)
	parked := time.Now()
	err := raw.Read(func(uintptr) bool { return t.sock.readable() })
	if errors.Is(err, os.ErrDeadlineExceeded) { // by interrupt
		err = nil
	}
	if time.Since(parked) < longestRest {
		t.patient = min(2*t.patient, longestRest)
	} else {
		t.patient = firstRest
	}
	return err
}

// watch has the runtime's poller know the socket, until unwatch. It returns nil if
// that cannot be, or if the connection is to look at what the server wants.
func (c *conn) watch(sock socket) syscall.RawConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.parked == nil { // else it is that of the handshake
		c.parked = sock.watched()
	}
	if c.parked == nil {
		return nil
	}
	raw, err := c.parked.SyscallConn()
	if err == nil {
		err = c.parked.SetReadDeadline(time.Time{})
	}
	// Who sets one of these interrupts afterwards, and finds c.parked.
	if err != nil || c.stopped.Load() || c.server.draining.Load() {
		c.unwatchLocked()
		return nil
	}
	return raw
}

// unwatch undoes watch.
func (c *conn) unwatch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unwatchLocked()
}

func (c *conn) unwatchLocked() {
	if c.parked != nil {
		c.parked.Close()
		c.parked = nil
	}
}

// watched returns a descriptor for the socket that the runtime's poller knows, or
// nil if there is none to have.
func (s socket) watched() watched {
	fd, err := unix.FcntlInt(uintptr(s), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), "client")
	if f.SetReadDeadline(time.Time{}) != nil { // the poller does not take it
		f.Close()
		return nil
	}
	return f
}

// shed gives back what a client needs that is not idle.
func (t *transmission) shed() {
	t.slots.shed()
	t.in.shed()
	t.out.shed()
	t.statuses = statuses{}
	if t.finished != nil {
		clear(t.finished[:])
		finishedLists.Put(t.finished)
		t.finished = nil
	}
	t.secure.shed()
}

// finishedLists are the lists for Reap that no connection has now, cleared.
var finishedLists = sync.Pool{New: func() any { return new([64]*block.Request) }}

// wake gets what every client needs that is not idle.
func (t *transmission) wake() {
	t.rested = 0
	t.in.dry = false
	if t.in.buffer == nil {
		t.in.widen()
	}
	if t.finished == nil {
		t.finished = finishedLists.Get().(*[64]*block.Request)
	}
}

// idling reports whether the client has begun nothing that is not ended.
func (t *transmission) idling() bool {
	return t.underWay == 0 && t.in.phase == awaitHeader && t.in.w == t.in.r && !t.sending()
}

// rest adds to the time that the client has been idle, if a sleep passed without
// anything to do.
func (t *transmission) rest(slept time.Duration, passed bool) {
	if passed {
		t.rested += slept
	} else {
		t.rested = 0
	}
}

// readable reports whether something has arrived, or the client is gone.
func (s socket) readable() bool {
	fds := [...]unix.PollFd{{Fd: int32(s), Events: unix.POLLIN}}
	sleep(fds[:], 0)
	return fds[0].Revents != 0
}
