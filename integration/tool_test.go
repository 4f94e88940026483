package integration

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// packages are the Debian packages of the tools.
var packages = map[string]string{
	"fio": "fio", "nbdkit": "nbdkit", "nbdinfo": "libnbd-bin", "nbdcopy": "libnbd-bin",
	"nbdfuse": "libnbd-bin", "nbdsh": "python3-libnbd", "qemu-img": "qemu-utils",
	"qemu-io": "qemu-utils", "qemu-nbd": "qemu-utils", "mkfs.ext4": "e2fsprogs", "fsck.ext4": "e2fsprogs",
	"losetup": "util-linux", "mount": "mount", "umount": "mount", "setpriv": "util-linux",
	"strace": "strace", "tshark": "tshark", "nbd-server": "nbd-server", "prlimit": "util-linux",
}

// toolPath puts the system's tools before others of the same name: Python's nbd
// module belongs to the system's Python.
const toolPath = "/usr/bin:/bin:/usr/sbin:/sbin"

// requires fails the test if a tool is missing.
func requires(t testing.TB, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if locate(tool) == "" {
			t.Fatalf("this test needs %s: install the Debian package %s", tool, packages[tool])
		}
	}
}

// requiresRoot fails the test if this is not root: it mounts, or becomes another
// user.
func requiresRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root: run the tests in a container or a virtual machine")
	}
}

// locate returns the path of a tool, or nothing.
func locate(tool string) string {
	for folder := range strings.SplitSeq(toolPath, ":") {
		path := filepath.Join(folder, tool)
		if st, err := os.Stat(path); err == nil && st.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// capture keeps the beginning of what a process writes: some clients repeat
// their error line for ever. It is safe for concurrent use.
type capture struct {
	mu   sync.Mutex
	text []byte
}

// captureLimit is how much of the output of a process is kept, in bytes.
const captureLimit = 1 << 20

func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text = append(c.text, p[:min(len(p), captureLimit-len(c.text))]...)
	return len(p), nil
}

func (c *capture) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.text)
}

// starts are commands for routineStart.
var starts = func() chan<- func() {
	c := make(chan func())
	go routineStart(c)
	return c
}()

// routineStart starts processes from one thread that never ends. The kernel
// kills them when the thread that started them is gone, so that nothing outlives
// a test run that is killed.
func routineStart(c <-chan func()) {
	runtime.LockOSThread()
	for start := range c {
		start()
	}
}

// place is where a process runs: it starts a command there, in a process group of
// its own, and sees to it that the command ends with this process.
type place func(*exec.Cmd) error

// startCommand is the place of this process.
func startCommand(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	starts <- func() { started <- cmd.Start() }
	return <-started
}

// tool is a client that a test runs.
type tool struct {
	cmd            *exec.Cmd
	stdout, stderr capture
	ended          chan struct{}
	code           int // -1 if a signal ended it
}

// startTool starts a client. It is killed when the test ends, if it still runs.
func startTool(t testing.TB, name string, args ...string) *tool {
	t.Helper()
	requires(t, name)
	return startPath(t, nil, locate(name), args...)
}

// startPath is startTool for any program, with additions to its environment.
func startPath(t testing.TB, env []string, path string, args ...string) *tool {
	t.Helper()
	return startPathAt(t, startCommand, env, path, args...)
}

// startPathAt is startPath at a place.
func startPathAt(t testing.TB, at place, env []string, path string, args ...string) *tool {
	t.Helper()
	c := newTool(env, path, args...)
	c.start(t, at)
	return c
}

// newTool is a client that is not started yet.
func newTool(env []string, path string, args ...string) *tool {
	c := &tool{cmd: exec.Command(path, args...), ended: make(chan struct{})}
	// With the race detector a process would sleep a second before it ends.
	c.cmd.Env = append([]string{"PATH=" + toolPath, "HOME=/nonexistent", "LC_ALL=C", "GORACE=atexit_sleep_ms=0"}, env...)
	c.cmd.Stdout, c.cmd.Stderr = &c.stdout, &c.stderr
	c.cmd.WaitDelay = time.Second
	return c
}

// start starts the client. It is killed when the test ends, if it still runs.
func (c *tool) start(t testing.TB, at place) {
	t.Helper()
	must(t, at(c.cmd))
	go func() {
		_ = c.cmd.Wait() // the code says it
		c.code = c.cmd.ProcessState.ExitCode()
		close(c.ended)
	}()
	t.Cleanup(c.kill)
}

// kill kills the client and what it started.
func (c *tool) kill() {
	select {
	case <-c.ended:
	default:
		_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL) // it may just end
		<-c.ended
	}
}

// wait waits for the end of the client, which must come by itself.
func (c *tool) wait(t testing.TB, limit time.Duration) int {
	t.Helper()
	select {
	case <-c.ended:
	case <-time.After(limit):
		c.kill()
		t.Fatalf("%s hangs: it did not end within %v\n%s", c, limit, c.output())
	}
	return c.code
}

func (c *tool) String() string { return strings.Join(c.cmd.Args, " ") }

// output returns the beginning of what the client wrote, for messages.
func (c *tool) output() string {
	text := c.stdout.String() + c.stderr.String()
	return text[:min(len(text), 8<<10)]
}

// toolLimit is how long a client may run.
const toolLimit = 2 * time.Minute

// run runs a client, which must succeed, and returns its standard output.
func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	return succeed(t, startTool(t, name, args...))
}

// succeed waits for a client, which must succeed, and returns its output.
func succeed(t testing.TB, c *tool) string {
	t.Helper()
	if code := c.wait(t, toolLimit); code != 0 {
		t.Fatalf("%s: exit code %d\n%s", c, code, c.output())
	}
	return c.stdout.String()
}

// killProcess kills a process that a test started, which may be gone.
func killProcess(t testing.TB, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Fatalf("signal %v to process %d: %v", s, pid, err)
	}
}

// What no log may contain is found where it may stand, and nothing else is.
func TestDisasterIsSeen(t *testing.T) {
	for text, want := range map[string]bool{
		"level=INFO msg=ready\n==================\nWARNING: DATA RACE\nRead at": true,
		"panic: runtime error: index out of range":                              true,
		"level=INFO msg=draining\nfatal error: all goroutines are asleep":       true,
		"SIGQUIT: quit\n\ngoroutine 1 [select]:\n":                              true,
		"unexpected fault address 0x0":                                          true,
		"level=WARN msg=\"client left\" error=\"no panic: it does that\"":       false,
	} {
		if got := disaster.MatchString(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
