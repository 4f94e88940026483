package nbd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The variables of systemd's socket activation, sd_listen_fds(3), and the first
// descriptor that they speak of.
const (
	variablePID    = "LISTEN_PID"
	variableCount  = "LISTEN_FDS"
	variableNames  = "LISTEN_FDNAMES"
	firstInherited = 3
)

// maximumInherited bounds the sockets that a process is started with.
const maximumInherited = 1024

// Inherited returns the listeners that the process was started with, as systemd
// and libnbd start servers, and the name of each, "unknown" where none was
// given. There are none if the variables are not set or speak to another
// process. The caller closes the listeners; the sockets' files stay whose they
// were.
//
// It takes the descriptors and unsets the variables, so that the process's
// children know nothing of them, also if it fails: it is called once, before
// the process starts others.
func Inherited() (listeners []net.Listener, names []string, err error) {
	names, err = activationNames(os.Getenv, os.Getpid())
	for _, v := range []string{variablePID, variableCount, variableNames} {
		err = errors.Join(err, os.Unsetenv(v))
	}
	if err != nil {
		return nil, nil, err
	}
	for i, name := range names {
		l, err := adopt(firstInherited + i)
		if err != nil {
			for _, l := range listeners {
				l.Close()
			}
			return nil, nil, fmt.Errorf("inherited descriptor %d (%s): %w", firstInherited+i, name, err)
		}
		listeners = append(listeners, l)
	}
	return listeners, names, nil
}

// activationNames returns the names of the descriptors that the environment
// promises to the process pid.
func activationNames(getenv func(string) string, pid int) ([]string, error) {
	owner, count := getenv(variablePID), getenv(variableCount)
	if owner == "" || count == "" {
		return nil, nil
	}
	if n, err := strconv.Atoi(owner); err != nil || n < 1 {
		return nil, fmt.Errorf("%s=%q is no process", variablePID, owner)
	} else if n != pid {
		return nil, nil
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > maximumInherited {
		return nil, fmt.Errorf("%s=%q is not in 0…%d", variableCount, count, maximumInherited)
	}
	names := make([]string, n)
	for i := range names {
		names[i] = "unknown" // systemd's word for it
	}
	list := getenv(variableNames)
	if list == "" {
		return names, nil
	}
	given := strings.Split(list, ":")
	if len(given) != n {
		return nil, fmt.Errorf("%s has %d names for %d descriptors", variableNames, len(given), n)
	}
	for i, name := range given {
		if name != "" {
			names[i] = name
		}
	}
	return names, nil
}

// adopt takes a descriptor that has to be a listening stream socket.
func adopt(fd int) (net.Listener, error) {
	unix.CloseOnExec(fd)
	file := os.NewFile(uintptr(fd), "inherited socket")
	if file == nil {
		return nil, unix.EBADF
	}
	defer file.Close() // the listener has a descriptor of its own
	if err := streamSocket(fd, true); err != nil {
		return nil, err
	}
	var l net.Listener
	var err error
	if isVsock(fd) {
		l, err = adoptVsockListener(file)
	} else {
		l, err = net.FileListener(file)
	}
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}

// streamSocket reports why a descriptor is not a stream socket that listens, or
// one that is connected.
func streamSocket(fd int, listens bool) error {
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	switch {
	case errors.Is(err, unix.ENOTSOCK):
		return errors.New("it is no socket, and a stream socket is needed")
	case err != nil:
		return os.NewSyscallError("getsockopt", err)
	case kind != unix.SOCK_STREAM:
		return errors.New("it is not a stream socket")
	}
	accepts, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	switch {
	case err != nil:
		return os.NewSyscallError("getsockopt", err)
	case listens && accepts == 0:
		return errors.New("the socket does not listen")
	case !listens && accepts != 0:
		return errors.New("the socket listens, and a connection is needed")
	}
	return nil
}

// InheritedConn returns the connection that is a descriptor of the process,
// such as its standard input. It has a descriptor of its own; fd stays open.
func InheritedConn(fd int) (net.Conn, error) {
	if err := streamSocket(fd, false); err != nil {
		return nil, err
	}
	copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("take connection: %w", os.NewSyscallError("fcntl", err))
	}
	file := os.NewFile(uintptr(copied), "inherited connection")
	defer file.Close()
	var c net.Conn
	if isVsock(fd) {
		c, err = adoptVsockConn(file, vsockOf(unix.Getpeername(fd)))
	} else {
		c, err = net.FileConn(file)
	}
	if err != nil {
		return nil, fmt.Errorf("take connection: %w", err)
	}
	return c, nil
}

// isVsock reports whether a socket is one that package net does not know.
func isVsock(fd int) bool {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	return err == nil && domain == unix.AF_VSOCK
}
