package main

import (
	"testing"

	"github.com/viablk/viablk/internal/metrics"
)

// TestNoPortIsLabel: the port of an initiator is new in each process, and would
// make new series.
func TestNoPortIsLabel(t *testing.T) {
	p := newStatus("attach")
	p.Network = []networkReport{{Local: "192.0.2.1:41348"}, {Local: "[2001:db8::1]:4791"}}
	s := newSnapshot(&p, new(certificates), metrics.Reloads{}, false)
	for i, want := range []string{"192.0.2.1", "2001:db8::1"} {
		if got := s.Networks[i].Local; got != want {
			t.Errorf("the label of %s is %q, want %q", p.Network[i].Local, got, want)
		}
	}
}
