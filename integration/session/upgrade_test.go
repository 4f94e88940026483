package session

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// upgraded is what "viablk upgrade" says.
var upgraded = regexp.MustCompile(`^process ([0-9]+) has taken over from process ([0-9]+)\n$`)

// TestUpgrade: a running target starts its program anew, again and again, which
// takes over with its disk in memory, and the service manager hears which
// process is the main one. A process that may not take over changes nothing.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	folder := testbed.Folder(t)
	admin, file := filepath.Join(folder, "admin"), filepath.Join(folder, "target.yaml")
	configure := func(exports string) {
		testbed.Must(t, os.WriteFile(file, []byte("target:\n  listen: ['via+shm:///?socket="+filepath.Join(folder, "v")+"']\n  exports:\n"+exports), 0o600))
	}
	const disk = "  - {name: disk, backend: 'memory:4MiB'}\n"
	configure(disk)
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(folder, "manager"), Net: "unixgram"})
	testbed.Must(t, err)
	defer manager.Close()
	log, err := os.Create(filepath.Join(folder, "log")) // outlives the first process, as a pipe to this one does not
	testbed.Must(t, err)
	defer log.Close()
	place := func(c *exec.Cmd) error {
		c.Stderr = log
		c.Env = append(c.Env, "NOTIFY_SOCKET="+filepath.Join(folder, "manager"), "WATCHDOG_PID=1", "WATCHDOG_USEC=30000000")
		return testbed.StartCommand(c)
	}
	p := testbed.StartBinaryAt(t, place, testbed.Program(t), "target", "--config", file, "--admin", admin)
	defer func() { _ = syscall.Kill(-p.PID(), syscall.SIGKILL) }() // those that it started are in its group
	a := testbed.AttachURIAt(t, testbed.StartCommand, testbed.Program(t), p.URI("disk", "via+shm"), "disk")
	k := testbed.Connect(t, a.URI("disk", "nbd+unix"))
	k.Ask("fill 0 4096 1", "ok")

	pid, said := p.PID(), []string{"READY=1"}
	for range 2 {
		out := testbed.Succeed(t, testbed.StartPath(t, nil, testbed.Program(t), "upgrade", "--admin", admin))
		m := upgraded.FindStringSubmatch(out)
		if m == nil || m[2] != strconv.Itoa(pid) {
			t.Fatalf("process %d was upgraded: %q", pid, out)
		}
		said = append(said, "MAINPID="+m[1])
		pid, err = strconv.Atoi(m[1])
		testbed.Must(t, err)
		k.Ask("check 0 4096 1", "ok")
		k.Ask("fill 0 4096 1", "ok")
	}
	if code := p.ExitCode(); code != 0 {
		t.Errorf("the first process ends with exit code %d\n%s", code, p.Output())
	}

	configure("  - {name: other, backend: 'memory:4MiB'}\n")
	testbed.Refused(t, 1, `process [0-9]+ did not take over: export "disk" would end: add it to the configuration`, "upgrade", "--admin", admin)
	configure("  - {name: disk}\n")
	testbed.Refused(t, 1, `process [0-9]+ did not take over: .*exit status 78`, "upgrade", "--admin", admin)
	k.Ask("check 0 4096 1", "ok")

	// The last process says it after the others.
	testbed.Must(t, manager.SetReadDeadline(time.Now().Add(testbed.EndLimit)))
	var heard []string
	for buf := make([]byte, 64); len(heard) == 0 || heard[len(heard)-1] != said[len(said)-1]; {
		n, err := manager.Read(buf)
		if err != nil {
			t.Fatalf("the service manager heard %q: %v", heard, err)
		}
		if text := string(buf[:n]); strings.HasPrefix(text, "MAINPID=") || len(heard) == 0 {
			heard = append(heard, text)
		}
	}
	if strings.Join(heard, " ") != strings.Join(said, " ") {
		t.Errorf("the service manager heard %q, not %q", heard, said)
	}
	k.Disconnect()
	a.Stop()
	testbed.KillProcess(t, pid, syscall.SIGTERM)
	testbed.Eventually(t, "the end of the last process", func() (any, bool) {
		return pid, errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	})
	text, err := os.ReadFile(log.Name())
	testbed.Must(t, err)
	if testbed.IsDisaster(string(text)) || strings.Count(string(text), "event=upgrade_failed") != 2 || strings.Count(string(text), "event=upgrade_begun") != 4 {
		t.Errorf("the log:\n%s", text)
	}
}
