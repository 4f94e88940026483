package nbd

import (
	"cmp"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/access"
)

// deviceClient returns who the client is, for devices that tell clients apart:
// an identity, or else where it comes from. All connections of a host are one
// client's; over a UNIX socket those of a process are, if its user has the
// rights of this process, and else those of the user.
func deviceClient(c net.Conn, i access.Identity) string {
	switch a := c.RemoteAddr().(type) {
	case *net.TCPAddr:
		return cmp.Or(i.Key(), "address "+a.AddrPort().Addr().Unmap().String())
	case VsockAddr:
		return cmp.Or(i.Key(), fmt.Sprintf("machine %d", a.CID))
	case *net.UnixAddr:
		if p, err := peerOf(c); err == nil && !i.Certified() && trusted(p.Uid) {
			return fmt.Sprintf("process %d of user %d", p.Pid, p.Uid)
		}
	}
	return cmp.Or(i.Key(), c.RemoteAddr().Network())
}

// ListenerPID returns the process that listens at the UNIX socket to which c is
// a connection, 0 if that is not known.
func ListenerPID(c net.Conn) int {
	peer, err := peerOf(c)
	if err != nil {
		return 0
	}
	return int(peer.Pid)
}

// PeerUID returns the user at the other end of a UNIX socket.
func PeerUID(c net.Conn) (uid uint32, ok bool) {
	peer, err := peerOf(c)
	if err != nil {
		return 0, false
	}
	return peer.Uid, true
}

// peerOf returns the process that connected a UNIX socket.
func peerOf(c net.Conn) (peer *unix.Ucred, err error) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("connection of type %T is no socket", c)
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, err
	}
	control := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if control != nil {
		return nil, control
	}
	return peer, err
}
