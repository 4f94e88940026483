package main

import (
	"slices"
	"testing"

	"github.com/viablk/viablk/internal/metrics"
	"github.com/viablk/viablk/internal/nbdkernel"
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
