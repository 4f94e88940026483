package session

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

// TestOutputWithoutReader: targets and initiators whose output and log are a
// pipe that has lost its reader serve on, are upgraded, and end well.
func TestOutputWithoutReader(t *testing.T) {
	t.Parallel()
	folder := testbed.Folder(t)
	admin := filepath.Join(folder, "admin")
	var outputs []*os.File
	unread := func(c *exec.Cmd) error {
		output, input, err := os.Pipe()
		if err != nil {
			return err
		}
		defer input.Close()
		outputs = append(outputs, output)
		go func(to io.Writer) { _, _ = io.Copy(to, output) }(c.Stdout)
		c.Stdout, c.Stderr = input, input
		return testbed.StartCommand(c)
	}
	stopReading := func() {
		for _, o := range outputs {
			o.Close()
		}
		outputs = nil
	}
	p := testbed.StartBinaryAt(t, unread, testbed.Program(t), "target", "--admin", admin,
		"--listen", "via+shm:///?socket="+filepath.Join(folder, "v"), "--export", "disk=memory:4MiB")
	defer func() { _ = syscall.Kill(-p.PID(), syscall.SIGKILL) }() // its successor is in its group
	stopReading()
	a := testbed.AttachURIAt(t, unread, testbed.Program(t), p.URI("disk", "via+shm"), "disk")
	stopReading()
	k := testbed.Connect(t, a.URI("disk", "nbd+unix"))
	k.Ask("fill 0 4096 1", "ok")
	m := upgraded.FindStringSubmatch(testbed.Succeed(t, testbed.StartPath(t, nil, testbed.Program(t), "upgrade", "--admin", admin)))
	if m == nil {
		t.Fatal("no process took over")
	}
	if code := p.ExitCode(); code != 0 {
		t.Errorf("the first target ends with exit code %d", code)
	}
	k.Ask("check 0 4096 1", "ok")
	k.Disconnect()
	testbed.KillProcess(t, a.PID(), syscall.SIGTERM)
	if code := a.ExitCode(); code != 0 {
		t.Errorf("the initiator ends with exit code %d", code)
	}
	pid, err := strconv.Atoi(m[1])
	testbed.Must(t, err)
	testbed.KillProcess(t, pid, syscall.SIGTERM)
	testbed.Eventually(t, "the end of the second target", func() (any, bool) {
		return pid, errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	})
}
