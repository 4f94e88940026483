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

func (a VsockAddr) sockaddr() unix.Sockaddr { return &unix.SockaddrVM{CID: a.CID, Port: a.Port} }

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

// vsockOf returns the address that the kernel names.
func vsockOf(sa unix.Sockaddr, err error) VsockAddr {
	if vm, ok := sa.(*unix.SockaddrVM); ok && err == nil {
		return VsockAddr{vm.CID, vm.Port}
	}
	return VsockAddr{}
}

// newVsock opens a socket.
func newVsock() (int, error) {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return -1, fmt.Errorf("this kernel has no vsock, load its module vsock: %w", err)
	}
	return fd, os.NewSyscallError("socket", err)
}

// vsockListener accepts connections by the runtime's poller.
type vsockListener struct {
	file *os.File
	raw  syscall.RawConn
	addr VsockAddr
}

// listenVsock listens at an address. Port 0 lets the kernel choose.
func listenVsock(address string) (net.Listener, error) {
	a, err := parseVsock(address)
	if err != nil {
		return nil, err
	}
	if a.Port == 0 {
		a.Port = unix.VMADDR_PORT_ANY
	}
	fd, err := newVsock()
	if err != nil {
		return nil, fmt.Errorf("listen on vsock %v: %w", a, err)
	}
	err = os.NewSyscallError("bind", unix.Bind(fd, a.sockaddr()))
	if err == nil {
		err = os.NewSyscallError("listen", unix.Listen(fd, unix.SOMAXCONN))
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("listen on vsock %v: %w", a, err)
	}
	return takeVsockListener(fd)
}

// takeVsockListener returns the listener of a socket that listens, and takes it.
func takeVsockListener(fd int) (net.Listener, error) {
	file, err := pollable(fd)
	if err != nil {
		return nil, err
	}
	l := &vsockListener{file: file, addr: vsockOf(unix.Getsockname(fd))}
	if l.raw, err = file.SyscallConn(); err != nil {
		file.Close()
		return nil, err
	}
	return l, nil
}

// pollable gives a socket to the runtime's poller.
func pollable(fd int) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("set O_NONBLOCK", err)
	}
	return os.NewFile(uintptr(fd), "vsock"), nil
}

// Addr implements [net.Listener].
func (l *vsockListener) Addr() net.Addr { return l.addr }

// Close implements [net.Listener].
func (l *vsockListener) Close() error { return l.file.Close() }

// Accept implements [net.Listener].
func (l *vsockListener) Accept() (net.Conn, error) {
	fd, err := -1, error(nil)
	var peer unix.Sockaddr
	wait := l.raw.Read(func(listener uintptr) bool {
		for {
			fd, peer, err = unix.Accept4(int(listener), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			if err != unix.EINTR && err != unix.ECONNABORTED {
				return err != unix.EAGAIN
			}
		}
	})
	switch {
	case wait != nil: // closed: nothing else ends the wait
		return nil, &net.OpError{Op: "accept", Net: "vsock", Addr: l.addr, Err: net.ErrClosed}
	case err != nil:
		return nil, &net.OpError{Op: "accept", Net: "vsock", Addr: l.addr, Err: os.NewSyscallError("accept4", err)}
	}
	return takeVsockConn(fd, vsockOf(peer, nil))
}

// vsockFile is what a connection has of an [os.File], which could do more.
type vsockFile interface {
	io.ReadWriteCloser
	SetDeadline(time.Time) error
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
	SyscallConn() (syscall.RawConn, error)
}

// vsockConn is a connection.
type vsockConn struct {
	vsockFile
	local, remote VsockAddr
}

// takeVsockConn returns the connection of a connected socket, and takes it.
func takeVsockConn(fd int, remote VsockAddr) (net.Conn, error) {
	file, err := pollable(fd)
	if err != nil {
		return nil, err
	}
	return &vsockConn{file, vsockOf(unix.Getsockname(fd)), remote}, nil
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
	c, err := dialVsock(ctx, a)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "vsock", Addr: a, Err: err}
	}
	return c, nil
}

func dialVsock(ctx context.Context, a VsockAddr) (net.Conn, error) {
	fd, err := newVsock()
	if err != nil {
		return nil, err
	}
	file, err := pollable(fd)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { file.SetWriteDeadline(time.Unix(1, 0)) })
	err = connectVsock(file, a)
	if !stop() { // the deadline is set, or will be: the connection is of no use
		err = errors.Join(err, context.Cause(ctx))
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return &vsockConn{file, vsockOf(unix.Getsockname(fd)), a}, nil
}

// connectVsock connects a socket and waits for the answer.
func connectVsock(file *os.File, a VsockAddr) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	started := false
	var result error
	wait := raw.Write(func(fd uintptr) bool {
		if !started {
			started = true
			result = unix.Connect(int(fd), a.sockaddr())
			return result != unix.EINPROGRESS
		}
		// Being woken means little: what was the matter before the call may wake too.
		if e, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); err != nil || e != 0 {
			result = err
			if e != 0 {
				result = syscall.Errno(e)
			}
			return true
		}
		_, result = unix.Getpeername(int(fd))
		return result != unix.ENOTCONN
	})
	if wait != nil {
		return wait
	}
	return os.NewSyscallError("connect", result)
}
