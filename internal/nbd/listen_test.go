package nbd

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestListenUnix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, err := Listen(t.Context(), "unix", path); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), path) {
		t.Errorf("second listener: %v", err)
	}
	if _, err := net.Dial("unix", path); err != nil {
		t.Errorf("first listener: %v", err)
	}
	l.Close()
	if err := l.Close(); err != nil {
		t.Errorf("close twice: %v", err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("socket is left: %v", err)
	}
}

func TestListenUnixMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := ListenUnix(t.Context(), path, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o666 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// staleSocket is a socket that a killed server left behind.
func staleSocket(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	return path
}

// A socket that a killed server left behind is replaced.
func TestListenUnixStale(t *testing.T) {
	path := staleSocket(t)
	l, err := ListenUnix(t.Context(), path, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := net.Dial("unix", path); err != nil {
		t.Error(err)
	}
}

func TestListenUnixLeavesFilesAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenUnix(t.Context(), path, 0); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("got %v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		t.Errorf("%q, %v", b, err)
	}
}

// Closing does not remove a socket that has taken the place of ours.
func TestListenUnixReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	first, err := ListenUnix(t.Context(), path, 0)
	if err != nil {
		t.Fatal(err)
	}
	os.Remove(path)
	second, err := ListenUnix(t.Context(), path, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	first.Close()
	if _, err := net.Dial("unix", path); err != nil {
		t.Error(err)
	}
}

// Of many that start at once over a stale socket, one gets it.
func TestListenUnixRace(t *testing.T) {
	path := staleSocket(t)
	listeners := make([]net.Listener, 16)
	var wait sync.WaitGroup
	for i := range listeners {
		wait.Go(func() {
			l, err := ListenUnix(t.Context(), path, 0)
			if err == nil {
				listeners[i] = l
			} else if !errors.Is(err, ErrInUse) {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	winners := 0
	for _, l := range listeners {
		if l != nil {
			winners++
			defer l.Close()
		}
	}
	if winners != 1 {
		t.Errorf("%d listeners", winners)
	}
}

// flockOf holds the lock of a file or folder until the test ends.
func flockOf(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}

// Any user who may open a folder may lock it, which keeps no listener from its
// start and its end.
func TestListenUnixLockedFolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	flockOf(t, filepath.Dir(path))
	l, err := ListenUnix(t.Context(), path, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A start waits for another one, no longer than its context, and takes no lock
// file of another user.
func TestListenUnixLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	lock := path + ".lock"
	attempt := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		l, err := ListenUnix(ctx, path, 0)
		if err == nil {
			err = l.Close()
		}
		return err
	}
	if err := os.WriteFile(lock, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := attempt(); err != nil {
		t.Errorf("with the file of a process that was killed: %v", err)
	}
	if err := os.WriteFile(lock, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	flockOf(t, lock)
	if err := attempt(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("beside another start: %v", err)
	}
	os.Remove(lock)
	if err := os.Symlink(filepath.Join(t.TempDir(), "elsewhere"), lock); err != nil {
		t.Fatal(err)
	}
	if err := attempt(); !errors.Is(err, unix.ELOOP) {
		t.Errorf("with a link: %v", err)
	}
	os.Remove(lock)
	if os.Geteuid() != 0 {
		return // which may give files to others
	}
	if err := errors.Join(os.WriteFile(lock, nil, 0o666), os.Chown(lock, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	if err := attempt(); err == nil || !strings.Contains(err.Error(), "belongs to another user") {
		t.Errorf("with the file of another user: %v", err)
	}
}
