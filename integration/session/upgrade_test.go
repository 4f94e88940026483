package session

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// upgraded is what "viablk upgrade" says.
var upgraded = regexp.MustCompile(`^process ([0-9]+) has taken over from process ([0-9]+)\n$`)

// mainPID is what a service manager hears before the main process of a service.
const mainPID = "MAINPID="

func notMainPID(text string) bool { return !strings.HasPrefix(text, mainPID) }

// manager is the socket of a service manager.
type manager struct{ *net.UnixConn }

// listenAsManager listens until the end of the test.
func listenAsManager(t *testing.T, path string) manager {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	testbed.Must(t, err)
	t.Cleanup(func() { c.Close() })
	return manager{c}
}

// heard returns what the service manager was told, up to a last text.
func (m manager) heard(t *testing.T, last string) (texts []string) {
	t.Helper()
	testbed.Must(t, m.SetReadDeadline(time.Now().Add(testbed.EndLimit)))
	for buf := make([]byte, 64); len(texts) == 0 || texts[len(texts)-1] != last; {
		n, err := m.Read(buf)
		if err != nil {
			t.Fatalf("the service manager heard %q: %v", texts, err)
		}
		texts = append(texts, string(buf[:n]))
	}
	return texts
}

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
	manager := listenAsManager(t, filepath.Join(folder, "manager"))
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

	pid, said := p.PID(), []string(nil)
	for range 2 {
		out := testbed.Succeed(t, testbed.StartPath(t, nil, testbed.Program(t), "upgrade", "--admin", admin))
		m := upgraded.FindStringSubmatch(out)
		if m == nil || m[2] != strconv.Itoa(pid) {
			t.Fatalf("process %d was upgraded: %q", pid, out)
		}
		said = append(said, mainPID+m[1])
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
	heard := manager.heard(t, said[len(said)-1])
	if told := slices.DeleteFunc(slices.Clone(heard), notMainPID); heard[0] != "READY=1" || !slices.Equal(told, said) {
		t.Errorf("the service manager heard %q, not READY=1 and then %q", heard, said)
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

// TestAnotherTakesOver: if the process of an upgrade is not ready yet, another
// one may take over, and the service manager does not hear that the main one is
// that of the upgrade.
func TestAnotherTakesOver(t *testing.T) {
	t.Parallel()
	folder := testbed.Folder(t)
	at := func(name string) string { return filepath.Join(folder, name) }
	next, begun := at("next"), at("begun")
	script := func(path, text string) {
		testbed.Must(t, os.WriteFile(path, []byte("#!/bin/bash\n"+text+"\n"), 0o700))
	}
	script(next, "touch "+begun+"; exec sleep 600")
	script(at("first"), "exec -a "+next+" "+testbed.Program(t)+` "$@"`)
	m := listenAsManager(t, at("manager"))
	place := func(c *exec.Cmd) error {
		c.Env = append(c.Env, "NOTIFY_SOCKET="+at("manager"))
		return testbed.StartCommand(c)
	}
	arguments := []string{"target", "--listen", "via+shm:///?socket=" + at("v"), "--export", "disk=memory:4MiB", "--admin", at("admin")}
	p := testbed.StartBinaryAt(t, place, at("first"), arguments...)
	defer func() { _ = syscall.Kill(-p.PID(), syscall.SIGKILL) }() // with the process that sleeps
	testbed.Refused(t, 75, `no process has taken over within 1s`, "upgrade", "--admin", at("admin"), "--timeout", "1s")
	if _, err := os.Stat(begun); err != nil {
		t.Fatalf("the process of the upgrade has not begun: %v", err)
	}
	q := testbed.StartBinary(t, testbed.Program(t), append(arguments, "--takeover", at("admin"))...)
	if code := p.ExitCode(); code != 0 {
		t.Errorf("the first process ends with exit code %d\n%s", code, p.Output())
	}
	c, err := net.Dial("unixgram", at("manager"))
	testbed.Must(t, err)
	defer c.Close()
	_, err = c.Write([]byte("end"))
	testbed.Must(t, err)
	if told := slices.DeleteFunc(m.heard(t, "end"), notMainPID); len(told) != 0 {
		t.Errorf("process %d has taken over, and the service manager heard %q", q.PID(), told)
	}
	q.Stop()
}
