//go:build packages

package packages

import (
	"slices"
	"strings"
	"testing"
)

// An rpm has the files of the deb, is installed in a root with its scripts, and
// removed from it.
func TestRPM(t *testing.T) {
	t.Parallel()
	for _, name := range names {
		if out := run(t, "rpm", "-K", packageFile(t, name+".rpm")); !strings.Contains(out, "digests OK") {
			t.Error(out)
		}
		if got, want := filesOfRPM(t, name+".rpm"), filesOfDeb(t, name+".deb"); !slices.Equal(got, want) {
			t.Errorf("%s: rpm has %q\ndeb has %q", name, got, want)
		}
	}
	for name, library := range map[string]string{"viablk-verbs": "libibverbs.so.1()(64bit)", "viablk-rbd": "librbd.so.1()(64bit)"} {
		if out := run(t, "rpm", "-qp", "--provides", "--requires", "--conflicts", "--obsoletes", packageFile(t, name+".rpm")); !strings.Contains(out, "\nviablk\n") || !strings.Contains(out, "viablk = ") || !strings.Contains(out, library) {
			t.Error(out)
		}
	}
	r := newRoot(t)
	file := packageFile(t, "viablk.rpm")
	before := r.files()
	manage := func(args ...string) {
		t.Helper()
		if out := run(t, "rpm", append([]string{"--root", r.folder, "--nodeps", "--force-debian"}, args...)...); out != "" {
			t.Errorf("rpm %v: %s", args, out)
		}
	}
	manage("-i", file)
	r.works(versionOf(t, "viablk.deb"))
	r.write("/etc/viablk/target.yaml", "target:\n  connections: 7\n")
	manage("-U", "--replacepkgs", file)
	if text := r.read("/etc/viablk/target.yaml"); !strings.Contains(text, "connections: 7") {
		t.Errorf("the configuration is %q", text)
	}
	if out, code := attempt(t, "rpm", "--root", r.folder, "-V", "--nodeps", "viablk"); code != 1 || len(strings.Fields(out)) != 3 || !strings.HasSuffix(strings.TrimSpace(out), "c /etc/viablk/target.yaml") {
		t.Errorf("exit code %d: files differ: %s", code, out)
	}
	out, code := attempt(t, "rpm", "--root", r.folder, "-e", "--force-debian", "viablk")
	if code != 0 || !strings.Contains(out, "target.yaml saved as") {
		t.Errorf("exit code %d: %s", code, out)
	}
	// rpm saves a changed file, and the rest is folders that other packages
	// have in distributions with rpm.
	left := []string{"+/etc/viablk", "+/etc/viablk/target.yaml.rpmsave", "+/usr/lib/sysusers.d", "+/usr/share/fish", "+/usr/share/fish/vendor_completions.d", "+/usr/share/licenses", "+/usr/share/zsh", "+/usr/share/zsh/site-functions"}
	if got := differences(before, r.files()); !slices.Equal(got, left) {
		t.Errorf("removed: %q", got)
	}
}

// filesOfRPM lists the files in an rpm that are in a deb too.
func filesOfRPM(t *testing.T, name string) []string {
	t.Helper()
	var files []string
	folders := make(map[string]bool)
	for line := range strings.Lines(run(t, "rpm", "-qlvp", packageFile(t, name))) {
		if f := strings.Fields(line); strings.HasPrefix(line, "d") {
			folders[f[len(f)-1]] = true
		}
	}
	for file := range strings.Lines(run(t, "rpm", "-qlp", packageFile(t, name))) {
		file = strings.Replace(strings.TrimSpace(file), "zsh/site-functions", "zsh/vendor-completions", 1)
		if !strings.HasPrefix(file, "/usr/share/licenses/") && !folders[file] {
			files = append(files, file)
		}
	}
	slices.Sort(files)
	return files
}

// filesOfDeb lists the files in a deb that are in an rpm too.
func filesOfDeb(t *testing.T, name string) []string {
	t.Helper()
	var files []string
	for line := range strings.Lines(run(t, "dpkg-deb", "-c", packageFile(t, name))) {
		f := strings.Fields(line)
		file := strings.TrimPrefix(f[len(f)-1], ".")
		if strings.HasSuffix(file, "/") || strings.Contains(file, "/lintian/") ||
			strings.HasSuffix(file, "/copyright") || strings.HasSuffix(file, "/changelog.Debian.gz") {
			continue
		}
		files = append(files, file)
	}
	slices.Sort(files)
	return files
}
