package target_test

import (
	"errors"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/target/reserve"
)

// TestExportEvents: an initiator hears what comes and goes, one event of a kind
// at a time, and nothing of what came and went before its acknowledgement.
func TestExportEvents(t *testing.T) {
	exports := make(map[string]target.Export)
	for _, name := range []string{"a", "b", "c", "d"} {
		x := disk(t, name)
		x.Reservations = reserve.New(x.Device, nil)
		exports[name] = x
	}
	r := newRig(t, target.Config{KeepAlive: 300 * time.Millisecond}, exports["a"], exports["b"])
	for _, name := range []string{"c", "d"} {
		t.Cleanup(func() { must(t, exports[name].Device.Close()) })
	}
	p := r.peer(t)
	q := p.loginRequest(wire.RoleControl, [16]byte{1}, 0)
	q.Features = wire.FeatureEvents
	must(t, p.login(q))
	set := func(names ...string) {
		t.Helper()
		var list []target.Export
		for _, name := range names {
			list = append(list, exports[name])
		}
		must(t, r.server.SetExports(list))
	}
	want := func(kind wire.EventKind, name string) uint32 {
		t.Helper()
		v, err := p.listen(forever)
		must(t, err)
		if v == nil || v.Kind != kind || v.Name != name || kind == wire.EventExportAdded && v.Size == 0 {
			t.Fatalf("event %+v, want %v of %q", v, kind, name)
		}
		return v.ID
	}
	ack := func(id uint32, kind wire.EventKind) {
		t.Helper()
		b := make([]byte, wire.MaxControlSize)
		n, err := (&wire.EventAck{ID: id, PathEpoch: 1, Kind: kind}).Encode(b)
		must(t, errors.Join(err, p.send(b[:n])))
	}
	set("a", "b", "c")
	added := want(wire.EventExportAdded, "c")
	set("b", "c", "d") // after the first event, and before its ack
	removed := want(wire.EventExportRemoved, "a")
	set("b", "c")
	set("b", "c", "d") // no news
	if v, err := p.listen(30); err != nil || v != nil {
		t.Fatalf("an event before the ack of the last: %+v, %v", v, err)
	}
	ack(added, wire.EventExportAdded)
	ack(want(wire.EventExportAdded, "d"), wire.EventExportAdded)
	ack(removed, wire.EventExportRemoved)
	if v, err := p.listen(30); err != nil || v != nil {
		t.Fatalf("an event of nothing: %+v, %v", v, err)
	}
	must(t, p.close())
}

// TestDrainDisk: the session that has the disk is asked to go and hears what is
// durable; another session goes on; the initiator hears why it does not get the
// disk again.
func TestDrainDisk(t *testing.T) {
	d, stays := newFlushDisk(), disk(t, "stays")
	leaves := target.Export{Name: "leaves", Device: d, Reservations: reserve.New(d, nil)}
	stays.Reservations = reserve.New(stays.Device, nil)
	r := newRig(t, target.Config{}, stays, leaves)
	other := r.attach(t, "stays")
	writer := newID()
	enter := func() (*peer, wire.OpenResponse) {
		p := r.peer(t)
		q := p.loginRequest(wire.RoleControl, newID(), 0)
		q.Features |= wire.FeatureEvents
		must(t, p.login(q))
		var a wire.OpenResponse
		must(t, p.ask(&wire.OpenRequest{ID: 2, PathEpoch: 1, OpenID: 1, Mode: wire.OpenReadWrite, Name: "leaves", Writer: writer}, &a))
		return p, a
	}
	p, a := enter()
	if a.Status != wire.StatusOK {
		t.Fatalf("opened: %+v", a)
	}
	must(t, r.server.SetExports([]target.Export{stays}))
	gone := make(chan struct{})
	leaves.Reservations.Retire(func() { close(gone) })
	for range 2 { // it may be called again
		r.server.DrainDisk(leaves.Reservations)
	}
	for {
		v, err := p.listen(forever)
		if must(t, err); v == nil {
			t.Fatal("no event")
		}
		if v.Kind == wire.EventGoAway {
			break
		}
	}
	var out wire.LogoutResponse
	must(t, p.ask(&wire.Logout{ID: 9, PathEpoch: p.epoch}, &out))
	if !out.Durable || d.flushes.Load() == 0 {
		t.Errorf("durable is %v after %d flushes", out.Durable, d.flushes.Load())
	}
	<-gone
	must(t, other.writeInline(0, []byte("goes on.goes on.")))
	if p, a = enter(); a.Status != wire.StatusNotFound || a.Reason != "the target's administrator has removed the export" {
		t.Errorf("opened again: %+v", a)
	}
	must(t, p.close())
	must(t, other.close())
}

// TestDrainDiskOfTwoPaths: both control connections ask the initiator to go.
// The one that it logs out on answers, what is durable too; the other one ends.
// Both devices of the session hear why they do not get the disk again.
func TestDrainDiskOfTwoPaths(t *testing.T) {
	d := newFlushDisk()
	leaves := target.Export{Name: "leaves", Device: d, Reservations: reserve.New(d, nil)}
	stays := disk(t, "stays")
	stays.Reservations = reserve.New(stays.Device, nil)
	r := newRig(t, target.Config{}, stays, leaves)
	id := newID()
	join := func(path uint16) *peer {
		p := r.peer(t)
		p.path, p.epoch = path, uint32(path)+1
		q := p.loginRequest(wire.RoleControl, id, 0)
		q.Features |= wire.FeatureEvents
		must(t, p.login(q))
		return p
	}
	writers := [2][16]byte{newID(), newID()}
	open := func(p *peer, i uint32) (a wire.OpenResponse) {
		must(t, p.ask(&wire.OpenRequest{ID: 2 + i, PathEpoch: p.epoch, OpenID: 1 + i, Mode: wire.OpenReadOnly, Name: "leaves", Writer: writers[i]}, &a))
		return a
	}
	paths := [2]*peer{join(0), join(1)}
	for i := range uint32(2) {
		if a := open(paths[i], i); a.Status != wire.StatusOK {
			t.Fatalf("opened: %+v", a)
		}
	}
	must(t, r.server.SetExports([]target.Export{stays}))
	gone := make(chan struct{})
	leaves.Reservations.Retire(func() { close(gone) })
	r.server.DrainDisk(leaves.Reservations)
	for _, p := range paths {
		for {
			v, err := p.listen(forever)
			if must(t, err); v == nil {
				t.Fatal("no event")
			}
			if v.Kind == wire.EventGoAway {
				break
			}
		}
	}
	var out wire.LogoutResponse
	must(t, paths[1].ask(&wire.Logout{ID: 9, PathEpoch: 2}, &out))
	if !out.Durable {
		t.Error("the logout does not say that all is durable")
	}
	if _, err := paths[0].ends(); err != nil {
		t.Error(err)
	}
	<-gone
	id = newID()
	p := join(0)
	for i := range uint32(2) {
		if a := open(p, i); a.Status != wire.StatusNotFound || a.Reason != "the target's administrator has removed the export" {
			t.Errorf("device %d opened again: %+v", i, a)
		}
	}
	must(t, p.close())
}
