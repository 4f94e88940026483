package integration

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// builds is where this run's binaries are; TestMain removes it.
var builds string

func TestMain(m *testing.M) {
	os.Exit(runAll(m))
}

func runAll(m *testing.M) int {
	var err error
	if builds, err = os.MkdirTemp("", "viablk-build-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(builds)
	if err := noteSources(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// noteSources looks at every source of the program. The go command keeps a test
// result until a file changes that the test looked at, and nothing here imports
// the command.
func noteSources() error {
	return filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != ".." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case filepath.Ext(path) == ".go" && !strings.HasSuffix(path, "_test.go"):
			_, err = os.Stat(path)
		}
		return err
	})
}

// The program with and without race detector, built at first use.
var (
	checkedBinary = sync.OnceValues(func() (string, error) { return build("viablk-race", "1", "-race") })
	plainBinary   = sync.OnceValues(func() (string, error) { return build("viablk", "0") })
)

// build compiles the program.
func build(name, cgo string, flags ...string) (string, error) {
	path := filepath.Join(builds, name)
	args := append([]string{"build", "-o", path}, flags...)
	cmd := exec.Command("go", append(args, "github.com/viablk/viablk/cmd/viablk")...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return path, nil
}

// program returns the program as this test binary was built.
func program(t testing.TB) string {
	t.Helper()
	if !raceDetector {
		return plain(t)
	}
	path, err := checkedBinary()
	must(t, err)
	return path
}

// plain returns the program without race detector, for what measures memory and
// time.
func plain(t testing.TB) string {
	t.Helper()
	path, err := plainBinary()
	must(t, err)
	return path
}
