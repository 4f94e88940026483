//go:build packages

package packages

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// unpack unpacks a package and returns the folder.
func unpack(t *testing.T, name string) string {
	t.Helper()
	folder := t.TempDir()
	run(t, "dpkg-deb", "-x", packageFile(t, name), folder)
	return folder
}

// The pages of the manual are understood by groff and by mandoc, and found by
// apropos.
func TestManual(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob(unpack(t, "viablk.deb") + "/usr/share/man/man*/*.gz")
	must(t, err)
	if len(pages) < 20 {
		t.Fatalf("%d pages", len(pages))
	}
	for _, page := range pages {
		name := strings.TrimSuffix(filepath.Base(page), ".gz")
		cmd := exec.Command("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page)
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "MANROFFSEQ=", "MANWIDTH=80")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if out, err := cmd.Output(); err != nil || stderr.Len() > 0 || len(out) < 500 {
			t.Errorf("man %s: %v, %d bytes\n%s", name, err, len(out), &stderr)
		}
		if out, code := attempt(t, "mandoc", "-Tlint", "-W", "warning", page); code != 0 || out != "" {
			t.Errorf("mandoc %s: exit code %d\n%s", name, code, out)
		}
		title := strings.TrimSuffix(strings.TrimSuffix(name, ".1"), ".5")
		if out := run(t, "lexgrog", page); !strings.Contains(out, fmt.Sprintf("%q", title+" - ")[:len(title)+3]) {
			t.Errorf("lexgrog %s: %s", name, out)
		}
	}
}

// Each command that the binary lists, at any depth, has a page.
func TestManualOfBinary(t *testing.T) {
	t.Parallel()
	root := unpack(t, "viablk.deb")
	var walk func(args ...string) int
	walk = func(args ...string) int {
		page := filepath.Join(root, "usr/share/man/man1", strings.Join(append([]string{"viablk"}, args...), "-")+".1.gz")
		if _, err := os.Stat(page); err != nil {
			t.Errorf("the command %v has no page: %v", args, err)
		}
		seen := 1
		help := run(t, root+"/usr/bin/viablk", append(args, "--help")...)
		_, list, _ := strings.Cut(help, "Available Commands:\n")
		list, _, _ = strings.Cut(list, "\n\n")
		for line := range strings.Lines(list) {
			if name := strings.Fields(line)[0]; name != "help" {
				seen += walk(append(args[:len(args):len(args)], name)...)
			}
		}
		return seen
	}
	if seen := walk(); seen < 20 {
		t.Errorf("%d commands", seen)
	}
}
