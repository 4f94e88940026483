package shm

import (
	"fmt"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

// lingeringLink remains of a closed link whose peer did not leave a region in
// time: a stopped process may resume its copy when it continues. Deregister of
// the region fails until the peer leaves it or dies.
type lingeringLink struct {
	peer *segment
	conn *net.UnixConn
}

// maxLingering bounds the links that stopped and hostile peers leave behind:
// with so many there is no further one.
const maxLingering = 64

// stillAccessedLocked returns an error if the peer of a lingering link is
// inside the region.
//
// +checklocks:a.mu
func (a *adapter) stillAccessedLocked(m *via.Memory) error {
	if !a.lingersLocked(m) {
		return nil
	}
	return fmt.Errorf("region %#x: %w", m.Handle(), via.ErrStillAccessed)
}

// lingersLocked reports whether the peer of a lingering link is inside the
// region.
//
// +checklocks:a.mu
func (a *adapter) lingersLocked(m *via.Memory) bool {
	a.sweepLocked()
	for _, g := range a.lingering {
		if g.hazard() == hazardOf(m.Handle()) {
			return true
		}
	}
	return false
}

// sweepLocked closes the lingering links whose peers have left or are dead.
//
// +checklocks:a.mu
func (a *adapter) sweepLocked() {
	a.lingering = slices.DeleteFunc(a.lingering, func(g *lingeringLink) bool {
		if g.hazard() != 0 && !g.dead() {
			return false
		}
		g.close()
		return true
	})
}

// hazard returns the region that the peer is inside, or 0.
func (g *lingeringLink) hazard() uint64 { return loadWord(g.peer.mem, offHazard) }

// dead reports whether the peer closed the connection or died.
func (g *lingeringLink) dead() bool {
	raw, err := g.conn.SyscallConn()
	if err != nil {
		return true
	}
	dead := false
	if err := raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds, 0)
		for err == unix.EINTR {
			n, err = unix.Poll(fds, 0)
		}
		dead = err == nil && n > 0
	}); err != nil {
		return true
	}
	return dead
}

func (g *lingeringLink) close() {
	_ = g.conn.Close()
	g.peer.close()
}
