package main

import (
	"slices"
	"testing"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/metrics"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/internal/nbdkernel"
	"github.com/viablk/viablk/target"
)

// TestNoPortIsLabel: the port of an initiator is new in each process, and would
// make new series.
func TestNoPortIsLabel(t *testing.T) {
	p := newStatus("attach")
	p.Network = []networkReport{{Local: "192.0.2.1:41348"}, {Local: "[2001:db8::1]:4791"}}
	s := newSnapshot(&p, nil, new(certificates), metrics.Reloads{}, false)
	for i, want := range []string{"192.0.2.1", "2001:db8::1"} {
		if got := s.Networks[i].Local; got != want {
			t.Errorf("the label of %s is %q, want %q", p.Network[i].Local, got, want)
		}
	}
}

// TestStatesOfBackends: the disk of another server has the state of that, over
// each face, and others are connected.
func TestStatesOfBackends(t *testing.T) {
	p := newStatus("target")
	p.NBD = &nbd.Status{}
	p.Exports = []exportStatus{{Name: "far", URIs: []string{"nbd://h/far", "via+shm:///far"}}, {Name: "own", URIs: []string{"nbd://h/own"}}}
	p.Disks = []diskStatus{{Name: "far", State: initiator.StateFailed, Reason: "gone"}, {Name: "own"}}
	p.Targets = []target.Status{{Provider: "shm", Exports: []target.ExportStatus{{Name: "far"}, {Name: "own"}}}}
	want := map[string]string{"far": "failed", "own": "connected"}
	for _, x := range newSnapshot(&p, nil, new(certificates), metrics.Reloads{}, false).Exports {
		if x.State != want[x.Name] {
			t.Errorf("the metrics say that %s is %s", x.Name, x.State)
		}
	}
	faces := p.faces()
	for i := range faces {
		if f := &faces[i]; f.State != want[f.Export] || f.healthy() != (f.Export == "own") || (f.Reason == "gone") != (f.Export == "far") {
			t.Errorf("%s over %s is %s: %s", f.Export, f.Face, f.State, f.Reason)
		}
	}
	if len(faces) != 4 {
		t.Errorf("there are %d faces", len(faces))
	}
}

// TestDeviceStatesOfTheHost: a process tells of all devices that viablk
// attached, and that its own is detached when the kernel has it no more.
func TestDeviceStatesOfTheHost(t *testing.T) {
	p := newStatus("attach")
	p.Device = &deviceStatus{Path: "/dev/nbd3"}
	devices := []nbdkernel.Connected{{Node: 1, Server: 7}, {Node: 2}}
	want := []metrics.DeviceState{{Name: "/dev/nbd1", State: "served"}, {Name: "/dev/nbd2", State: "waiting"}, {Name: "/dev/nbd3", State: "detached"}}
	if got := newSnapshot(&p, devices, new(certificates), metrics.Reloads{}, false).DeviceStates; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	devices, want[2].State = append(devices, nbdkernel.Connected{Node: 3, Server: p.PID}), "served"
	if got := newSnapshot(&p, devices, new(certificates), metrics.Reloads{}, false).DeviceStates; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	p.Device = nil
	if got := newSnapshot(&p, devices[:2], new(certificates), metrics.Reloads{}, false).DeviceStates; !slices.Equal(got, want[:2]) {
		t.Errorf("a target tells of %v, want %v", got, want[:2])
	}
}
