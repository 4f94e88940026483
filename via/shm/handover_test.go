package shm

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

// socketsOf returns the sockets of a process that got descriptors.
func socketsOf(t *testing.T, fds ...int) *Sockets {
	t.Helper()
	s, err := NewSockets(fds, false)
	check(t, err)
	return s
}

// A requester that dials while a socket moves waits for the process that gets
// it, and is served by that one. Closing the listener removes the socket.
func TestRequesterDuringHandOver(t *testing.T) {
	at := via.Address{Host: filepath.Join(t.TempDir(), "s"), Discriminator: "d"}
	first := socketsOf(t)
	before := newStationOf(t, provider{opts: Options{Sockets: first}, timeouts: testTimeouts})
	l, err := before.nic.Listen(at)
	check(t, err)
	fds, err := first.HandOver()
	check(t, err)
	if len(fds) != 1 {
		t.Fatalf("descriptors %v of one socket", fds)
	}
	requester := newStationOf(t, provider{timeouts: testTimeouts}).newVI()
	connected := make(chan error, 1)
	go func() {
		_, err := requester.Connect(t.Context(), at)
		connected <- err
	}()
	check(t, l.Close()) // the socket stays

	after := newStationOf(t, provider{opts: Options{Sockets: socketsOf(t, fds...)}, timeouts: testTimeouts})
	next, err := after.nic.Listen(at)
	check(t, err)
	hosts, err := after.adapter.DiscoverHosts(t.Context(), 1)
	check(t, err)
	found := 0
	for _, h := range hosts {
		if h.Host == at.Host {
			found++
		}
	}
	if found != 1 {
		t.Errorf("the socket is advertised %d times", found)
	}
	r, err := next.Wait(t.Context())
	check(t, err)
	check(t, r.Accept(t.Context(), after.newVI()))
	check(t, <-connected)
	check(t, next.Close())
	if _, err := os.Lstat(at.Host); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket of a closed listener: %v", err)
	}
}

// A socket that no listener claims stays with Close, for the process that has
// it too, and goes with Forget.
func TestUnclaimedSocket(t *testing.T) {
	for _, forget := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "s")
		mine := descriptorOf(t, path)
		other, err := unix.Dup(mine)
		check(t, err)
		s := socketsOf(t, mine)
		if forget {
			s.Forget()
		}
		s.Close()
		if _, err := os.Lstat(path); (err != nil) != forget {
			t.Errorf("forget %v: %v", forget, err)
		}
		if !forget {
			c, err := net.Dial("unixpacket", path)
			check(t, err)
			check(t, c.Close())
		}
		check(t, unix.Close(other))
	}
}

// The socket of a listener that ends before its process goes on stays for the
// process before, and that of a later one goes.
func TestSharedSocket(t *testing.T) {
	for _, serves := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "s")
		s, err := NewSockets([]int{descriptorOf(t, path)}, true)
		check(t, err)
		station := newStationOf(t, provider{opts: Options{Sockets: s}, timeouts: testTimeouts})
		l, err := station.nic.Listen(via.Address{Host: path, Discriminator: "d"})
		check(t, err)
		if serves {
			s.Forget()
		}
		check(t, l.Close())
		if _, err := os.Lstat(path); (err != nil) != serves {
			t.Errorf("serves %v: %v", serves, err)
		}
	}
}

// A listener gets a new socket at a path from which the given one was removed.
func TestRemovedSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s := socketsOf(t, descriptorOf(t, path))
	check(t, os.Remove(path))
	station := newStationOf(t, provider{opts: Options{Sockets: s}, timeouts: testTimeouts})
	l, err := station.nic.Listen(via.Address{Host: path, Discriminator: "d"})
	check(t, err)
	c, err := net.Dial("unixpacket", path)
	check(t, err)
	check(t, c.Close())
	check(t, l.Close())
}

// A descriptor that is no such socket is refused, and the others are closed.
func TestNoSocket(t *testing.T) {
	good := descriptorOf(t, filepath.Join(t.TempDir(), "s"))
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	if _, err := NewSockets([]int{good, pair[0]}, false); !errors.Is(err, unix.ESOCKTNOSUPPORT) {
		t.Errorf("a stream socket: %v", err)
	}
	check(t, unix.Close(pair[1]))
	for _, fd := range []int{good, pair[0]} {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != unix.EBADF {
			t.Errorf("descriptor %d: %v", fd, err)
		}
	}
}

// descriptorOf returns the descriptor of a listening socket.
func descriptorOf(t *testing.T, path string) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	check(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	check(t, unix.Listen(fd, 1))
	return fd
}
