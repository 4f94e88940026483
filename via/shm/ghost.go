package shm

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

// A ghost is what remains of a link whose peer did not leave a region in time: a
// stopped process that may go on with its copy when it is continued. Until it is
// out or dead, the region can not be deregistered cleanly.
type ghost struct {
	peer *segment
	conn *net.UnixConn
}

// maxGhosts bounds what stopped and hostile peers can leave behind.
const maxGhosts = 64

// lingeringLocked returns an error if a ghost is inside the region. It lets go of
// the ghosts that are out or dead.
//
// +checklocks:a.mu
func (a *adapter) lingeringLocked(m *via.Memory) error {
	var err error
	kept := a.ghosts[:0]
	for i, g := range a.ghosts {
		hazard := loadWord(g.peer.mem, offHazard)
		switch {
		case hazard == 0 || g.dead() || len(a.ghosts)-i > maxGhosts:
			g.close()
			continue
		case hazard == hazardOf(m.Handle()):
			err = fmt.Errorf("region %#x: %w", m.Handle(), errStillAccessed)
		}
		kept = append(kept, g)
	}
	clear(a.ghosts[len(kept):])
	a.ghosts = kept
	return err
}

// dead reports whether the peer closed the connection or died.
func (g *ghost) dead() bool {
	raw, err := g.conn.SyscallConn()
	if err != nil {
		return true
	}
	dead := false
	if err := raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds, 0)
		dead = err == nil && n > 0
	}); err != nil {
		return true
	}
	return dead
}

func (g *ghost) close() {
	_ = g.conn.Close()
	g.peer.close()
}
