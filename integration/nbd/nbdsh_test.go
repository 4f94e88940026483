package nbd

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

// TestIllegalRequestsHaveTheirErrno sends what libnbd does not let through
// unless it is told so, and asks after each request whether the connection
// still works ("Error values" and "Request types" of the protocol document).
func TestIllegalRequestsHaveTheirErrno(t *testing.T) {
	testbed.Requires(t, "nbdsh")
	want := map[string]string{
		"read across the end": "EINVAL", "read at the end": "EINVAL", "read far behind": "EINVAL",
		"read at 2^63-512": "EINVAL", "read at 2^64-512": "EINVAL",
		"write across the end": "ENOSPC", "write at the end": "ENOSPC", "write at 2^64-512": "ENOSPC",
		"zero across the end": "ENOSPC", "trim across the end": "EINVAL",
		"read nothing": "EINVAL", "write nothing": "EINVAL", "zero nothing": "EINVAL", "trim nothing": "EINVAL",
		"block status":              "EINVAL",
		"read with an unknown flag": "EINVAL", "write with an unknown flag": "EINVAL", "flush with an unknown flag": "EINVAL",
		"trim with NO_HOLE": "EINVAL", "write with REQ_ONE": "EINVAL",
		// These are legal.
		"read odd bytes at odd place": "", "write one byte": "", "read with FUA": "", "flush with FUA": "",
		"read 64 MiB": "", "cache": "", "zero whole disk": "", "trim whole disk": "", "write the last byte": "",
	}
	testbed.EachWay(t, testbed.MemoryDisk("128MiB"), func(t *testing.T, s testbed.Service) {
		out := testbed.Run(t, "nbdsh", "-u", s.URI, "-c", "import runpy; runpy.run_path('testdata/illegal.py', {'h': h})")
		var got map[string]string
		testbed.Must(t, json.Unmarshal([]byte(out), &got))
		for _, name := range slices.Sorted(maps.Keys(want)) {
			if answer, asked := got[name]; !asked || answer != want[name] {
				t.Errorf("%s: %q, not %q", name, answer, want[name])
			}
		}
		if len(got) != len(want) {
			t.Errorf("the script asked %d questions, and %d answers are known", len(got), len(want))
		}
	})
}

func TestReadOnlyExportRefusesEveryWrite(t *testing.T) {
	testbed.Requires(t, "nbdsh")
	want := map[string]string{"write": "EPERM", "zero": "EPERM", "trim": "EPERM", "flush": "", "read": ""}
	for _, w := range testbed.Ways {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			if w.Name == "chain" {
				w.Serve = chainReadOnly
			}
			s := w.Serve(t, testbed.Program(t), testbed.Disk{Name: "disk", Spec: "memory:1MiB?readonly=1"})
			out := testbed.Run(t, "nbdsh", "-u", s.URI, "-c", "import runpy; runpy.run_path('testdata/readonly.py', {'h': h})")
			var got map[string]string
			testbed.Must(t, json.Unmarshal([]byte(out), &got))
			if !maps.Equal(got, want) {
				t.Errorf("%v, not %v", got, want)
			}
		})
	}
}
