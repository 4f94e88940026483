//go:build packages

package packages

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// names are the packages, of which the first is an image of a container, too.
var names = []string{"viablk", "viablk-verbs", "viablk-rbd"}

// limit bounds every command.
const limit = 5 * time.Minute

// built are the packages of one build, by name and format: "viablk.deb".
type built map[string]string

// builds are two builds of the sources as they are, in two folders, at two
// hours of the day and by two people; made at first use and kept in place.
var (
	place  string
	builds = sync.OnceValues(func() ([2]built, error) {
		var both [2]built
		var failures [2]error
		var work sync.WaitGroup
		for i, environment := range [][]string{{"TZ=UTC", "UMASK=022"}, {"TZ=Asia/Tokyo", "UMASK=077", "LC_ALL=C"}} {
			work.Go(func() {
				both[i], failures[i] = buildCopy(filepath.Join(place, strings.Repeat("copy", i+1)), environment)
			})
		}
		work.Wait()
		for _, err := range failures {
			if err != nil {
				return both, err
			}
		}
		return both, nil
	})
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if place, err = os.MkdirTemp("", "viablk-packages-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(place)
		return m.Run()
	}())
}

// buildCopy copies the sources to a folder and builds all packages there.
func buildCopy(folder string, environment []string) (built, error) {
	const script = `
		umask $UMASK && mkdir -p "$FOLDER"
		git -C "$TOP" ls-files -co --exclude-standard -z |
			tar -C "$TOP" --null -T - -c | tar -C "$FOLDER" --no-same-permissions -x
		echo "gitdir: $(git -C "$TOP" rev-parse --absolute-git-dir)" > "$FOLDER/.git"
		for name in $NAMES; do "$FOLDER/contrib/package/build" $name deb rpm; done
		"$FOLDER/contrib/package/build" viablk oci`
	top, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	if os.Getenv("NFPM") == "" {
		return nil, fmt.Errorf("NFPM names no packager: run make test-packages")
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Env = append(os.Environ(), "TOP="+top, "FOLDER="+folder, "NAMES="+strings.Join(names, " "))
	cmd.Env = append(cmd.Env, environment...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build packages: %w\n%s", err, out)
	}
	packages := make(built)
	patterns := map[string]string{"viablk.oci": "viablk-*.oci.tar"}
	for _, name := range names {
		patterns[name+".deb"], patterns[name+".rpm"] = name+"_*.deb", name+"-[0-9]*.rpm"
	}
	for name, pattern := range patterns {
		found, err := filepath.Glob(filepath.Join(folder, "dist", pattern))
		if err != nil || len(found) != 1 {
			return nil, fmt.Errorf("%d files are %s: %w", len(found), pattern, err)
		}
		packages[name] = found[0]
	}
	return packages, nil
}

// packageFile returns the path of a package.
func packageFile(t *testing.T, name string) string {
	t.Helper()
	both, err := builds()
	must(t, err)
	return both[0][name]
}

// must ends the test if there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run runs a command, which must succeed, and returns what it wrote.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, code := attempt(t, name, args...)
	if code != 0 {
		t.Fatalf("%s %v: exit code %d\n%s", name, args, code, out)
	}
	return out
}

// attempt runs a command and returns what it wrote and its exit code.
func attempt(t *testing.T, name string, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || !cmd.ProcessState.Exited() {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// The same sources make the same bytes.
func TestReproducible(t *testing.T) {
	t.Parallel()
	both, err := builds()
	must(t, err)
	if len(both[0]) != 7 {
		t.Errorf("%d packages", len(both[0]))
	}
	// An image is what its index has digests of; an archive has hours of its own.
	content := func(name, path string) []byte {
		if name == "viablk.oci" {
			return []byte(run(t, "tar", "--extract", "--to-stdout", "--file", path, "index.json"))
		}
		b, err := os.ReadFile(path)
		must(t, err)
		return b
	}
	for name, path := range both[0] {
		other := both[1][name]
		if filepath.Base(path) != filepath.Base(other) {
			t.Errorf("%s and %s are of the same sources", filepath.Base(path), filepath.Base(other))
		}
		if !bytes.Equal(content(name, path), content(name, other)) {
			t.Errorf("%s differs from build to build", name)
		}
	}
}

// The linters of both formats have no error to report.
func TestLint(t *testing.T) {
	t.Parallel()
	for _, name := range names {
		file := packageFile(t, name+".deb")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if out, code := attempt(t, "lintian", "--allow-root", "--fail-on", "error", file); code != 0 {
				t.Errorf("exit code %d\n%s", code, out)
			}
		})
		// The package is not signed, and nfpm does not write which files are
		// binaries.
		allowed := []string{"no-signature", "no-binary"}
		out, _ := attempt(t, "rpmlint", packageFile(t, name+".rpm"))
		if !strings.Contains(out, "1 packages and 0 specfiles checked") {
			t.Errorf("rpmlint %s: %s", name, out)
		}
		for line := range strings.Lines(out) {
			_, complaint, found := strings.Cut(line, ": E: ")
			if found && !slices.Contains(allowed, strings.Fields(complaint)[0]) {
				t.Errorf("rpmlint %s", line)
			}
		}
	}
}
