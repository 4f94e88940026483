package shm_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// codeOf returns the return code that an error wraps.
func codeOf(err error) via.Error {
	var code via.Error
	if !errors.As(err, &code) {
		return 0
	}
	return code
}

// A path that is invalid or in use is refused with its code.
func TestBadPaths(t *testing.T) {
	folder := t.TempDir()
	t.Chdir(folder)
	file := filepath.Join(folder, "file")
	must(t, os.WriteFile(file, []byte("data"), 0o600))
	stream, err := net.Listen("unix", filepath.Join(folder, "stream"))
	must(t, err)
	defer func() { _ = stream.Close() }()
	nic, err := via.OpenNic(shm.New(shm.Options{}), "")
	must(t, err)
	vi, tag := idleVI(t, nic)
	long := strings.Repeat("x", 108)
	for _, c := range []struct {
		name, host      string
		connect, listen via.Error
	}{
		{"no path", "", via.ErrInvalidParameter, via.ErrInvalidParameter},
		{"a path with a zero byte", filepath.Join(folder, "a\x00b"), via.ErrInvalidParameter, via.ErrInvalidParameter},
		{"a path too long by one", long, via.ErrInvalidParameter, via.ErrInvalidParameter},
		{"a long path", strings.Repeat("x", 300), via.ErrInvalidParameter, via.ErrInvalidParameter},
		{"the longest path, without a listener", long[:107], via.ErrNotReachable, 0},
		{"a file", file, via.ErrNotReachable, via.ErrResource},
		{"a socket of another kind", stream.Addr().String(), via.ErrNotReachable, via.ErrResource},
		{"no such folder", filepath.Join(folder, "no", "socket"), via.ErrNotReachable, via.ErrResource},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if _, err := vi.Connect(ctx, via.Address{Host: c.host}); codeOf(err) != c.connect {
			t.Errorf("%s: connect: %v, want code %d", c.name, err, c.connect)
		}
		cancel()
		l, err := nic.Listen(via.Address{Host: c.host})
		if codeOf(err) != c.listen {
			t.Errorf("%s: listen: %v, want code %d", c.name, err, c.listen)
		}
		if err == nil {
			must(t, l.Close())
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "data" {
		t.Errorf("the file in the way has %q (%v)", b, err)
	}
	must(t, vi.Destroy())
	must(t, nic.DestroyPtag(tag))
	must(t, nic.Close())
}

// A listener that closes a connection in place of an answer, as one without
// descriptors does, is not reachable; the error says where to look.
func TestClosedWithoutAnswer(t *testing.T) {
	addr := via.Address{Host: filepath.Join(t.TempDir(), "s")}
	l, err := net.Listen("unixpacket", addr.Host)
	must(t, err)
	ended := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = c.Read(make([]byte, 1))
			err = errors.Join(err, c.Close())
		}
		ended <- err
	}()
	nic, err := via.OpenNic(shm.New(shm.Options{}), "")
	must(t, err)
	vi, tag := idleVI(t, nic)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := vi.Connect(ctx, addr); codeOf(err) != via.ErrNotReachable || !strings.Contains(err.Error(), "closed the connection without an answer: its log says why") {
		t.Errorf("connect: %v", err)
	}
	must(t, <-ended)
	must(t, l.Close())
	must(t, vi.Destroy())
	must(t, nic.DestroyPtag(tag))
	must(t, nic.Close())
}

func idleVI(t *testing.T, nic *via.NIC) (*via.VI, via.Ptag) {
	t.Helper()
	tag, err := nic.CreatePtag()
	must(t, err)
	vi, err := nic.CreateVi(via.ViAttributes{Reliability: via.ReliableDelivery, Ptag: tag}, via.ViConfig{SendDepth: 1, RecvDepth: 1})
	must(t, err)
	return vi, tag
}

// Without a free file descriptor every call that needs one returns an error and
// leaks nothing.
func TestOutOfFileDescriptors(t *testing.T) {
	nic, err := via.OpenNic(shm.New(shm.Options{}), "")
	must(t, err)
	vi, tag := idleVI(t, nic)
	server, err := via.OpenNic(shm.New(shm.Options{}), "")
	must(t, err)
	addr := via.Address{Host: filepath.Join(t.TempDir(), "s")}
	l, err := server.Listen(addr)
	must(t, err)
	calls := map[string]func() error{
		"create a completion queue": func() error { _, err := nic.CreateCQ(1); return err },
		"map an arena":              func() error { _, err := nic.NewArena(4096); return err },
		"listen":                    func() error { _, err := nic.Listen(via.Address{Host: addr.Host + "2"}); return err },
		"connect": func() error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_, err := vi.Connect(ctx, addr)
			return err
		},
	}
	before := len(openDescriptors(t))
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	few := limit
	few.Cur = 1 // below what is open: nothing more can be
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	failures := make(map[string]error)
	for name, call := range calls {
		failures[name] = call()
	}
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	for name, err := range failures {
		if codeOf(err) != via.ErrResource || !errors.Is(err, unix.EMFILE) {
			t.Errorf("%s: %v, want ErrResource around EMFILE", name, err)
		}
	}
	if after := len(openDescriptors(t)); after != before {
		t.Errorf("%d file descriptors before, %d after", before, after)
	}
	must(t, l.Close())
	must(t, vi.Destroy())
	must(t, nic.DestroyPtag(tag))
	must(t, nic.Close())
	must(t, server.Close())
}

func openDescriptors(t *testing.T) []os.DirEntry {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return entries
}
