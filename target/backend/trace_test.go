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

// tracedDisk tells the test binary that it is the traced child, and of which
// disk.
const tracedDisk = "VIABLK_TEST_TRACED_DISK"

// TestTracedChild is the program that TestDurabilityReachesTheKernel traces.
func TestTracedChild(t *testing.T) {
	spec := os.Getenv(tracedDisk)
	if spec == "" {
		return // an ordinary run: there is nothing to check here
	}
	d := mustOpen(t, spec, Options{})
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

// A mapped file is written, and made durable, by the calls of a file.
func TestDurabilityReachesTheKernel(t *testing.T) {
	for _, scheme := range []string{"file:", "mmap:"} {
		t.Run(scheme, func(t *testing.T) { checkDurability(t, scheme+newFile(t, 1<<20)) })
	}
}

func checkDurability(t *testing.T, spec string) {
	log := filepath.Join(t.TempDir(), "log")
	child := exec.Command("strace", "-f", "-qq", "-s", "64", "-o", log,
		"-e", "trace=pwrite64,pwritev2,fdatasync,fallocate,newfstatat",
		os.Args[0], "-test.run=^TestTracedChild$")
	child.Env = append(os.Environ(), tracedDisk+"="+spec, "GORACE=atexit_sleep_ms=0")
	if out, err := child.CombinedOutput(); err != nil {
		t.Fatalf("strace: %v\n%s", err, out)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	calls := callsByMark(string(text))
	for mark, want := range map[string]string{
		"write": "fallocate,pwrite64", // of the chunk; the next one is in it
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
