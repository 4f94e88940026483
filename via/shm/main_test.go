package shm

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/viablk/viablk/internal/sleepflag"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(runRole(role))
	}
	os.Exit(m.Run())
}

// watchLeaks fails the test if it leaves a file descriptor, a mapping of a
// memfd or a goroutine behind.
func watchLeaks(t *testing.T) {
	t.Helper()
	warmUp(t)
	before := goleak.IgnoreCurrent()
	fds, maps := openFiles(t), memfdMappings(t)
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		if err := goleak.Find(before); err != nil {
			t.Errorf("goroutines remain: %v", err)
		}
		// A finished goroutine's deferred close may still be in flight.
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			now, mapped := openFiles(t), memfdMappings(t)
			if len(now) == len(fds) && mapped == maps {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("%d file descriptors before, %d after: %v; %d mappings before, %d after",
					len(fds), len(now), now, maps, mapped)
				return
			}
		}
	})
}

// warmUp opens the runtime's poller and the page of sleep flags, which stay
// open for ever.
func warmUp(t *testing.T) {
	t.Helper()
	_, err := sleepflag.Process()
	check(t, err)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "w"), Net: "unixpacket"})
	check(t, err)
	check(t, l.Close())
}

func openFiles(tb testing.TB) []string {
	tb.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	check(tb, err)
	var out []string
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil { // the directory itself is closed by now
			out = append(out, e.Name()+" "+target)
		}
	}
	return out
}

func memfdMappings(tb testing.TB) int {
	tb.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	check(tb, err)
	return strings.Count(string(b), "/memfd:")
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
