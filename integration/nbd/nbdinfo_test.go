package nbd

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

// exportInfo is what nbdinfo says of an export in every case but those that a
// test changes.
func exportInfo(change map[string]any) map[string]any {
	info := map[string]any{
		"is_rotational": false, "is_read_only": false, "can_cache": true, "can_df": true,
		"can_fast_zero": true, "can_flush": true, "can_fua": true, "can_multi_conn": true,
		"can_trim": true, "can_zero": true,
		"contexts":           []any{"base:allocation"},
		"block_size_minimum": 1.0, "block_size_preferred": 4096.0, "block_size_maximum": float64(64 << 20),
	}
	maps.Copy(info, change)
	return info
}

// readOnlyInfo is exportInfo for an export that takes no writes.
func readOnlyInfo(change map[string]any) map[string]any {
	info := exportInfo(map[string]any{
		"is_read_only": true, "can_flush": true, "can_fua": true,
		"can_trim": false, "can_zero": false, "can_fast_zero": false,
	})
	maps.Copy(info, change)
	return info
}

// checkInfo compares every field with what is expected.
func checkInfo(t *testing.T, got, want map[string]any) {
	t.Helper()
	for key := range want {
		if _, ok := got[key]; !ok {
			t.Errorf("%s is missing", key)
		}
	}
	for key, value := range got {
		if expected, ok := want[key]; !ok || !reflect.DeepEqual(value, expected) {
			t.Errorf("%s is %v, not %v", key, value, expected)
		}
	}
}

func TestNbdinfoSeesWhatTheExportPromises(t *testing.T) {
	const odd = 9<<20 + 3*512
	sized := map[string]any{"export-size": float64(odd), "export-size-str": fmt.Sprint(odd)}
	cases := []struct {
		name string
		spec func(testing.TB) string
		want map[string]any
	}{
		{"memory", func(testing.TB) string { return fmt.Sprintf("memory:%d", odd) }, exportInfo(sized)},
		{"file", func(t testing.TB) string { return "file:" + testbed.SparseFile(t, odd) }, exportInfo(sized)},
		{"read-only", func(testing.TB) string { return fmt.Sprintf("null:%d?readonly=1", odd) }, readOnlyInfo(sized)},
		{"huge", func(testing.TB) string { return "null:4EiB" }, exportInfo(map[string]any{
			"export-size": float64(4 << 60), "export-size-str": "4E",
		})},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, w := range testbed.Ways {
				t.Run(w.Name, func(t *testing.T) {
					t.Parallel()
					if c.name == "read-only" && w.Name == "chain" {
						w.Serve = chainReadOnly
					}
					s := w.Serve(t, testbed.Program(t), testbed.Disk{Name: "disk", Spec: c.spec(t)})
					want := maps.Clone(c.want)
					want["export-name"], want["uri"] = "disk", s.URI
					if w.Name == "chain" {
						want["description"] = s.Target.URI("disk", "via+shm")
					}
					got := testbed.NBDInfo(t, "--no-content", s.URI)
					if len(got) != 1 {
						t.Fatalf("%d exports", len(got))
					}
					if c.spec(t)[:4] == "file" {
						want["is_rotational"] = got[0]["is_rotational"] // depends on the machine
					}
					checkInfo(t, got[0], want)
				})
			}
		})
	}
}

// chainReadOnly is the chain for a disk that takes no writes: its initiator
// says that it will not write.
func chainReadOnly(t testing.TB, binary string, d testbed.Disk) testbed.Service {
	p := testbed.StartTarget(t, binary, "via+shm:///?socket="+filepath.Join(testbed.Folder(t), "v"), d)
	a := testbed.AttachDisk(t, binary, p, d.Name, "--read-only")
	return testbed.Service{URI: a.URI(d.Name, "nbd+unix"), Target: p, Attach: a}
}

// TestNbdinfoListsEveryExport has a configuration file: descriptions and the
// default export have no flags.
func TestNbdinfoListsEveryExport(t *testing.T) {
	const text = `
target:
  exports:
    - {name: plain, backend: "memory:1MiB"}
    - {name: "Größe x/y", backend: "memory:2MiB", description: "ein Datenträger", default: true}
    - {name: kept, backend: "null:3MiB", read_only: true, description: "for reading"}
`
	place := testbed.Folder(t)
	file := filepath.Join(place, "viablk.yaml")
	testbed.Must(t, os.WriteFile(file, []byte(text), 0o600))
	want := map[string]map[string]any{
		"plain":     exportInfo(map[string]any{"export-size": float64(1 << 20), "export-size-str": "1M"}),
		"Größe x/y": exportInfo(map[string]any{"export-size": float64(2 << 20), "export-size-str": "2M", "description": "ein Datenträger"}),
		"kept":      readOnlyInfo(map[string]any{"export-size": float64(3 << 20), "export-size-str": "3M", "description": "for reading"}),
	}
	admin := filepath.Join(place, "admin")
	list := func(t *testing.T, uri string) {
		got := testbed.NBDInfo(t, "--list", "--no-content", uri)
		if len(got) != len(want) {
			t.Errorf("%d exports, not %d", len(got), len(want))
		}
		for _, x := range got {
			name, _ := x["export-name"].(string)
			delete(x, "export-name")
			delete(x, "uri")
			if want[name] == nil {
				t.Errorf("unexpected export %q", name)
				continue
			}
			checkInfo(t, x, want[name])
		}
		// The default export answers to no name.
		if got := testbed.Run(t, "nbdinfo", "--size", uri); got != "2097152\n" {
			t.Errorf("the default export has %q bytes", got)
		}
	}
	t.Run("target", func(t *testing.T) {
		testbed.Start(t, "target", "--config", file, "--admin", admin, "--listen", "nbd+unix:///?socket="+filepath.Join(place, "n"))
		list(t, "nbd+unix:///?socket="+filepath.Join(place, "n"))
	})
	t.Run("up", func(t *testing.T) {
		testbed.Start(t, "up", "--config", file, "--admin", admin, "--nbd", "nbd+unix:///?socket="+filepath.Join(place, "n"))
		list(t, "nbd+unix:///?socket="+filepath.Join(place, "n"))
	})
	t.Run("unknown name", func(t *testing.T) {
		testbed.Start(t, "target", "--config", file, "--admin", admin, "--listen", "nbd+unix:///?socket="+filepath.Join(place, "n"))
		c := testbed.StartTool(t, "nbdinfo", "nbd+unix:///nosuch?socket="+filepath.Join(place, "n"))
		if code := c.Wait(t, testbed.ToolLimit); code != 1 || !strings.Contains(c.Output(), "nosuch") {
			t.Errorf("exit code %d: %s", code, c.Output())
		}
	})
}
