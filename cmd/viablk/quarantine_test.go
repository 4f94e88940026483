package main

import (
	"testing"

	"github.com/viablk/viablk/initiator"
)

func TestStateShowsQuarantine(t *testing.T) {
	for want, k := range map[string]*initiator.QuarantineStatus{
		"waiting":                                 nil,
		"waiting, quarantine: 2 requests":         {Requests: 2, Total: 2},
		"waiting, quarantine: 128MiB, 0 requests": {Bytes: 128 << 20, Pools: 1, Total: 3},
	} {
		if got := stateOf(&initiator.Status{State: initiator.StateWaiting, Quarantine: k}); got != want {
			t.Errorf("%+v: %q, want %q", k, got, want)
		}
	}
	if got := stateOf(&initiator.Status{State: initiator.StateConnected, Quarantine: &initiator.QuarantineStatus{Total: 4}}); got != "connected" {
		t.Errorf("an empty quarantine: %q", got)
	}
}
