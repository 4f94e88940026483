//go:build foreign

package nbdsuite

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// keepVariable names a folder for sources and what is built of them, which stays:
// whoever works on the tests need not fetch and build each time.
const keepVariable = "VIABLK_SUITES"

// scratch is the folder of everything; keep is where sources are.
var scratch, keep string

func TestMain(m *testing.M) {
	os.Exit(runAll(m))
}

func runAll(m *testing.M) int {
	var err error
	if scratch, err = os.MkdirTemp("", "nbdsuite"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(scratch)
	if keep = os.Getenv(keepVariable); keep == "" {
		keep = filepath.Join(scratch, "sources")
	}
	for _, folder := range []string{keep, races()} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	code := m.Run()
	reports, err := filepath.Glob(filepath.Join(races(), "*"))
	for _, path := range reports {
		text, _ := os.ReadFile(path)
		fmt.Printf("data race in viablk:\n%s\n", text)
	}
	if err != nil || len(reports) > 0 {
		return 1
	}
	return code
}

// races is where the race detector of a server that a suite started reports to.
func races() string { return filepath.Join(scratch, "races") }

// The program, as this test binary was built; the program without race detector,
// for cases that move gigabytes; and the shim.
var (
	viablk = sync.OnceValues(func() (string, error) {
		info, _ := debug.ReadBuildInfo()
		if info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
			return build("viablk", "github.com/viablk/viablk/cmd/viablk", "-race")
		}
		return plain()
	})
	plain = sync.OnceValues(func() (string, error) {
		return build("viablk-plain", "github.com/viablk/viablk/cmd/viablk")
	})
	shim = sync.OnceValues(func() (string, error) {
		return build("shim", "github.com/viablk/viablk/integration/nbdsuite/shim")
	})
)

// build builds a program of the module.
func build(name, from string, flags ...string) (string, error) {
	path := filepath.Join(scratch, name)
	cmd := exec.Command("go", slices.Concat([]string{"build", "-o", path}, flags, []string{from})...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	return path, nil
}

// program returns one of them.
func program(t testing.TB, which func() (string, error)) string {
	t.Helper()
	path, err := which()
	must(t, err)
	return path
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// toolPath puts the system's tools before others of the same name.
const toolPath = "/usr/bin:/bin:/usr/sbin:/sbin"

// environment is what commands get: that of this process, with the system's tools
// and additions.
func environment(more ...string) []string {
	return slices.Concat(os.Environ(), []string{
		"PATH=" + toolPath, "LC_ALL=C", "TMPDIR=" + scratch,
		"GORACE=halt_on_error=1 exitcode=66 log_path=" + filepath.Join(races(), "report"),
	}, more)
}

// starts are commands for routineStart.
var starts = sync.OnceValue(func() chan<- func() {
	c := make(chan func())
	go routineStart(c)
	return c
})

// routineStart starts processes from one thread that never ends. The kernel kills
// them when the thread that started them is gone.
func routineStart(c <-chan func()) {
	runtime.LockOSThread()
	for start := range c {
		start()
	}
}

// start starts a command in a process group of its own.
func start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	starts() <- func() { started <- cmd.Start() }
	return <-started
}

// run runs a command in a folder, for at most limit, and returns what it wrote and
// its exit code. Whatever it left running is killed: the output goes to a file, for
// which nobody has to wait.
func run(t testing.TB, limit time.Duration, folder string, env []string, name string, args ...string) (string, int) {
	t.Helper()
	out, err := os.CreateTemp(scratch, "output")
	must(t, err)
	defer os.Remove(out.Name())
	defer out.Close()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = folder, environment(env...), out, out
	must(t, start(cmd))
	ended := make(chan struct{})
	go func() {
		select {
		case <-ctx.Done():
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		case <-ended:
		}
	}()
	err = cmd.Wait()
	close(ended)
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	text, readErr := os.ReadFile(out.Name())
	must(t, readErr)
	if ctx.Err() != nil {
		return fmt.Sprintf("%s\nnot finished after %v", text, limit), -1
	}
	if cmd.ProcessState == nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// succeed is run for a command that must succeed.
func succeed(t testing.TB, limit time.Duration, folder string, env []string, name string, args ...string) string {
	t.Helper()
	out, code := run(t, limit, folder, env, name, args...)
	if code != 0 {
		t.Fatalf("%s %q: exit code %d\n%s", name, args, code, tail(out))
	}
	return out
}

// tail returns the end of an output.
func tail(text string) string { return text[max(0, len(text)-6<<10):] }

// inEachWay runs those cases of a suite that apply, in each of the ways, in parallel,
// and prints how many there are, and why the others do not. Each name in reasons has
// to be the name of a case.
func inEachWay(t *testing.T, suite string, names []string, reasons map[string]string, test func(t *testing.T, w way, name string)) {
	t.Helper()
	if len(names) == 0 {
		t.Fatalf("%s has no cases", suite)
	}
	for _, name := range slices.Sorted(maps.Keys(reasons)) {
		if !slices.Contains(names, name) {
			t.Errorf("%s has no case %s, which is said not to apply", suite, name)
		}
	}
	for _, w := range ways {
		var count tally
		t.Run(w.name, func(t *testing.T) {
			for _, name := range names {
				if reasons[name] != "" {
					continue
				}
				t.Run(strings.ReplaceAll(name, "/", "-"), func(t *testing.T) {
					t.Parallel()
					t.Cleanup(func() { count.add(!t.Failed()) })
					test(t, w, name)
				})
			}
		})
		fmt.Printf(
			"nbdsuite: %s, %s: %d cases: %d run, %d passed, %d do not apply\n",
			suite, w.name, len(names), count.ran, count.passed, len(reasons),
		)
	}
	apart := make(map[string][]string)
	for _, name := range names {
		if reason := reasons[name]; reason != "" {
			apart[reason] = append(apart[reason], name)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(apart)) {
		fmt.Printf("nbdsuite:   not applicable, %s: %s\n", reason, strings.Join(apart[reason], " "))
	}
}

// tally counts the cases of a suite.
type tally struct {
	mu          sync.Mutex
	ran, passed int
}

// add counts a case.
func (c *tally) add(passed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ran++
	if passed {
		c.passed++
	}
}
