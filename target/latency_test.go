package target_test

import (
	"testing"
	"time"

	"github.com/viablk/viablk/internal/latency"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
)

// Each request to an export is counted once, in its operation, and took at
// least as long as the backend had it. Requests that are refused, or that move
// between the peer and a disk in memory, are not the backend's. The counts stay
// when the session ends, and the next one goes on with its recorder.
func TestLatency(t *testing.T) {
	const held = 3 * time.Millisecond
	slow := target.Export{Name: "slow", Device: openDevice(t, "delay:read="+held.String()+":memory:16MiB")}
	r := newRig(t, target.Config{}, slow, disk(t, "direct"))
	const rounds = 3
	for round := range rounds {
		for i, name := range []string{"slow", "direct"} {
			before := r.state()
			s := r.attach(t, name)
			m, err := s.io.expose(8192, readWrite)
			must(t, err)
			for _, c := range []struct {
				cmd  wire.Command
				want wire.Status
			}{
				{transfer(wire.OpRead, 0, m.segment(0, 4096)), wire.StatusOK},
				{transfer(wire.OpRead, 8192, m.segment(0, 8192)), wire.StatusOK},
				{transfer(wire.OpRead, 16<<20, m.segment(0, 4096)), wire.StatusInvalid},
				{transfer(wire.OpWrite, 0, m.segment(0, 4096)), wire.StatusOK},
				{wire.Command{Opcode: wire.OpFlush}, wire.StatusOK},
				{wire.Command{Opcode: wire.OpTrim, Offset: 1 << 20, Length: 4096}, wire.StatusOK},
			} {
				_, err := s.run(c.cmd, nil, c.want)
				must(t, err)
			}
			must(t, s.close())
			r.reaches(before)
			x := r.server.Status().Exports[i].Latency
			for o, want := range map[latency.Operation]struct{ requests, backend uint64 }{
				latency.Read: {3, 2}, latency.Write: {1, 1}, latency.Flush: {1, 1}, latency.Other: {1, 1},
			} {
				if name == "direct" && (o == latency.Read || o == latency.Write) {
					want.backend = 0
				}
				n := uint64(round + 1)
				requests, backend := &x.Requests[o], &x.Backend[o]
				if requests.Count != n*want.requests || backend.Count != n*want.backend || requests.Sum < backend.Sum {
					t.Errorf("%s of %s: %d requests of %v, %d of the backend of %v, want %d times %v", latency.Names[o], name,
						requests.Count, requests.Sum, backend.Count, backend.Sum, n, want)
				}
			}
			if got, least := x.Backend[latency.Read].Sum, time.Duration(round+1)*2*held; name == "slow" && got < least {
				t.Errorf("reads took %v, not %v", got, least)
			}
		}
	}
}

// The time in which a client sends nothing is not that of its next request, and
// a worker that is never idle reads the clock in each iteration: the sum of all
// durations is at most the time that has passed, times the requests in flight.
func TestLatencyWithoutPauses(t *testing.T) {
	const pause, n, rounds, inFlight = 50 * time.Millisecond, 5, 500, 4
	r := newRig(t, target.Config{}, disk(t, "disk"))
	before := r.state()
	s := r.attach(t, "disk")
	flush := func(slot int) {
		must(t, s.io.command(wire.Command{Opcode: wire.OpFlush, Slot: uint16(slot), Export: s.export.Export}, nil))
	}
	answered := func(n int) {
		for range n {
			if status, _, err := s.io.status(); err != nil || status != wire.StatusOK {
				t.Fatalf("%v, %v", status, err)
			}
		}
	}
	flushes := func() latency.Distribution { return r.server.Status().Exports[0].Latency.Requests[latency.Flush] }
	var busy time.Duration
	for i := range uint64(n) {
		time.Sleep(pause) // begins when the request before is counted
		began := time.Now()
		flush(0)
		answered(1)
		waitFor(t, "the request", func() bool { return flushes().Count == i+1 })
		busy += time.Since(began)
	}
	paused := flushes()
	if paused.Sum > busy {
		t.Errorf("%d requests took %v, in %v", n, paused.Sum, busy)
	}
	began := time.Now()
	for range rounds {
		for slot := range inFlight {
			flush(slot)
		}
		answered(inFlight)
	}
	must(t, s.close())
	r.reaches(before)
	passed := time.Since(began)
	x := flushes()
	if got := x.Sum - paused.Sum; x.Count != n+rounds*inFlight || got > 2*inFlight*passed {
		t.Errorf("%d requests took %v together, in %v", x.Count-n, got, passed)
	}
}
