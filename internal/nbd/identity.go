package nbd

import (
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// identity returns who the client is, for devices that tell clients apart: the
// first name in its certificate, or else where it comes from. All connections of
// a host, or over a UNIX socket of a process, are one client's.
func identity(c net.Conn, s *secure) string {
	for _, name := range s.names() {
		if name != "" {
			return "certificate " + name
		}
	}
	switch a := c.RemoteAddr().(type) {
	case *net.TCPAddr:
		return "address " + a.AddrPort().Addr().Unmap().String()
	case VsockAddr:
		return fmt.Sprintf("machine %d", a.CID)
	case *net.UnixAddr:
		if p, err := peerOf(c); err == nil {
			return fmt.Sprintf("process %d of user %d", p.Pid, p.Uid)
		}
	}
	return c.RemoteAddr().Network()
}

// ListenerPID returns the process that listens at the UNIX socket to which c is a
// connection, 0 if that is not known.
func ListenerPID(c net.Conn) int {
	peer, err := peerOf(c)
	if err != nil {
		return 0
	}
	return int(peer.Pid)
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
