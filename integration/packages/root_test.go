//go:build packages

package packages

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// release is the release of Debian that packages are installed in.
const release = "bookworm"

// cleanRoot makes a root of Debian once, from where the system has its own
// packages from: dpkg, apt and what they need, and no systemd.
var cleanRoot = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages", "Component: main").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("apt-get indextargets: %w\n%s", err, out)
	}
	var sources []string
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) == 4 && (f[0] == release || strings.HasPrefix(f[0], release+"-")) {
			sources = append(sources, "deb "+strings.Join(f[1:], " "))
		}
	}
	if len(sources) == 0 {
		return "", fmt.Errorf("the system has no packages of Debian's %s", release)
	}
	root := filepath.Join(place, "root")
	args := append([]string{"--quiet", "--variant=apt", "--skip=cleanup/apt", release, root}, sources...)
	if out, err := exec.CommandContext(ctx, "mmdebstrap", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("mmdebstrap: %w\n%s", err, out)
	}
	return root, nil
})

// root is a root of Debian.
type root struct {
	*testing.T
	folder string
}

// newRoot returns a copy of the clean root with more packages of Debian.
func newRoot(t *testing.T, packages ...string) *root {
	t.Helper()
	clean, err := cleanRoot()
	must(t, err)
	r := &root{t, filepath.Join(t.TempDir(), "root")}
	run(t, "cp", "-a", clean, r.folder)
	if len(packages) > 0 {
		r.run("apt-get", append([]string{"install", "-q", "-y", "--no-install-recommends"}, packages...)...)
	}
	return r
}

// inside returns a command that runs in the root, with processes and mounts of
// its own, which end with it.
func (r *root) inside(name string, args []string) []string {
	const begin = `mount -t proc proc "$0/proc" && mount -t tmpfs tmpfs "$0/run" && mount -t tmpfs tmpfs "$0/tmp" && mount --bind /dev "$0/dev" && exec chroot "$0" "$@"`
	return append([]string{"--mount", "--pid", "--fork", "--kill-child", "sh", "-c", begin, r.folder, name}, args...)
}

// run runs a command in the root, which must succeed, and returns what it
// wrote.
func (r *root) run(name string, args ...string) string {
	r.Helper()
	return run(r.T, "unshare", r.inside(name, args)...)
}

// attempt runs a command in the root and returns what it wrote and its exit
// code.
func (r *root) attempt(name string, args ...string) (string, int) {
	r.Helper()
	return attempt(r.T, "unshare", r.inside(name, args)...)
}

// put copies a package of this build into the root and returns its path there.
func (r *root) put(name string) string {
	r.Helper()
	file := packageFile(r.T, name)
	must(r.T, os.MkdirAll(r.folder+"/packages", 0o755))
	run(r.T, "cp", file, r.folder+"/packages/"+name)
	return "/packages/" + name
}

// write writes a file of the root.
func (r *root) write(path, text string) {
	r.Helper()
	must(r.T, os.WriteFile(r.folder+path, []byte(text), 0o644))
}

// read returns a file of the root.
func (r *root) read(path string) string {
	r.Helper()
	text, err := os.ReadFile(r.folder + path)
	must(r.T, err)
	return string(text)
}

// unwatched matches what the package managers, and those who make users, have
// for themselves.
var unwatched = regexp.MustCompile(`^/(packages|root/.rpmdb|proc|run|tmp|dev|var/lib/(dpkg|apt|rpm|systemd)|var/log|var/cache)(/|$)|^/etc/(passwd|group|shadow|gshadow|subuid|subgid)-?$|^/etc/\.pwd\.lock$`)

// files lists the files of the root, each with what it is.
func (r *root) files() map[string]string {
	r.Helper()
	found := make(map[string]string)
	must(r.T, filepath.WalkDir(r.folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, r.folder)
		if unwatched.MatchString(name) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		found[name] = info.Mode().String()
		if info.Mode().IsRegular() {
			text, err := os.ReadFile(path)
			found[name] += fmt.Sprintf(" %x", sha256.Sum256(text))
			return err
		}
		return nil
	}))
	return found
}

// differences says how files differ from those of before.
func differences(before, after map[string]string) []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if now, ok := after[name]; !ok {
			all = append(all, "-"+name)
		} else if now != before[name] {
			all = append(all, "!"+name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if _, ok := before[name]; !ok {
			all = append(all, "+"+name)
		}
	}
	return all
}

// works runs the binary in the root: it is the build of the package, and serves
// a disk through the whole chain to a real client.
func (r *root) works(version string) {
	r.Helper()
	if out := r.run("viablk", "version"); !strings.Contains(out, version) {
		r.Errorf("version %q: %s", version, out)
	}
	if out := r.run("viablk", "up", "--run", `viablk info "$uri" --size`); out != "1073741824\n" {
		r.Errorf("viablk up: %s", out)
	}
	if out := r.run("viablk", "config", "check", "/etc/viablk/target.yaml"); out != "/etc/viablk/target.yaml: ok\n" {
		r.Error(out)
	}
}
