//go:build suites

package suites

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// newest is the release of Debian whose sources of nbd and libnbd are used: the
// suites grew since the oldest release that viablk is tested on.
const newest = "trixie"

// fetchLimit bounds a download, buildLimit a step of a build.
const (
	fetchLimit = 3 * time.Minute
	buildLimit = 5 * time.Minute
)

// once lets one test at a time fetch and build.
var once sync.Mutex

// sources returns a folder with what is in a Debian source package, unpacked,
// of a release, or of the version if it begins with "=". prepare, if there is
// one, builds in it. Both happen once in a folder that is kept.
func sources(t *testing.T, name, version string, only []string, prepare func(t *testing.T, folder string)) string {
	t.Helper()
	once.Lock()
	defer once.Unlock()
	folder := filepath.Join(keep, name)
	if _, err := os.Stat(filepath.Join(folder, ".done")); err == nil {
		return folder
	} else if !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	testbed.Must(t, os.RemoveAll(folder))
	testbed.Must(t, os.MkdirAll(folder, 0o755))
	archive := download(t, name, version)
	// The packager's user would own the keys, which viablk then refuses.
	args := append([]string{"-C", folder, "--no-same-owner", "--strip-components=1", "-xf", archive}, only...)
	succeed(t, fetchLimit, keep, nil, "tar", args...)
	testbed.Must(t, os.Remove(archive))
	if prepare != nil {
		prepare(t, folder)
	}
	testbed.Must(t, os.WriteFile(filepath.Join(folder, ".done"), nil, 0o600))
	return folder
}

// download returns the path of the upstream sources in a Debian source package,
// which apt has checked.
func download(t *testing.T, name, version string) string {
	t.Helper()
	in := filepath.Join(keep, "download", name)
	testbed.Must(t, os.RemoveAll(in))
	testbed.Must(t, os.MkdirAll(in, 0o755))
	if !strings.HasPrefix(version, "=") {
		version = "/" + version
	}
	args := append(aptOptions(t), "source", "--download-only", "-q", name+version)
	succeed(t, fetchLimit, in, nil, "apt-get", args...)
	found, err := filepath.Glob(filepath.Join(in, "*.orig.tar.*z"))
	testbed.Must(t, err)
	if len(found) != 1 {
		t.Fatalf("the sources of %s are %q, not one archive", name, found)
	}
	return found[0]
}

// aptOptions makes a place where apt knows about sources, beside that of the
// system, which does not, and returns the options with which apt uses it.
func aptOptions(t *testing.T) []string {
	t.Helper()
	place := filepath.Join(keep, "apt")
	list := filepath.Join(place, "sources.list")
	options := []string{
		"-o", "Dir::Etc::SourceList=" + list, "-o", "Dir::Etc::SourceParts=-",
		"-o", "Dir::State::Lists=" + filepath.Join(place, "lists"), "-o", "Dir::Cache=" + filepath.Join(place, "cache"),
		"-o", "APT::Sandbox::User=root",
	}
	if _, err := os.Stat(filepath.Join(place, ".done")); err == nil {
		return options
	}
	for _, folder := range []string{"lists/partial", "cache/archives/partial"} {
		testbed.Must(t, os.MkdirAll(filepath.Join(place, folder), 0o755))
	}
	testbed.Must(t, os.WriteFile(list, []byte(deb(t)), 0o600))
	succeed(t, fetchLimit, place, nil, "apt-get", append(options, "update", "-q")...)
	testbed.Must(t, os.WriteFile(filepath.Join(place, ".done"), nil, 0o600))
	return options
}

// deb returns where there are sources: wherever the system has the packages of
// its own release from, and beside it the newest release.
func deb(t *testing.T) string {
	t.Helper()
	release := ""
	text, err := os.ReadFile("/etc/os-release")
	testbed.Must(t, err)
	for line := range strings.Lines(string(text)) {
		if name, found := strings.CutPrefix(strings.TrimSpace(line), "VERSION_CODENAME="); found {
			release = name
		}
	}
	out := succeed(t, fetchLimit, keep, nil, "apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages")
	var lines []string
	add := func(uri, release string) {
		line := fmt.Sprintf("deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n", uri, release)
		lines = append(lines, line)
	}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "main" || f[1] != release && !strings.HasPrefix(f[1], release+"-") {
			continue
		}
		if add(f[0], f[1]); f[1] == release && release != newest {
			add(f[0], newest)
		}
	}
	if release == "" || len(lines) == 0 {
		t.Fatalf("no sources of Debian packages of release %q in:\n%s", release, out)
	}
	return strings.Join(lines, "")
}
