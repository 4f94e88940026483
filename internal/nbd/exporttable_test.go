package nbd

import (
	"errors"
	"testing"
)

// TestExportTable: exports are replaced while clients have them, or stay if the
// new ones are wrong. The counts of what is gone stay in the total.
func TestExportTable(t *testing.T) {
	a, b := Export{Name: "a", Device: newMemory(1 << 20)}, Export{Name: "b", Device: newMemory(1 << 20)}
	f := serve(t, Limits{}, a)
	table := f.server.Exports.(*ExportTable)
	p := f.connectExport("", simple)
	p.want(0, 0, cmdRead, 0, 512)
	for _, wrong := range [][]Export{{a, a}, {{Name: "c"}}, {a, {Name: "d", Default: true, Device: b.Device}, {Name: "e", Default: true, Device: b.Device}}} {
		if err := table.Set(wrong...); err == nil {
			t.Errorf("%+v are set", wrong)
		}
	}
	if _, err := table.Export("a"); err != nil {
		t.Errorf("after an error: %v", err)
	}
	if err := table.Set(b); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Export("a"); !errors.Is(err, ErrUnknownExport) {
		t.Errorf("removed export: %v", err)
	}
	if e, err := table.Export(""); err != nil || e.Name != "b" {
		t.Errorf("the only export is not the default: %+v, %v", e, err)
	}
	p.want(0, 0, cmdRead, 0, 512)
	if list := f.server.Status().Exports; len(list) != 1 || list[0].Name != "a" || list[0].Connections != 1 {
		t.Errorf("with a client: %+v", list)
	}
	p.disconnect()
	q := f.connectExport("b", simple)
	q.want(0, 0, cmdRead, 0, 512)
	q.disconnect()
	f.waitForExports("b")
	if n := f.server.Status().Total.Reads; n != 3 {
		t.Errorf("%d reads in all, want 3", n)
	}
}

// waitForExports waits until the server knows of one export only.
func (f *fixture) waitForExports(name string) {
	f.t.Helper()
	for {
		if list := f.server.Status().Exports; len(list) == 1 && list[0].Name == name && list[0].Connections == 0 {
			return
		}
	}
}
