//go:build suites

package suites

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/program"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/netns"
)

// keepVariable names a folder for sources and what is built of them, which
// stays, so that a developer of the tests need not fetch and build each time.
const keepVariable = "VIABLK_SUITES"

// scratch is the folder of everything; keep is where sources are.
var scratch, keep string

func TestMain(m *testing.M) {
	os.Exit(runAll(m))
}

func runAll(m *testing.M) int {
	var err error
	if scratch, err = os.MkdirTemp("", "viablk-suites"); err != nil {
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

// shim is the program behind the names of other servers.
var shim = sync.OnceValues(program.Build{Package: "integration/suites/shim"}.Path)

// environment is what commands get: that of this process, with the system's
// tools and additions.
func environment(more ...string) []string {
	return slices.Concat(os.Environ(), []string{
		"PATH=" + testbed.ToolPath, "LC_ALL=C", "TMPDIR=" + scratch,
		"GORACE=halt_on_error=1 atexit_sleep_ms=50 exitcode=66 log_path=" + filepath.Join(races(), "report"),
	}, more)
}

// host returns a network namespace with nothing but a loopback device, where a
// case has all ports to itself: libnbd's cases choose one that no socket
// listens at, which an outgoing connection of another case may have.
func host(t testing.TB) testbed.Place {
	n, err := netns.New()
	testbed.Must(t, err)
	t.Cleanup(func() { testbed.Must(t, n.Close()) })
	testbed.Must(t, n.Loopback())
	return func(cmd *exec.Cmd) error {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		return n.Start(cmd)
	}
}

// run runs a command in a folder, for at most limit, and returns what it wrote
// and its exit code. run kills the processes that the command left behind: the
// output goes to a file, so that no reader waits for them.
func run(
	t testing.TB, at testbed.Place, limit time.Duration, folder string, env []string, name string, args ...string,
) (string, int) {
	t.Helper()
	out, err := os.CreateTemp(scratch, "output")
	testbed.Must(t, err)
	defer os.Remove(out.Name())
	defer out.Close()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = folder, environment(env...), out, out
	testbed.Must(t, at(cmd))
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
	testbed.Must(t, readErr)
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
	out, code := run(t, testbed.StartCommand, limit, folder, env, name, args...)
	if code != 0 {
		t.Fatalf("%s %q: exit code %d\n%s", name, args, code, tail(out))
	}
	return out
}

// tail returns the end of an output.
func tail(text string) string { return text[max(0, len(text)-6<<10):] }

// inEachWay runs those cases of a suite that apply, in each of the ways, in
// parallel, and prints how many there are, and why the others do not. With
// -short the first case runs in the first way, the next one in the other way,
// and so on. Each name in reasons has to be the name of a case.
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
	for j, w := range ways {
		var count counters
		t.Run(w.name, func(t *testing.T) {
			for i, name := range names {
				if reasons[name] != "" || testing.Short() && i%len(ways) != j {
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
			"suites: %s, %s: %d cases: %d run, %d passed, %d do not apply\n",
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
		fmt.Printf("suites:   not applicable, %s: %s\n", reason, strings.Join(apart[reason], " "))
	}
}

// counters counts the cases of a suite.
type counters struct {
	mu          sync.Mutex
	ran, passed int
}

// add counts a case.
func (c *counters) add(passed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ran++
	if passed {
		c.passed++
	}
}
