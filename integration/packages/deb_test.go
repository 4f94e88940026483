//go:build packages

package packages

import (
	"debug/elf"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// versionOf returns the version of a package.
func versionOf(t *testing.T, name string) string {
	t.Helper()
	return strings.TrimSuffix(strings.TrimSpace(run(t, "dpkg-deb", "-f", packageFile(t, name), "Version")), "-1")
}

// In a root with neither systemd nor anything else that is not needed, the
// package is installed alone, works, and goes without a trace.
func TestDebWithoutSystemd(t *testing.T) {
	t.Parallel()
	r := newRoot(t)
	file := r.put("viablk.deb")
	before := r.files()
	if out := r.run("apt-get", "install", "-q", "-y", "--no-install-recommends", file); !strings.Contains(out, "0 upgraded, 1 newly installed") {
		t.Error(out)
	}
	r.works(versionOf(t, "viablk.deb"))
	r.testUp()
	if out, code := r.attempt("ldd", "/usr/bin/viablk"); code == 0 || !strings.Contains(out, "not a dynamic executable") {
		t.Errorf("exit code %d: %s", code, out)
	}
	r.run("apt-get", "remove", "-q", "-y", "viablk")
	if got := differences(before, r.files()); !slices.Equal(got, []string{"+/etc/viablk", "+/etc/viablk/target.yaml"}) {
		t.Errorf("removed: %q", got)
	}
	r.run("dpkg", "--purge", "viablk")
	if got := differences(before, r.files()); len(got) != 0 {
		t.Errorf("purged: %q", got)
	}
}

// testUp runs what README shows first.
func (r *root) testUp() {
	r.Helper()
	const script = `
		viablk up > /tmp/out & up=$!
		until grep -q '^try:' /tmp/out; do kill -0 $up; sleep 0.05; done
		viablk info "$(sed -n 's/^disk0 .* //p' /tmp/out)"
		kill $up && wait $up`
	if out := r.run("sh", "-ec", script); !strings.Contains(out, "1GiB") && !strings.Contains(out, "1073741824") {
		r.Error(out)
	}
}

// In a root with systemd the units are right, their user is made, and what an
// administrator did outlives upgrades.
func TestDebWithSystemd(t *testing.T) {
	t.Parallel()
	r := newRoot(t, "systemd", "udev", "kmod")
	file := r.put("viablk.deb")
	before := r.files()
	r.run("dpkg", "-i", file)
	if users := r.read("/etc/passwd"); !regexp.MustCompile(`(?m)^viablk:[^:]*:\d+:\d+:viablk target:/var/lib/viablk:/usr/sbin/nologin$`).MatchString(users) {
		t.Errorf("no user viablk: %s", users)
	}
	units := []string{"viablk-target.service", "viablk-target.socket", "viablk@nbd0.service"}
	if out := r.run("systemd-analyze", append([]string{"verify", "--man=no"}, units...)...); out != "" {
		t.Error(out)
	}
	if out, _ := r.attempt("systemctl", "list-unit-files", "--state=enabled", "viablk*"); !strings.Contains(out, "0 unit files listed") {
		t.Errorf("units are enabled: %s", out)
	}
	r.run("systemctl", append([]string{"enable"}, units...)...)
	r.write("/etc/viablk/target.yaml", "target:\n  connections: 7\n")
	r.write("/etc/viablk/other.yaml", "")
	installed := r.files()

	r.run("dpkg", "-i", file) // over itself
	if got := differences(installed, r.files()); len(got) != 0 {
		t.Errorf("an upgrade changed %q", got)
	}
	r.works(versionOf(t, "viablk.deb"))

	must(t, os.MkdirAll(r.folder+"/var/lib/viablk", 0o700))
	r.write("/var/lib/viablk/disk.img", "data")
	r.run("dpkg", "--purge", "viablk")
	if got := differences(before, r.files()); !slices.Equal(got, []string{
		"+/etc/viablk", "+/etc/viablk/other.yaml", "+/var/lib/viablk", "+/var/lib/viablk/disk.img",
	}) {
		t.Errorf("purged: %q", got)
	}
	must(t, os.RemoveAll(r.folder+"/var/lib/viablk"))
	must(t, os.RemoveAll(r.folder+"/etc/viablk"))
	r.run("dpkg", "-i", file)
	must(t, os.MkdirAll(r.folder+"/var/lib/viablk", 0o700))
	r.run("dpkg", "--purge", "viablk")
	if got := differences(before, r.files()); len(got) != 0 {
		t.Errorf("purged again: %q", got)
	}
}

// A package that is linked to libraries and the static one take each other's
// place, with the configuration as it was.
func TestDebLinked(t *testing.T) {
	for name, libraries := range map[string][]string{
		"viablk-verbs": {"libibverbs1", "librdmacm1"}, "viablk-rbd": {"librbd1", "librados2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			exchange(t, name, libraries)
		})
	}
}

func exchange(t *testing.T, name string, libraries []string) {
	r := newRoot(t)
	static, linked := r.put("viablk.deb"), r.put(name+".deb")
	before := r.files()
	install := []string{"install", "-q", "-y", "--no-install-recommends"}
	r.run("apt-get", append(install, static)...)
	r.write("/etc/viablk/target.yaml", "target:\n  connections: 7\n")
	r.run("apt-get", append(install, "-o", "Dpkg::Options::=--force-confold", linked)...)
	if out := r.run("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", "viablk*"); !strings.Contains(out, name+" installed\n") || strings.Contains(out, "viablk installed\n") {
		t.Error(out)
	}
	r.works(versionOf(t, name+".deb"))
	if out := r.run("ldd", "/usr/bin/viablk"); !strings.Contains(out, "libc.so.6") || strings.Contains(out, "not found") {
		t.Error(out)
	}
	r.checkSymbols()
	// Purging the removed package leaves the files of the other one.
	r.attempt("dpkg", "--purge", "viablk")
	if text := r.read("/etc/viablk/target.yaml"); !strings.Contains(text, "connections: 7") {
		t.Errorf("the configuration is %q", text)
	}
	r.works(versionOf(t, name+".deb"))
	r.run("apt-get", append(install, "-o", "Dpkg::Options::=--force-confold", static)...)
	r.works(versionOf(t, "viablk.deb"))
	r.run("apt-get", "purge", "-q", "-y", "viablk")
	r.attempt("dpkg", "--purge", name)
	r.run("apt-get", append([]string{"purge", "-q", "-y", "--auto-remove"}, libraries...)...)
	if got := differences(before, r.files()); len(got) != 0 {
		t.Errorf("purged: %q", got)
	}
}

// checkSymbols checks that the binary needs no newer libc than its package
// says.
func (r *root) checkSymbols() {
	r.Helper()
	f, err := elf.Open(filepath.Join(r.folder, "usr/bin/viablk"))
	must(r.T, err)
	defer f.Close()
	symbols, err := f.ImportedSymbols()
	must(r.T, err)
	for _, s := range symbols {
		if version, ok := strings.CutPrefix(s.Version, "GLIBC_"); ok {
			if _, code := r.attempt("dpkg", "--compare-versions", version, "le", "2.34"); code != 0 {
				r.Errorf("%s needs libc6 %s", s.Name, version)
			}
		}
	}
}
