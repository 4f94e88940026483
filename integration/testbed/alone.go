package testbed

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Test binaries run at the same time. One lock says who uses the machine:
// shared by those whose tests have processes, exclusive for a test that
// measures. A test that begins holds another for a moment, so that a test that
// measures gets the machine although others come and go.
const (
	useLock   = "use.lock"
	beginLock = "begin.lock"
)

// machine is how this process uses the machine.
var machine struct {
	mu    sync.Mutex
	users int      // tests with processes
	use   *os.File // locked while there are users, or one is alone
}

// Alone waits until no other test binary has processes, and keeps them waiting
// until the test ends. The test calls it before it starts a process, and other
// tests of its package do not run in parallel with it.
func Alone(t testing.TB) {
	t.Helper()
	useMachine(t, unix.LOCK_EX)
}

// share says that a test has processes, which a test that measures waits for.
func share(t testing.TB) {
	t.Helper()
	useMachine(t, unix.LOCK_SH)
}

// useMachine takes the lock for the first user of this process; further ones
// join it.
func useMachine(t testing.TB, how int) {
	t.Helper()
	machine.mu.Lock()
	defer machine.mu.Unlock()
	if machine.users == 0 {
		begin := lockFile(t, beginLock, how)
		machine.use = lockFile(t, useLock, how)
		Must(t, begin.Close())
	} else if how == unix.LOCK_EX {
		t.Fatal("a test that is to be alone has processes already, or runs in parallel")
	}
	machine.users++
	t.Cleanup(func() {
		machine.mu.Lock()
		defer machine.mu.Unlock()
		if machine.users--; machine.users == 0 {
			Must(t, machine.use.Close())
		}
	})
}

// lockFile opens and locks a file of the user's cache folder.
func lockFile(t testing.TB, name string, how int) *os.File {
	t.Helper()
	cache, err := os.UserCacheDir()
	Must(t, err)
	folder := filepath.Join(cache, "viablk-programs")
	Must(t, os.MkdirAll(folder, 0o700))
	f, err := os.OpenFile(filepath.Join(folder, name), os.O_RDWR|os.O_CREATE, 0o600)
	Must(t, err)
	for {
		err := unix.Flock(int(f.Fd()), how)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		Must(t, err)
		return f
	}
}
