package nbd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	mdsocket "github.com/mdlayher/socket"
	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"
)

// VsockAddr is an address of AF_VSOCK, vsock(7), by which virtual machines and
// their hosts talk.
type VsockAddr struct {
	CID  uint32 // 1 is this machine, 2 its host
	Port uint32
}

// VsockAny listens at every CID that the machine has.
const VsockAny = unix.VMADDR_CID_ANY

// Network implements [net.Addr].
func (VsockAddr) Network() string { return "vsock" }

// String implements [net.Addr]: CID:PORT.
func (a VsockAddr) String() string {
	return strconv.FormatUint(uint64(a.CID), 10) + ":" + strconv.FormatUint(uint64(a.Port), 10)
}

// parseVsock reads CID:PORT.
func parseVsock(address string) (a VsockAddr, err error) {
	cid, port, _ := strings.Cut(address, ":")
	c, err := strconv.ParseUint(cid, 10, 32)
	p, portErr := strconv.ParseUint(port, 10, 32)
	if err = errors.Join(err, portErr); err != nil {
		return a, fmt.Errorf("vsock address %q is not CID:PORT", address)
	}
	return VsockAddr{uint32(c), uint32(p)}, nil
}

// addrOf returns the address that the library names.
func addrOf(a net.Addr) VsockAddr {
	if vm, ok := a.(*vsock.Addr); ok {
		return VsockAddr{vm.ContextID, vm.Port}
	}
	return VsockAddr{}
}

// vsockListener gives connections and addresses of ours.
type vsockListener struct{ *vsock.Listener }

// listenVsock listens at an address. Port 0 lets the kernel choose.
func listenVsock(address string) (net.Listener, error) {
	a, err := parseVsock(address)
	if err != nil {
		return nil, err
	}
	l, err := vsock.ListenContextID(a.CID, a.Port, nil)
	if err != nil {
		return nil, vsockError("listen", a, err)
	}
	return &vsockListener{l}, nil
}

// adoptVsockListener returns a listener with a descriptor of its own for a
// socket that listens.
func adoptVsockListener(file *os.File) (net.Listener, error) {
	l, err := vsock.FileListener(file)
	if err != nil {
		return nil, err
	}
	return &vsockListener{l}, nil
}

// Addr implements [net.Listener].
func (l *vsockListener) Addr() net.Addr { return addrOf(l.Listener.Addr()) }

// Accept implements [net.Listener].
func (l *vsockListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if errors.Is(err, unix.ECONNABORTED) {
			continue // the peer has gone again
		}
		if err != nil {
			return nil, vsockError("accept", addrOf(l.Listener.Addr()), err)
		}
		return newVsockConn(c.(*vsock.Conn), addrOf(c.RemoteAddr()))
	}
}

// vsockStream is what the library's connections have. The data path takes the
// descriptor from SyscallConn.
type vsockStream interface {
	io.ReadWriteCloser
	SetDeadline(time.Time) error
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
	SyscallConn() (syscall.RawConn, error)
}

// vsockConn is a connection.
type vsockConn struct {
	vsockStream
	local, remote VsockAddr
}

// newVsockConn returns a connection, and takes the stream. It asks the kernel
// for the local address: the library has that of the listener, which may stand
// for every CID.
func newVsockConn(s vsockStream, remote VsockAddr) (net.Conn, error) {
	c := &vsockConn{vsockStream: s, remote: remote}
	raw, err := s.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { c.local = vsockOf(unix.Getsockname(int(fd))) })
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return c, nil
}

// vsockOf returns the address that the kernel names.
func vsockOf(sa unix.Sockaddr, err error) VsockAddr {
	if vm, ok := sa.(*unix.SockaddrVM); ok && err == nil {
		return VsockAddr{vm.CID, vm.Port}
	}
	return VsockAddr{}
}

// adoptVsockConn returns a connection with a descriptor of its own for a
// connected socket. Package vsock has no function for that, the one below it
// has.
func adoptVsockConn(file *os.File, remote VsockAddr) (net.Conn, error) {
	s, err := mdsocket.FileConn(file, "vsock")
	if err != nil {
		return nil, err
	}
	return newVsockConn(s, remote)
}

// LocalAddr implements [net.Conn].
func (c *vsockConn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements [net.Conn].
func (c *vsockConn) RemoteAddr() net.Addr { return c.remote }

// Dial connects to a "tcp", "unix" or "vsock" address, until ctx ends.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if network != "vsock" {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	a, err := parseVsock(address)
	if err != nil {
		return nil, err
	}
	c, err := vsock.DialContext(ctx, a.CID, a.Port, nil)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, vsockError("dial", a, err)
	}
	return newVsockConn(c, a)
}

// vsockError returns the error of the library with our form of the address, and
// with what to do if the kernel has no vsock. A listener that is closed is
// [net.ErrClosed]: the library says EBADF.
func vsockError(op string, a VsockAddr, err error) error {
	if e, ok := err.(*net.OpError); ok {
		err = e.Err
	}
	switch {
	case errors.Is(err, unix.EBADF):
		err = net.ErrClosed
	case errors.Is(err, unix.EAFNOSUPPORT):
		err = fmt.Errorf("this kernel has no vsock, load its module vsock: %w", err)
	}
	return &net.OpError{Op: op, Net: "vsock", Addr: a, Err: err}
}
