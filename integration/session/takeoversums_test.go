package session

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

// flipInMemory flips a bit of the only disk in memory of a process, beneath it:
// of a disk of 16 MiB, the bits of its blocks are in the second 64 KiB.
func flipInMemory(t *testing.T, p *testbed.Process, off int64) {
	t.Helper()
	folder := fmt.Sprintf("/proc/%d/fd", p.PID())
	entries, err := os.ReadDir(folder)
	testbed.Must(t, err)
	for _, e := range entries {
		path := filepath.Join(folder, e.Name())
		if target, err := os.Readlink(path); err != nil || !strings.HasPrefix(target, "/memfd:viablk disk") {
			continue
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		testbed.Must(t, err)
		defer f.Close()
		b := make([]byte, 1)
		_, err = f.ReadAt(b, 128<<10+off)
		testbed.Must(t, err)
		b[0] ^= 1
		_, err = f.WriteAt(b, 128<<10+off)
		testbed.Must(t, err)
		return
	}
	t.Fatal("the process has no disk in memory")
}

// TestTakeoverKeepsChecksums: the checksums of a disk in memory move with it. A
// successor that dies, or that ends after it has opened the disk, leaves them
// to the target before.
func TestTakeoverKeepsChecksums(t *testing.T) {
	t.Parallel()
	folder := testbed.Folder(t)
	socket := filepath.Join(folder, "n")
	s := newSuccession(t, "--listen", "nbd+unix:///?socket="+socket, "--export", "disk=crc:memory:16MiB,"+filepath.Join(folder, "sums"))
	ask := func(questions ...string) {
		t.Helper()
		k := testbed.Connect(t, "nbd+unix:///disk?socket="+socket)
		for _, q := range questions {
			question, answer, _ := strings.Cut(q, ": ")
			k.Ask(question, answer)
		}
		k.Disconnect()
	}
	ask("fill 0 1048576 5: ok", "flush: ok")
	flipInMemory(t, s.target, 8192)
	for i, next := range []func(){
		s.next,
		func() { dieAsSuccessor(t, "opened", s.admin) },
		func() {
			p := testbed.StartPath(t, nil, testbed.Program(t), slices.Concat([]string{"target", "--takeover", s.admin, "--admin", "none"}, s.args,
				[]string{"--listen", "nbd+unix:///?socket=" + folder + "/sums/n"})...)
			if code := p.Wait(t, testbed.ToolLimit); code == 0 {
				t.Errorf("the successor without a place for its socket ends with exit code 0\n%s", p.Output())
			}
		},
		s.next,
	} {
		next()
		ask("read 8192 4096: EIO", "check 0 8192 5: ok", "check 12288 1036288 5: ok")
		flipInMemory(t, s.target, 1<<19)
		ask("read 524288 4096: EIO")
		flipInMemory(t, s.target, 1<<19)
		ask(fmt.Sprintf("fill 1048576 4096 %d: ok", i), "check 524288 4096 5: ok")
	}
	ask("fill 8192 4096 5: ok", "check 0 1048576 5: ok")
	s.target.Stop()
}
