package session

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

// fileOf returns which file is at a path.
func fileOf(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Lstat(path)
	testbed.Must(t, err)
	return info
}

// wantSameFiles checks that the files at paths are those of before.
func wantSameFiles(t *testing.T, before ...os.FileInfo) func(paths ...string) {
	return func(paths ...string) {
		t.Helper()
		for i, path := range paths {
			if now, err := os.Lstat(path); err != nil || !os.SameFile(before[i], now) {
				t.Errorf("the socket %s is another one: %v", path, err)
			}
		}
	}
}

// TestSuccessorThatCannotListen: a successor that fails after it got sockets
// leaves them to the target, which serves on at the same ones.
func TestSuccessorThatCannotListen(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.Must(t, err)
	defer taken.Close()
	folder := testbed.Folder(t)
	front, shm := filepath.Join(folder, "n"), filepath.Join(folder, "v")
	s := newSuccession(t, "--listen", "nbd+unix:///?socket="+front, "--listen", "via+shm:///?socket="+shm,
		"--export", "disk=file:"+testbed.SparseFile(t, 1<<20))
	same := wantSameFiles(t, fileOf(t, front), fileOf(t, shm))
	for range 2 {
		p := testbed.StartPath(t, nil, testbed.Program(t), slices.Concat([]string{"target", "--takeover", s.admin, "--admin", "none"},
			s.args, []string{"--listen", "nbd://" + taken.Addr().String()})...)
		if code := p.Wait(t, testbed.ToolLimit); code != 75 {
			t.Errorf("the successor ends with exit code %d\n%s", code, p.Output())
		}
		k := testbed.Connect(t, "nbd+unix:///disk?socket="+front)
		k.Ask("write 0 4096", "ok")
		k.Disconnect()
		testbed.AttachURIAt(t, testbed.StartCommand, testbed.Program(t), s.target.URI("disk", "via+shm"), "disk").Stop()
		same(front, shm)
	}
	s.next()
	same(front, shm)
	s.target.Stop()
	for _, path := range []string{front, shm} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("the socket %s is left", path)
		}
	}
}

// TestTakeoverOfRemovedSocket: a socket whose file is gone keeps no other
// target from taking over, which makes it anew.
func TestTakeoverOfRemovedSocket(t *testing.T) {
	t.Parallel()
	front := filepath.Join(testbed.Folder(t), "n")
	s := newSuccession(t, "--listen", "nbd+unix:///?socket="+front, "--export", "disk=file:"+testbed.SparseFile(t, 1<<20))
	testbed.Must(t, os.Remove(front))
	s.next()
	k := testbed.Connect(t, "nbd+unix:///disk?socket="+front)
	k.Ask("write 0 4096", "ok")
	k.Disconnect()
	s.target.Stop()
}
