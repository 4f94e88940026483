package testbed

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

// ToolPath puts the system's tools before others of the same name: Python's nbd
// module belongs to the system's Python.
const ToolPath = "/usr/bin:/bin:/usr/sbin:/sbin"

// Requires fails the test if a tool is missing.
func Requires(t testing.TB, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if Locate(tool) == "" {
			t.Fatalf("this test needs %s: install the Debian package %s", tool, packages[tool])
		}
	}
}

// RequiresRoot fails the test if this is not root: it mounts, or becomes
// another user.
func RequiresRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root: run the tests in a container or a virtual machine")
	}
}

// Locate returns the path of a tool, or nothing.
func Locate(tool string) string {
	for folder := range strings.SplitSeq(ToolPath, ":") {
		path := filepath.Join(folder, tool)
		if st, err := os.Stat(path); err == nil && st.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// Capture keeps the beginning of what a process writes: some clients repeat
// their error line for ever. It is safe for concurrent use.
type Capture struct {
	mu   sync.Mutex
	text []byte
}

// captureLimit is how much of the output of a process is kept, in bytes.
const captureLimit = 1 << 20

func (c *Capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text = append(c.text, p[:min(len(p), captureLimit-len(c.text))]...)
	return len(p), nil
}

func (c *Capture) String() string {
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
// kills them when the thread that started them is gone, so that nothing
// outlives a test run that is killed.
func routineStart(c <-chan func()) {
	runtime.LockOSThread()
	for start := range c {
		start()
	}
}

// Place is where a process runs: it starts a command there, in a process group
// of its own, and sees to it that the command ends with this process.
type Place func(*exec.Cmd) error

// StartCommand is the place of this process.
func StartCommand(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	starts <- func() { started <- cmd.Start() }
	return <-started
}

// Tool is a client that a test runs.
type Tool struct {
	Cmd            *exec.Cmd
	Stdout, Stderr Capture
	Ended          chan struct{}
	code           int // -1 if a signal ended it
}

// StartTool starts a client. It is killed when the test ends, if it still runs.
func StartTool(t testing.TB, name string, args ...string) *Tool {
	t.Helper()
	Requires(t, name)
	return StartPath(t, nil, Locate(name), args...)
}

// StartPath is StartTool for any program, with additions to its environment.
func StartPath(t testing.TB, env []string, path string, args ...string) *Tool {
	t.Helper()
	return StartPathAt(t, StartCommand, env, path, args...)
}

// StartPathAt is StartPath at a place.
func StartPathAt(t testing.TB, at Place, env []string, path string, args ...string) *Tool {
	t.Helper()
	c := NewTool(env, path, args...)
	c.Start(t, at)
	return c
}

// NewTool is a client that is not started yet.
func NewTool(env []string, path string, args ...string) *Tool {
	c := &Tool{Cmd: exec.Command(path, args...), Ended: make(chan struct{})}
	// With the race detector a process would sleep a second before it ends.
	c.Cmd.Env = append([]string{"PATH=" + ToolPath, "HOME=/nonexistent", "LC_ALL=C", "GORACE=atexit_sleep_ms=0"}, env...)
	c.Cmd.Stdout, c.Cmd.Stderr = &c.Stdout, &c.Stderr
	c.Cmd.WaitDelay = time.Second
	return c
}

// Start starts the client. It is killed when the test ends, if it still runs.
func (c *Tool) Start(t testing.TB, at Place) {
	t.Helper()
	share(t)
	Must(t, at(c.Cmd))
	go func() {
		_ = c.Cmd.Wait() // the code says it
		c.code = c.Cmd.ProcessState.ExitCode()
		close(c.Ended)
	}()
	t.Cleanup(c.Kill)
}

// Kill kills the client and what it started.
func (c *Tool) Kill() {
	select {
	case <-c.Ended:
	default:
		_ = syscall.Kill(-c.Cmd.Process.Pid, syscall.SIGKILL) // it may just end
		<-c.Ended
	}
}

// Wait waits for the end of the client, which no signal causes.
func (c *Tool) Wait(t testing.TB, limit time.Duration) int {
	t.Helper()
	select {
	case <-c.Ended:
	case <-time.After(limit):
		c.Kill()
		t.Fatalf("%s hangs: it did not end within %v\n%s", c, limit, c.Output())
	}
	return c.code
}

func (c *Tool) String() string { return strings.Join(c.Cmd.Args, " ") }

// Output returns the beginning of what the client wrote, for messages.
func (c *Tool) Output() string {
	text := c.Stdout.String() + c.Stderr.String()
	return text[:min(len(text), 8<<10)]
}

// ToolLimit is how long a client may run.
const ToolLimit = 2 * time.Minute

// Run runs a client, which must succeed, and returns its standard output.
func Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	return Succeed(t, StartTool(t, name, args...))
}

// Succeed waits for a client, which must succeed, and returns its output.
func Succeed(t testing.TB, c *Tool) string {
	t.Helper()
	if code := c.Wait(t, ToolLimit); code != 0 {
		t.Fatalf("%s: exit code %d\n%s", c, code, c.Output())
	}
	return c.Stdout.String()
}

// KillProcess kills a process that a test started, which may be gone.
func KillProcess(t testing.TB, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Fatalf("signal %v to process %d: %v", s, pid, err)
	}
}
