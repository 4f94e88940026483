package nbd

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseVsock(t *testing.T) {
	for in, want := range map[string]VsockAddr{
		"2:10809": {2, 10809}, "4294967295:0": {VsockAny, 0}, "1:4294967295": {1, 1<<32 - 1},
	} {
		a, err := parseVsock(in)
		if err != nil || a != want || a.String() != in || a.Network() != "vsock" {
			t.Errorf("%s: %v, %v", in, a, err)
		}
	}
	for _, in := range []string{"", "2", "2:", ":1", "-1:1", "4294967296:1", "1:4294967296", "a:1", "1:2:3"} {
		if a, err := parseVsock(in); err == nil {
			t.Errorf("%q is %v", in, a)
		}
	}
}

// hasVsock reports whether this kernel has AF_VSOCK. Without it, the error says
// what to do.
func hasVsock(t *testing.T) bool {
	t.Helper()
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
		return true
	}
	if !errors.Is(err, unix.EAFNOSUPPORT) {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"listen": func() error { _, err := Listen(t.Context(), "vsock", "4294967295:0"); return err }(),
		"dial":   func() error { _, err := Dial(t.Context(), "vsock", "1:1"); return err }(),
	} {
		if !errors.Is(err, unix.EAFNOSUPPORT) || !strings.Contains(err.Error(), "load its module vsock") {
			t.Errorf("%s: %v", what, err)
		}
	}
	return false
}

// A listener has its address, refuses to share it, and its end wakes who
// accepts.
func TestVsockListener(t *testing.T) {
	if !hasVsock(t) {
		return
	}
	l, err := Listen(t.Context(), "vsock", "4294967295:0")
	if err != nil {
		t.Fatal(err)
	}
	a, ok := l.Addr().(VsockAddr)
	if !ok || a.CID != VsockAny || a.Port == 0 {
		t.Errorf("it listens at %v", l.Addr())
	}
	if second, err := Listen(t.Context(), "vsock", a.String()); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a second one: %v, %v", second, err)
	}
	accepted := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		accepted <- err
	}()
	l.Close()
	select {
	case err := <-accepted:
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("the end of Accept is %v", err)
		}
	case <-time.After(testTimeout):
		t.Error("Accept does not end")
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// A server serves it like any other, and one that was inherited too.
func TestServeVsockListener(t *testing.T) {
	if !hasVsock(t) {
		return
	}
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: unix.VMADDR_PORT_ANY}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 1); err != nil {
		t.Fatal(err)
	}
	address := vsockOf(unix.Getsockname(fd))
	inherited, err := adopt(fd)
	if err != nil {
		t.Fatal(err)
	}
	if inherited.Addr() != address {
		t.Errorf("it listens at %v, not at %v", inherited.Addr(), address)
	}
	s := &Server{Exports: mustExports(t, Export{Name: "disk", Device: newMemory(1 << 20)})}
	served := make(chan error, 1)
	go func() { served <- s.Serve(t.Context(), inherited) }()
	if err := s.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil && !errors.Is(err, errDraining) {
		t.Error(err)
	}
}

// A dial without answer ends with the context and leaks no descriptor.
func TestDialVsockEnds(t *testing.T) {
	if !hasVsock(t) {
		return
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	c, err := Dial(ctx, "vsock", "1:9")
	var op *net.OpError
	if err == nil {
		c.Close()
	}
	if !errors.Is(err, cause) || !errors.As(err, &op) || op.Net != "vsock" {
		t.Errorf("got %v", err)
	}
	// The kernel may answer, or give up first: it is an error in any case.
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer stop()
	if c, err := Dial(ctx, "vsock", "1:9"); err == nil {
		t.Errorf("a listener answers at %v", c.RemoteAddr())
		c.Close()
	}
	if _, err := Dial(t.Context(), "vsock", "absent"); err == nil || !strings.Contains(err.Error(), "CID:PORT") {
		t.Errorf("got %v", err)
	}
}
