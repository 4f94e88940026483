package nbd

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/loop"
)

// A connection whose client is idle is parked: it has no loop, no buffers and
// no entries, and its goroutine waits in the runtime's poller, as thousands of
// others may. A connection begins like that, and comes back to it when it had
// nothing to do for a while:
//
//	park ─▶ readable, drained or stopped ─▶ driven by a loop ─▶ idle ─▶ park
//
// While a loop drives it the poller does not know the socket: it would wake a
// thread of the runtime for every request. So what the poller watches is a
// descriptor of its own, made to park and closed to wake. A client in
// transmission is never lost for want of a descriptor: without one it stays
// awake, and to wake it needs none.

// How long a client is idle before it is parked: as briefly as minParkDelay if
// it comes once in a while, so that many such clients never have many buffers
// at a time, and twice as long, up to maxParkDelay, with each time that it
// comes back within that.
const (
	minParkDelay = 2 * time.Millisecond
	maxParkDelay = time.Second
)

// polledSocket is a socket that the runtime's poller knows.
type polledSocket interface {
	syscall.Conn
	SetReadDeadline(time.Time) error
	Close() error
}

// serve serves the client until the connection ends.
func (t *transmission) serve() error {
	defer t.releaseAll()
	awake := t.secure != nil // crypto/tls may have read the first requests already
	for ; ; awake = false {
		if !awake {
			if err := t.park(); err != nil {
				return err
			}
		}
		t.conn.unwatch() // what was not parked was watched in the handshake
		t.acquireBuffers()
		if err := loop.Drive(t); err != nil {
			return err
		}
		if !errors.Is(t.outcome, errIdle) {
			return t.outcome
		}
		t.outcome = nil
	}
}

// park waits until there is something to do, if it can.
func (t *transmission) park() error {
	if t.idleReleaser != nil {
		t.idleReleaser.ReleaseIdle()
	}
	if wait, ok := t.queue.Arm(); !ok || wait >= 0 {
		t.idleReleaser = nil // it takes longer
		return nil           // or is a remote device, which keeps its connection alive
	}
	raw := t.conn.watch(t.sock)
	if raw == nil {
		return nil
	}
	t.releaseIdle()
	t.counts[countIdleReleases]++
	t.publish()
	parked := time.Now()
	err := raw.Read(func(uintptr) bool { return t.sock.readable() })
	if errors.Is(err, os.ErrDeadlineExceeded) { // by interrupt
		err = nil
	}
	if time.Since(parked) < maxParkDelay {
		t.parkDelay = min(2*t.parkDelay, maxParkDelay)
	} else {
		t.parkDelay = minParkDelay
	}
	return err
}

// watch has the runtime's poller know the socket, until unwatch. It returns nil
// if that cannot be, or if the connection is to look at what the server wants.
func (c *conn) watch(sock socket) syscall.RawConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.parked == nil { // else it is that of the handshake
		c.parked = sock.pollable()
	}
	if c.parked == nil {
		return nil
	}
	raw, err := c.parked.SyscallConn()
	if err == nil {
		err = c.parked.SetReadDeadline(time.Time{})
	}
	// A goroutine that sets one of these interrupts afterwards, and finds
	// c.parked.
	if err != nil || c.stopped.Load() || c.draining() {
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

// pollable returns a descriptor for the socket that the runtime's poller knows,
// or nil if there is none to have.
func (s socket) pollable() polledSocket {
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

// releaseIdle gives back what a client needs that is not idle.
func (t *transmission) releaseIdle() {
	t.clearAge()
	t.requests.releaseIdle()
	t.in.releaseBuffer()
	t.out.reset()
	t.statuses = statusPool{}
	if t.finished != nil {
		clear(t.finished[:])
		finishedLists.Put(t.finished)
		t.finished = nil
	}
	t.secure.releaseBuffers()
	t.timing.stop()
}

// finishedLists are the lists for Reap that no connection has now, cleared.
var finishedLists = sync.Pool{New: func() any { return new([64]*block.Request) }}

// acquireBuffers gets what every client needs that is not idle.
func (t *transmission) acquireBuffers() {
	t.idleTime = 0
	t.in.wouldBlock = false
	if t.in.buffer == nil {
		t.in.widen()
	}
	if t.finished == nil {
		t.finished = finishedLists.Get().(*[64]*block.Request)
	}
	t.timing.start(t.sinceEpoch)
}

// quiescent reports whether the client has begun nothing that is not ended.
func (t *transmission) quiescent() bool {
	return t.inQueue == 0 && t.in.phase == awaitHeader && t.in.w == t.in.r && !t.sending()
}

// addIdleTime adds to the time that the client has been idle, if a sleep passed
// without anything to do.
func (t *transmission) addIdleTime(slept time.Duration, passed bool) {
	if passed {
		t.idleTime += slept
	} else {
		t.idleTime = 0
	}
}

// readable reports whether something has arrived, or the client is gone.
func (s socket) readable() bool {
	fds := [...]unix.PollFd{{Fd: int32(s), Events: unix.POLLIN}}
	ppoll(fds[:], 0)
	return fds[0].Revents != 0
}
