package shm

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/viablk/viablk/via"
)

// The user of a listener is this process's or root, or the only one who can
// make sockets in the folder.
func TestUserOfListener(t *testing.T) {
	const self, other, third = 1000, 1001, 1002
	for _, c := range []struct {
		listener, folder uint32
		mode             fs.FileMode
		trusted          bool
	}{
		{self, other, 0o755, true},
		{0, other, 0o777, true},
		{other, other, 0o755, true},
		{other, other, 0o700, true},
		{other, other, 0o775, false},
		{other, other, 0o777, false},
		{other, 0, 0o755, false},
		{other, 0, 0o777 | fs.ModeSticky, false},
		{other, self, 0o755, false},
		{third, other, 0o755, false},
	} {
		if got := trustedListener(c.listener, self, c.folder, c.mode); got != c.trusted {
			t.Errorf("%+v: trusted %v", c, got)
		}
	}
}

// A process of another user that has taken the path gets no connection.
func TestListenerOfOtherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("run the tests as root: only root can become another user")
	}
	const uid = 65534
	dir, err := os.MkdirTemp("", "shm") // a test's own directory is closed to others
	check(t, err)
	t.Cleanup(func() { check(t, os.RemoveAll(dir)) })
	binary := filepath.Join(dir, "binary")
	copyFile(t, "/proc/self/exe", binary)
	check(t, os.Chmod(dir, 0o755))
	for name, c := range map[string]struct {
		owner   int
		mode    fs.FileMode
		refused bool
	}{
		"its own folder":      {uid, 0o755, false},
		"a folder of all":     {0, 0o777 | fs.ModeSticky, true},
		"its folder, for all": {uid, 0o777, true},
	} {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(dir, strings.NewReplacer(" ", "", ",", "").Replace(name))
			check(t, os.Mkdir(folder, 0o755))
			check(t, os.Chown(folder, c.owner, c.owner))
			check(t, os.Chmod(folder, c.mode))
			path := filepath.Join(folder, "v")
			attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: &syscall.Credential{Uid: uid, Gid: uid}}
			p := startProcess(t, binary, attr, "hang up", path)
			if got := p.line(); got != "listening" {
				t.Fatalf("the other process says %q", got)
			}
			s := newStationOf(t, provider{timeouts: testTimeouts})
			_, err := s.newVI().Connect(t.Context(), via.Address{Host: path, Discriminator: "d"})
			if c.refused != errors.Is(err, fs.ErrPermission) || err == nil {
				t.Errorf("the attempt ends with %v", err)
			}
			check(t, p.wait())
		})
	}
}
