package main

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// serviceManager is the socket at which a service manager hears of the process.
func serviceManager(t *testing.T) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { manager.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return manager
}

func TestNotify(t *testing.T) {
	manager := serviceManager(t)
	if err := notify(stateReady); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64)
	n, err := manager.Read(b)
	if err != nil || string(b[:n]) != "READY=1" {
		t.Errorf("the service manager got %q, %v", b[:n], err)
	}
	manager.Close()
	if err := notify(stateReady); err == nil {
		t.Error("a service manager that is gone is no error")
	}
	t.Setenv("NOTIFY_SOCKET", "")
	if err := notify(stateReady); err != nil {
		t.Errorf("without a service manager: %v", err)
	}
}

// TestReloadIsNotified: the service manager learns when a reload begins, by its
// clock, and that the process serves on, also with the old configuration.
func TestReloadIsNotified(t *testing.T) {
	manager := serviceManager(t)
	s := newTestService(t, waitTimeout)
	receive := func(want string) {
		t.Helper()
		b := make([]byte, 256)
		if err := manager.SetReadDeadline(time.Now().Add(waitTimeout)); err != nil {
			t.Fatal(err)
		}
		n, err := manager.Read(b)
		if err != nil || !regexp.MustCompile(want).Match(b[:n]) {
			t.Errorf("the service manager got %q, %v, want %s", b[:n], err, want)
		}
	}
	for _, result := range []error{nil, errors.New("a mistake")} {
		s.reload = func(context.Context) error {
			receive(`^RELOADING=1\nMONOTONIC_USEC=[1-9]\d*$`)
			return result
		}
		if err := s.reloadNow(t.Context()); !errors.Is(err, result) {
			t.Errorf("got %v, want %v", err, result)
		}
		receive("^READY=1$")
	}
}

func TestWatchdogTime(t *testing.T) {
	for _, c := range []struct {
		limit, owner string
		want         time.Duration
		refused      bool
	}{
		{"", "", 0, false},
		{"3000000", "", 3 * time.Second, false},
		{"3000000", "7", 3 * time.Second, false},
		{"3000000", "8", 0, false},
		{"soon", "", 0, true},
		{"0", "7", 0, true},
		{"-1", "", 0, true},
		{"9223372036854775807", "", 0, true},
	} {
		env := map[string]string{"WATCHDOG_USEC": c.limit, "WATCHDOG_PID": c.owner}
		got, err := watchdogTime(func(key string) string { return env[key] }, 7)
		if got != c.want || (err != nil) != c.refused {
			t.Errorf("%q of %q: %v, %v", c.limit, c.owner, got, err)
		}
	}
}

// Without a status there is no keepalive.
func TestWatchdog(t *testing.T) {
	manager := serviceManager(t)
	asked, answer := make(chan struct{}), make(chan struct{})
	p := watchdog(time.Microsecond, func() processStatus {
		asked <- struct{}{}
		<-answer
		return processStatus{}
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.serve(ctx) }()
	<-asked
	b := make([]byte, 64)
	raw, err := manager.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		if n, _, err := unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT); err == nil {
			t.Errorf("%q without a status", b[:n])
		}
	})
	close(answer)
	manager.SetReadDeadline(time.Now().Add(waitTimeout))
	if n, err := manager.Read(b); err != nil || string(b[:n]) != "WATCHDOG=1" {
		t.Errorf("the service manager got %q, %v", b[:n], err)
	}
	<-asked // again
	errEnd := errors.New("end")
	cancel(errEnd)
	for {
		select {
		case <-asked:
			continue
		case err := <-ended:
			if !errors.Is(err, errEnd) {
				t.Error(err)
			}
			return
		case <-time.After(waitTimeout):
			t.Fatal("the watchdog does not end")
		}
	}
}
