package backend

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/viablk/viablk/internal/block"
)

// tracedPath tells the test binary that it is the traced child.
const tracedPath = "VIABLK_TEST_TRACED_FILE"

// TestTracedChild is the program that TestDurabilityReachesTheKernel traces.
func TestTracedChild(t *testing.T) {
	path := os.Getenv(tracedPath)
	if path == "" {
		return // an ordinary run: there is nothing to check here
	}
	d := mustOpen(t, "file:"+path, Options{})
	disk := viewOf(t, d)
	mark := func(name string) { _, _ = os.Stat("/mark-" + name) }
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	mark("write")
	_, err := disk.WriteAt(fill(4096, 1), 0)
	must(err)
	mark("fua")
	_, err = disk.WriteAtFUA(fill(4096, 2), 4096)
	must(err)
	mark("flush")
	must(disk.Sync())
	mark("zero")
	must(disk.WriteZeroes(0, 4096, block.FUA))
	mark("end")
}

func TestDurabilityReachesTheKernel(t *testing.T) {
	path := newFile(t, 1<<20)
	log := filepath.Join(t.TempDir(), "log")
	child := exec.Command("strace", "-f", "-qq", "-s", "64", "-o", log,
		"-e", "trace=pwrite64,pwritev2,fdatasync,fallocate,newfstatat",
		os.Args[0], "-test.run=^TestTracedChild$")
	child.Env = append(os.Environ(), tracedPath+"="+path)
	if out, err := child.CombinedOutput(); err != nil {
		t.Fatalf("strace: %v\n%s", err, out)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	calls := callsByMark(string(text))
	for mark, want := range map[string]string{
		"write": "pwrite64",
		"fua":   "pwritev2 RWF_DSYNC",
		"flush": "fdatasync",
		"zero":  "fallocate,fdatasync",
	} {
		if got := strings.Join(calls[mark], ","); got != want {
			t.Errorf("%s makes the calls %q, want %q", mark, got, want)
		}
	}
}

// callsByMark returns the names of the calls between the marks of the child.
func callsByMark(log string) map[string][]string {
	marks := regexp.MustCompile(`"/mark-(\w+)"`)
	call := regexp.MustCompile(`^\d+ +(pwrite64|pwritev2|fdatasync|fallocate)\(`)
	calls := make(map[string][]string)
	at := ""
	for line := range strings.SplitSeq(log, "\n") {
		if m := marks.FindStringSubmatch(line); m != nil {
			at = m[1]
		}
		if m := call.FindStringSubmatch(line); m != nil {
			name := m[1]
			if strings.Contains(line, "RWF_DSYNC") {
				name += " RWF_DSYNC"
			}
			calls[at] = append(calls[at], name)
		}
	}
	return calls
}
