package nbd

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/loop"
)

const (
	// hangUpGrace is how long a client may take none of the last replies, or
	// keep a connection over AF_VSOCK after DISC.
	hangUpGrace = 2 * time.Second

	// hangUpPoll is how often hangUp asks whether it did.
	hangUpPoll = 5 * time.Millisecond

	// hangUpReceives bounds how often a visit receives what is not read.
	hangUpReceives = 16
)

// hangUp is the end of a connection whose client is still there.
type hangUp struct {
	least     int       // of what was sent, the client did not have so many bytes
	since     time.Time // that was seen
	peerFirst bool      // the client has to close the connection first
}

// beginHangUp tells the client that no reply follows.
func (t *transmission) beginHangUp() {
	t.secure.closeNotify()
	_ = unix.Shutdown(int(t.sock), unix.SHUT_WR) // fails if the client is gone
	t.hangingUp = &hangUp{least: t.sock.unsent(), since: time.Now(), peerFirst: t.sock.closesLast()}
}

// hangUp waits until the client has the last replies, or takes none: over TCP,
// to close a socket in which requests wait unread discards the replies that are
// not acknowledged.
func (t *transmission) hangUp() (loop.Next, error) {
	h := t.hangingUp
	next := loop.Next{Again: true}
	for range hangUpReceives {
		n, err := t.sock.receive(t.in.buffer)
		if err == unix.EAGAIN {
			next = loop.Next{Wait: hangUpPoll, Files: []*loop.File{&t.wakers.client, &t.wakers.bell}}
			break
		}
		if n == 0 { // the client is gone
			return loop.Next{Done: true}, t.in.end
		}
	}
	if now := t.sock.unsent(); now < h.least {
		h.least, h.since = now, time.Now()
	}
	if h.least == 0 && !h.peerFirst || time.Since(h.since) >= hangUpGrace || t.conn.stopped.Load() {
		return loop.Next{Done: true}, t.in.end
	}
	return next, nil
}

// closesLast reports whether the client has to close the connection first. Over
// AF_VSOCK, if the server does, a client that then shuts its direction down, as
// libnbd does after DISC, reads ENOTCONN, not the end of the stream:
// shutdown(2) forgets that the peer has closed (vsock_shutdown of Linux, which
// clears SOCK_DONE).
func (s socket) closesLast() bool {
	domain, err := unix.GetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_DOMAIN)
	return err == nil && domain == unix.AF_VSOCK
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
