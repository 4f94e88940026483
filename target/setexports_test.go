package target_test

import (
	"bytes"
	"testing"

	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/target/reserve"
)

// TestSetExports: exports come and go. Sessions keep what they have open, and
// what stays keeps its counters.
func TestSetExports(t *testing.T) {
	stays, leaves := disk(t, "stays"), disk(t, "leaves")
	stays.Reservations, leaves.Reservations = reserve.New(stays.Device, nil), reserve.New(leaves.Device, nil)
	comes := disk(t, "comes")
	t.Cleanup(func() { must(t, comes.Device.Close()) })
	r := newRig(t, target.Config{}, stays, leaves)
	a, b := r.attach(t, "stays"), r.attach(t, "leaves")
	for _, s := range []*session{a, b} {
		must(t, s.writeInline(0, []byte("before before...")[:16:16]))
	}
	waitFor(t, "the writes in the status", func() bool {
		list := r.server.Status().Exports
		return list[0].Stats.Writes == 1 && list[1].Stats.Writes == 1
	})
	for _, wrong := range [][]target.Export{{stays, stays}, {stays, {Name: "none"}}} {
		if err := r.server.SetExports(wrong); err == nil {
			t.Error("wrong exports are set")
		}
	}
	if list := r.server.Status().Exports; len(list) != 2 {
		t.Errorf("after an error the exports are %+v", list)
	}
	must(t, r.server.SetExports([]target.Export{comes, stays}))
	list := r.server.Status().Exports
	if len(list) != 2 || list[0].Name != "comes" || list[1].Name != "stays" || list[1].Stats.Writes != 1 {
		t.Errorf("exports %+v", list)
	}
	must(t, b.writeInline(4096, []byte("and after after.")[:16:16]))
	c := r.attach(t, "comes")
	for _, s := range []*session{a, c} {
		must(t, s.writeInline(4096, []byte("and after after.")[:16:16]))
	}
	closed := make(chan struct{})
	leaves.Reservations.Retire(func() { close(closed) })
	must(t, b.close())
	<-closed
	must(t, r.server.Forget(leaves.Reservations))
	for _, s := range []*session{a, c} {
		must(t, s.close())
	}
}

// TestForgetMappedDisk: the registrations of a mapped file end before its
// memory does, though the connection goes on that made them.
func TestForgetMappedDisk(t *testing.T) {
	mapped, _, content := mappedDisk(t, "mapped")
	mapped.Reservations = reserve.New(mapped.Device, nil)
	stays := disk(t, "stays")
	r := newRig(t, target.Config{CopyMode: "zerocopy"}, mapped, stays)
	reader := r.reader(t, "mapped")
	for range 4 {
		got, err := reader.read(0, 1<<20, wire.StatusOK)
		if must(t, err); !bytes.Equal(got, content[:1<<20]) {
			t.Fatal("other bytes")
		}
	}
	if s := r.server.Status().Copy.Cache; s == nil || s.Regions == 0 {
		t.Fatalf("nothing is registered: %+v", s)
	}
	gone := make(chan struct{})
	mapped.Reservations.Retire(func() { close(gone) })
	var closed wire.CloseResponse
	must(t, reader.s.control.ask(&wire.CloseRequest{ID: 8, PathEpoch: 1, OpenID: 1, Export: reader.s.export.Export}, &closed))
	<-gone
	must(t, r.server.SetExports([]target.Export{stays}))
	if s := r.server.Status(); s.Copy != nil {
		t.Errorf("the export is still there: %+v", s.Copy)
	}
	for range 2 {
		must(t, r.server.Forget(mapped.Reservations))
	}
	again := mapped
	again.Reservations = reserve.New(mapped.Device, nil)
	must(t, r.server.SetExports([]target.Export{again}))
	if s := r.server.Status().Copy.Cache; s == nil || s.Regions != 0 {
		t.Errorf("registrations stay: %+v", s)
	}
	must(t, reader.s.close())
}
