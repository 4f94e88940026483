package nbd

import (
	"time"

	"golang.org/x/sys/unix"
)

const (
	// hangUpGrace is how long a client may take none of the last replies.
	hangUpGrace = 2 * time.Second

	// hangUpPoll is how often hangUp asks whether it did.
	hangUpPoll = 5 * time.Millisecond
)

// hangUp tells the client that no reply follows, and waits until it has the
// last ones, or takes none: over TCP, to close a socket in which requests wait
// unread discards the replies that are not acknowledged.
func (t *transmission) hangUp() {
	t.secure.closeNotify()
	_ = unix.Shutdown(int(t.sock), unix.SHUT_WR) // fails if the client is gone
	fds := []unix.PollFd{{Fd: int32(t.sock), Events: unix.POLLIN}, {Fd: int32(t.bell), Events: unix.POLLIN}}
	least, since := t.sock.unsent(), time.Now()
	for least > 0 && time.Since(since) < hangUpGrace && !t.conn.stopped.Load() {
		n, err := t.sock.receive(t.in.buffer)
		if err == unix.EAGAIN {
			ppoll(fds, hangUpPoll)
		} else if n == 0 {
			return // the client is gone
		}
		if now := t.sock.unsent(); now < least {
			least, since = now, time.Now()
		}
	}
}

// unsent returns how many bytes of what was sent the client's side of the
// connection does not have yet, 0 if that is not known.
func (s socket) unsent() int {
	n, err := unix.IoctlGetInt(int(s), unix.SIOCOUTQ)
	if err != nil {
		return 0
	}
	return n
}

// hungUp reports whether the client has closed the connection, or shut both
// directions of it down.
func (s socket) hungUp() bool {
	fds := []unix.PollFd{{Fd: int32(s)}}
	ppoll(fds, 0)
	return fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
}
