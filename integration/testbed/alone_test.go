package testbed

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// use tries to use the machine as another test binary would.
func use(t *testing.T, how int) error {
	t.Helper()
	cache, err := os.UserCacheDir()
	Must(t, err)
	f, err := os.OpenFile(filepath.Join(cache, "viablk-programs", useLock), os.O_RDWR, 0)
	Must(t, err)
	defer f.Close()
	return unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
}

// The machine is shared by tests with processes, and by none with a test that
// is alone, though that starts processes too.
func TestAloneExcludesOthers(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Run("shared", func(t *testing.T) {
		c := NewTool(nil, "/bin/sh", "-c", "exit 3")
		c.Start(t, StartCommand)
		if code := c.Wait(t, ToolLimit); code != 3 {
			t.Errorf("exit code %d", code)
		}
		if err := use(t, unix.LOCK_SH); err != nil {
			t.Errorf("another test with processes: %v", err)
		}
		if err := use(t, unix.LOCK_EX); !errors.Is(err, unix.EWOULDBLOCK) {
			t.Errorf("a test that is to be alone: %v", err)
		}
	})
	t.Run("alone", func(t *testing.T) {
		Alone(t)
		Succeed(t, StartPath(t, nil, "/bin/sh", "-c", "true"))
		if err := use(t, unix.LOCK_SH); !errors.Is(err, unix.EWOULDBLOCK) {
			t.Errorf("another test with processes: %v", err)
		}
	})
	if err := use(t, unix.LOCK_EX); err != nil {
		t.Errorf("after both: %v", err)
	}
}
