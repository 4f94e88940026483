package command

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

// TestBenchAsUser measures as a user without rights: between two processes over
// shared memory and RoCE, against another end, and a disk of a target of its
// own over VIA and NBD. A network of its own takes root.
func TestBenchAsUser(t *testing.T) {
	testbed.RequiresRoot(t)
	testbed.Requires(t, "setpriv")
	const unprivileged = 65534
	as := []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"}
	program, place := testbed.ProgramForAll(t), testbed.Folder(t)
	testbed.Must(t, os.Chown(place, unprivileged, unprivileged))
	start := func(args ...string) *testbed.Tool {
		args = slices.Concat(as[1:], []string{program}, args)
		return testbed.StartPath(t, []string{"XDG_RUNTIME_DIR=" + place, "TMPDIR=" + place}, testbed.Locate(as[0]), args...)
	}
	// measure runs a benchmark and returns how many results it has.
	measure := func(args ...string) int {
		t.Helper()
		c := start(append([]string{"bench"}, append(args, "-o", "json")...)...)
		var report struct {
			Schema      string
			Rows, Loads []json.RawMessage
		}
		if err := json.Unmarshal([]byte(testbed.Succeed(t, c)), &report); err != nil || report.Schema == "" {
			t.Fatalf("%s: %v: %s", c, err, c.Output())
		}
		return len(report.Rows) + len(report.Loads)
	}
	short := []string{"--quick", "--mode", "pingpong", "--sizes", "64", "--wait", "poll", "--count", "50"}
	for _, provider := range []string{"shm", "roce"} {
		if n := measure(append([]string{"via", "--provider", provider}, short...)...); n != 1 {
			t.Errorf("%s has %d results", provider, n)
		}
	}
	uri := "via+shm:///?socket=" + filepath.Join(place, "end")
	start("bench", "via", "--listen", uri)
	testbed.Eventually(t, "the other end", func() (any, bool) {
		_, err := os.Stat(filepath.Join(place, "end"))
		return err, err == nil
	})
	if n := measure(append([]string{"via", uri}, short...)...); n != 1 {
		t.Errorf("against another end there are %d results", n)
	}

	via, local := filepath.Join(place, "v"), filepath.Join(place, "n")
	target := start("target", "--export", "disk=memory:16MiB", "--listen", "via+shm:///?socket="+via, "--listen", "nbd+unix:///?socket="+local, "-o", "json")
	testbed.Eventually(t, "the target", func() (any, bool) {
		select {
		case <-target.Ended:
			t.Fatal(target.Output())
		default:
		}
		return target.Output(), target.Stdout.String() != ""
	})
	for _, disk := range []string{"via+shm:///disk?socket=" + via, "nbd+unix:///disk?socket=" + local} {
		if n := measure("disk", disk, "--time", "20ms", "--request-size", "4KiB", "--depth", "4"); n != 1 {
			t.Errorf("%s has %d results", disk, n)
		}
	}

	testbed.RefusedAs(t, as, 77, `--veth: .*operation not permitted: run it as root`, "bench", "via", "--veth", "1500", "--quick")
}
