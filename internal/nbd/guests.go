package nbd

import (
	"context"
	"net"
	"os"
	"slices"

	"github.com/viablk/viablk/internal/access"
)

// guestListener is a UNIX listener that is open to all users of this host for
// some of them.
type guestListener struct {
	net.Listener
	uids []uint32
}

// ListenForGuests listens on a UNIX socket at path for root, the user of this
// process, and guests, who get the exports alone whose rights name them. The
// mode of the socket is 0666; its folder decides who reaches it.
func ListenForGuests(ctx context.Context, path string, uids []uint32) (net.Listener, error) {
	l, err := ListenUnix(ctx, path, 0o666)
	if err != nil {
		return nil, err
	}
	return &guestListener{l, uids}, nil
}

// Accept implements [net.Listener]. It closes connections of other users.
func (l *guestListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		peer, err := peerOf(c)
		if err == nil && (trusted(peer.Uid) || slices.Contains(l.uids, peer.Uid)) {
			return c, nil
		}
		_ = c.Close()
	}
}

// trusted reports whether a user may do what this process may.
func trusted(uid uint32) bool { return uid == 0 || uid == uint32(os.Geteuid()) }

// kernelIdentity returns who the client is as far as the kernel reports it: the
// user at the other end of a UNIX socket. l has accepted it, or is nil.
func kernelIdentity(nc net.Conn, l net.Listener) access.Identity {
	if _, ok := nc.RemoteAddr().(*net.UnixAddr); !ok {
		return access.Identity{}
	}
	peer, err := peerOf(nc)
	if err != nil {
		return access.Identity{}
	}
	i := access.Local(peer.Uid)
	if _, ok := l.(*guestListener); ok && !trusted(peer.Uid) {
		return i.Guest()
	}
	return i
}
