package session

import (
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

// slowTarget starts a target with a disk that does not answer an operation, and
// one that does.
func slowTarget(t *testing.T, operation string) (s *succession, socket string) {
	socket = filepath.Join(testbed.Folder(t), "n")
	return newSuccession(t, "--listen", "nbd+unix:///?socket="+socket, "--drain-timeout", "1s",
		"--export", "disk=file:"+testbed.SparseFile(t, 1<<20),
		"--export", "slow=delay:"+operation+"=1h:file:"+testbed.SparseFile(t, 1<<20)), socket
}

// TestDiskHangsAtDrain: a drain names the disk that does not answer, and so
// does the end of the process, which that does not keep.
func TestDiskHangsAtDrain(t *testing.T) {
	t.Parallel()
	s, socket := slowTarget(t, "write")
	writer := testbed.StartPath(t, nil, testbed.Locate("qemu-io"), "-f", "raw", "nbd+unix:///slow?socket="+socket, "-c", "write 0 4096")
	testbed.Eventually(t, "a request in the slow disk", func() (any, bool) {
		n := s.target.Status().NBD.InFlight
		return n, n > 0
	})
	p := testbed.StartPath(t, nil, testbed.Program(t), "drain", "--admin", s.admin, "--timeout", "1s")
	if code := p.Wait(t, testbed.ToolLimit); code != 75 || !strings.Contains(p.Output(), `in the disk of ["slow"]`) {
		t.Errorf("the drain ends with exit code %d\n%s", code, p.Output())
	}
	s.target.Signal(syscall.SIGTERM)
	if code := s.target.ExitCode(); code != 74 || !strings.Contains(s.target.Output(), `export \"slow\" does not answer`) {
		t.Errorf("the target ends with exit code %d\n%s", code, s.target.Output())
	}
	if code := writer.Wait(t, testbed.ToolLimit); code == 0 {
		t.Errorf("a write that was not done is answered\n%s", writer.Output())
	}
}

// TestDiskHangsBeforeTakeover: a target with a disk that does not flush is not
// taken over, says why, and serves on.
func TestDiskHangsBeforeTakeover(t *testing.T) {
	t.Parallel()
	s, socket := slowTarget(t, "flush")
	p := testbed.StartPath(t, nil, testbed.Program(t), slices.Concat([]string{"target", "--takeover", s.admin, "--admin", "none"}, s.args)...)
	if code := p.Wait(t, testbed.ToolLimit); code == 0 {
		t.Errorf("the successor serves\n%s", p.Output())
	}
	testbed.Eventually(t, "the target saying why", func() (any, bool) {
		text := s.target.Stderr.String()
		return text, strings.Contains(text, "event=takeover_failed") && strings.Contains(text, `export \"slow\" does not answer`)
	})
	k := testbed.Connect(t, "nbd+unix:///disk?socket="+socket)
	k.Ask("fill 0 4096 7", "ok")
	k.Ask("flush", "ok")
	k.Disconnect()
	s.target.Crash() // it waits for the flush
}
