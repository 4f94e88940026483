package main

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/block"
)

// fileExport returns an export of a new file.
func fileExport(t *testing.T, name string, size int64) (x config.Export, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "disk.img")
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, size)); err != nil {
		t.Fatal(err)
	}
	return config.Export{Name: name, Backend: "file:" + path}, path
}

// limitFiles has files of the process grow to a size at most, until it is
// called again.
func limitFiles(t *testing.T, size uint64) (before uint64) {
	t.Helper()
	var l unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_FSIZE, &l)
	before, l.Cur = l.Cur, size
	if err = errors.Join(err, unix.Setrlimit(unix.RLIMIT_FSIZE, &l)); err != nil {
		t.Fatal(err)
	}
	return before
}

// TestAlterIsWhole: of a patch with several keys all is done or nothing,
// whichever cannot be.
func TestAlterIsWhole(t *testing.T) {
	x, path := fileExport(t, "a", 1<<20)
	x.MinimumBlock = 4096
	set, socket := newTestSet(t, x, memoryExport("other"))
	mux := http.NewServeMux()
	newExportAdmin(set, func() []exportStatus { return nil }).handle(mux)
	unchanged := func(patch string) {
		t.Helper()
		st, err := os.Stat(path)
		if err != nil || st.Size() != 1<<20 || set.current()[0].device.Info().Size != 1<<20 {
			t.Errorf("%s: %v bytes, %v", patch, st, err)
		}
		if now := set.inEffect.Load().Config.Target.Exports[0]; !reflect.DeepEqual(now, x) || !reflect.DeepEqual(set.current()[0].Export, x) {
			t.Errorf("%s makes %+v", patch, now)
		}
		d, err := openTestNBD(socket, "a")
		if err != nil {
			t.Fatal(err)
		}
		if i := d.Info(); i.Size != 1<<20 || i.Features&block.ReadOnly != 0 {
			t.Errorf("%s: a client sees %+v", patch, i)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		awaitNoClient(t, set)
	}
	client, err := openTestNBD(socket, "a")
	if err != nil {
		t.Fatal(err)
	}
	code, answer := callMux(mux, http.MethodPatch, "/v1/exports?name=a", `{"size":"2M","read_only":true,"description":"d"}`)
	if code != http.StatusConflict || !strings.Contains(answer.Error.Message, `export "a" does not become read-only: the disk is in use: nbd client`) {
		t.Errorf("below a writer: %d, %+v", code, answer.Error)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	awaitNoClient(t, set)
	unchanged("a patch below a writer")
	for patch, want := range map[string]int{
		`{"size":"2M","limits":{"iops":7},"read_only":true}`:    409,
		`{"size":"2M","backend":"memory:2M","read_only":true}`:  409,
		`{"size":"512K","description":"d","read_only":true}`:    422,
		`{"size":1049088,"description":"d","read_only":true}`:   422, // no multiple of 4096
		`{"size":"2M","clients":["alice"],"read_only":true}`:    422,
		`{"size":"2M","description":"d","default":7}`:           422,
		`{"size":"2M","name":"other","read_only":true}`:         409,
		`{"size":"2M","description":"d","maximum_payload":"1"}`: 409,
	} {
		if code, answer := callMux(mux, http.MethodPatch, "/v1/exports?name=a", patch); code != want {
			t.Errorf("%s: %d, %+v", patch, code, answer.Error)
		}
		unchanged(patch)
	}
	patch := `{"size":"2M","description":"d","read_only":true}`
	before := limitFiles(t, 1<<20)
	code, answer = callMux(mux, http.MethodPatch, "/v1/exports?name=a", patch)
	limitFiles(t, before)
	if code != 422 || len(answer.Error.Problems) != 1 || answer.Error.Problems[0].Key != "size" || !strings.Contains(answer.Error.Message, "file too large") {
		t.Errorf("a file that cannot grow: %d, %+v", code, answer.Error)
	}
	unchanged("a patch whose size fails")
	for range 2 {
		if code, answer := callMux(mux, http.MethodPatch, "/v1/exports?name=a", patch); code != 200 {
			t.Errorf("%s: %d, %+v", patch, code, answer.Error)
		}
		d, err := openTestNBD(socket, "a")
		if err != nil {
			t.Fatal(err)
		}
		if i := d.Info(); i.Size != 2<<20 || i.Features&block.ReadOnly == 0 || set.current()[0].Description != "d" {
			t.Errorf("a client sees %+v", i)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitNoClient waits until the server knows that no client has the first disk.
func awaitNoClient(t *testing.T, set *exportSet) {
	t.Helper()
	eventually(t, "the end of the client", func() bool { return len(set.current()[0].reservations.Clients()) == 0 })
}

// TestReloadReadOnly: what an administrator has made read-only is what the file
// says after a reload; a reload that would take the disk from a writer changes
// nothing.
func TestReloadReadOnly(t *testing.T) {
	x, _ := fileExport(t, "a", 1<<20)
	set, socket := newTestSet(t, x)
	reload := func(exports ...config.Export) error {
		set.load = func() (config.Effective, error) {
			c := set.inEffect.Load().Config
			c.Target.Exports = exports
			return config.Effective{Config: c, Settings: c.Settings()}, nil
		}
		return set.reload(t.Context(), nil)
	}
	opens := func(what string, writable bool) (client block.Device) {
		t.Helper()
		client, err := openTestNBD(socket, "a")
		if err != nil {
			t.Fatal(err)
		}
		if got := client.Info().Features&block.ReadOnly == 0; got != writable {
			t.Errorf("%s: writable is %v", what, got)
		}
		return client
	}
	ends := func(client block.Device) {
		t.Helper()
		if err := client.Close(); err != nil {
			t.Fatal(err)
		}
		awaitNoClient(t, set)
	}
	if _, err := set.alter(t.Context(), "a", []byte(`{"read_only":true}`)); err != nil {
		t.Fatal(err)
	}
	ends(opens("changed", false))
	if err := reload(x); err != nil {
		t.Fatal(err)
	}
	writer := opens("reloaded", true)
	read := x
	read.ReadOnly = true
	if err := reload(read, memoryExport("b")); err == nil || !strings.Contains(err.Error(), "nbd client") {
		t.Errorf("a reload below a writer: %v", err)
	}
	if n := len(set.current()); n != 1 {
		t.Errorf("it leaves %d exports", n)
	}
	ends(writer)
	ends(opens("a reload that was refused", true))
	broken := memoryExport("c")
	broken.Backend = "file:/missing/file"
	if err := reload(read, broken); err == nil {
		t.Error("a disk that is missing is exported")
	}
	ends(opens("a reload that was refused", true))
	if err := reload(read, memoryExport("b")); err != nil {
		t.Fatal(err)
	}
	ends(opens("read-only by the file", false))
}
