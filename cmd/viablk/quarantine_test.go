package main

import (
	"testing"

	"github.com/viablk/viablk/initiator"
)

func TestFaceShowsQuarantine(t *testing.T) {
	for want, k := range map[string]*initiator.QuarantineStatus{
		"2 requests":         {Requests: 2, Total: 2},
		"128MiB, 0 requests": {Bytes: 128 << 20, Pools: 1, Total: 3},
	} {
		var f faceStatus
		if f.addInitiator(&initiator.Status{State: initiator.StateWaiting, Quarantine: k}); f.Quarantine != want || f.State != "waiting" {
			t.Errorf("%+v: %+v, want %q", k, f, want)
		}
	}
	for _, k := range []*initiator.QuarantineStatus{nil, {Total: 4}} {
		var f faceStatus
		if f.addInitiator(&initiator.Status{State: initiator.StateConnected, Quarantine: k}); f.Quarantine != "" || f.State != "connected" {
			t.Errorf("an empty quarantine: %+v", f)
		}
	}
}
