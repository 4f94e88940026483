package nbd

import (
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/latency"
)

// Each request is counted once, in its operation, and took at least as long as
// the disk had it; those that never reach the disk are not the backend's.
func TestLatency(t *testing.T) {
	const held = 3 * time.Millisecond
	shapes(t, Limits{}, func(t *testing.T, f *fixture, m *memory, p *peer) {
		m.failWith(func(r *block.Request) error {
			if r.Op == block.Read {
				time.Sleep(held)
			}
			return nil
		})
		const rounds = 3
		for i := range rounds { // connections that follow each other
			if i > 0 {
				p = f.connectExport("", p.replyMode)
			}
			for range 2 {
				p.want(0, 0, cmdRead, 0, 4096)
			}
			p.want(0, 0, cmdWrite, 0, 512, pattern(512, 1))
			p.want(0, 0, cmdFlush, 0, 0)
			p.want(0, 0, cmdTrim, 0, 512)
			p.want(syscall.EINVAL, 0, cmdRead, uint64(len(m.data)), 512)
			p.want(syscall.EINVAL, 0, 99, 0, 512)
			p.disconnect()
			for len(f.server.Status().Connections) != 0 {
				time.Sleep(time.Millisecond)
			}
		}
		s := f.server.Status().Exports[0].Latency
		for o, want := range map[latency.Operation][2]uint64{
			latency.Read: {3, 2}, latency.Write: {1, 1}, latency.Flush: {1, 1}, latency.Other: {2, 1},
		} {
			requests, backend := &s.Requests[o], &s.Backend[o]
			if requests.Count != rounds*want[0] || backend.Count != rounds*want[1] || requests.Sum < backend.Sum {
				t.Errorf("%s: %d requests of %v, %d of the backend of %v", latency.Names[o], requests.Count, requests.Sum, backend.Count, backend.Sum)
			}
		}
		if least := rounds * 2 * held; s.Backend[latency.Read].Sum < least || s.Backend[latency.Read].Quantile(0.5) < held*3/4 {
			t.Errorf("reads took %v, at least %v are right; half of them %v", s.Backend[latency.Read].Sum, least, s.Backend[latency.Read].Quantile(0.5))
		}
	})
}

// A request that waits for bytes in flight is counted once, however often it is
// tried; what is in the disk is told from it.
func TestWaits(t *testing.T) {
	const length = 64 << 10
	m := newMemory(1 << 20)
	m.later, m.hold = true, make(chan struct{})
	f := serve(t, Limits{InFlight: 2 * length}, Export{Device: m})
	p := f.connectExport("", simple)
	state := func() (inFlight int, waits uint64) {
		s := f.server.Status()
		return s.Connections[0].InFlight, s.Exports[0].Waits
	}
	for i := range uint64(4) {
		p.put(p.request(0, cmdRead, i, 0, length))
	}
	for inFlight, waits := state(); inFlight != 2 || waits != 1; inFlight, waits = state() {
		time.Sleep(time.Millisecond)
	}
	close(m.hold)
	for range 4 {
		p.get(simpleReplySize + length)
	}
	p.want(0, 0, cmdFlush, 0, 0)
	for inFlight, _ := state(); inFlight != 0; inFlight, _ = state() {
		time.Sleep(time.Millisecond)
	}
	if _, waits := state(); waits > 2 {
		t.Errorf("%d of 2 requests waited", waits)
	}
}

// A connection that is parked has no recorder, its counts are visible, and
// another one goes on with its recorder.
func TestLatencyOfParkedClients(t *testing.T) {
	f := serve(t, Limits{BusyPoll: -1}, Export{Device: newMemory(1 << 20)})
	clients := []*peer{f.connectExport("", simple), f.connectExport("", simple)}
	for i := range uint64(5) {
		clients[i%2].want(0, 0, cmdRead, 0, 512)
		f.waitForParks(i + 3) // each is parked before its first request
		if n := f.server.Status().Exports[0].Latency.Requests[latency.Read].Count; n != i+1 {
			t.Errorf("%d requests are counted after %d", n, i+1)
		}
	}
	f.server.mu.Lock()
	set := &f.server.exports[""].latency
	f.server.mu.Unlock()
	if n := set.Recorders(); n != 1 {
		t.Errorf("clients of which one at a time was busy have used %d recorders", n)
	}
}

// The time in which a client sends nothing is not that of its next request:
// together they took at most the time outside pauses, which begin when the
// request before is counted.
func TestLatencyWithoutPauses(t *testing.T) {
	const pause, n = 50 * time.Millisecond, 5
	m := newMemory(1 << 20)
	m.interval = time.Hour // the loop sleeps, and is not parked
	f := serve(t, Limits{BusyPoll: -1}, Export{Device: m})
	p := f.connectExport("", simple)
	reads := func() latency.Durations { return *f.server.Status().Exports[0].Latency.Requests }
	var busy time.Duration
	for i := range uint64(n) {
		time.Sleep(pause)
		began := time.Now()
		p.want(0, 0, cmdRead, 0, 512)
		for x := reads(); x[latency.Read].Count != i+1; x = reads() {
			time.Sleep(time.Millisecond)
		}
		busy += time.Since(began)
	}
	if x := reads(); x[latency.Read].Sum > busy {
		t.Errorf("%d requests took %v, in %v", n, x[latency.Read].Sum, busy)
	}
}

// A loop that is never idle reads the clock in each iteration: the sum of all
// durations is at most the time that has passed, times the requests in flight.
func TestLatencyOfBusyLoop(t *testing.T) {
	m := newMemory(1 << 20)
	m.failWith(func(*block.Request) error { time.Sleep(time.Millisecond); return nil })
	f := serve(t, Limits{}, Export{Device: m})
	p := f.connectExport("", simple)
	const n, inFlight = 60, 2
	began := time.Now()
	for i := range n + inFlight {
		if i < n {
			p.put(p.request(0, cmdFlush, uint64(i), 0, 0))
		}
		if i >= inFlight-1 && i < n+inFlight-1 {
			p.get(simpleReplySize)
		}
	}
	p.disconnect()
	for len(f.server.Status().Connections) != 0 {
		time.Sleep(time.Millisecond)
	}
	passed := time.Since(began)
	x := f.server.Status().Exports[0].Latency
	if d := &x.Requests[latency.Flush]; d.Count != n || d.Sum > 2*inFlight*passed || d.Sum < n*time.Millisecond {
		t.Errorf("%d requests took %v together, in %v", d.Count, d.Sum, passed)
	}
}
