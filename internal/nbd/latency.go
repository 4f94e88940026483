package nbd

import (
	"sync"
	"time"

	"github.com/viablk/viablk/internal/latency"
)

// timing measures the requests of a connection that is not parked.
type timing struct {
	set      *latency.Set      // of the export
	recorder *latency.Recorder // nil while the connection is parked
	*latency.Stopwatch
}

// stopwatches are those that no connection has now.
var stopwatches = sync.Pool{New: func() any { return new(latency.Stopwatch) }}

// start begins to measure.
func (m *timing) start(clock func() time.Duration) {
	if m.recorder == nil {
		m.recorder, m.Stopwatch = m.set.Acquire(), stopwatches.Get().(*latency.Stopwatch)
		m.Start(clock)
	}
}

// stop ends the measurement; the export keeps the counts.
func (m *timing) stop() {
	if m.recorder != nil {
		m.Stop()
		m.set.Release(m.recorder)
		stopwatches.Put(m.Stopwatch)
		m.recorder, m.Stopwatch = nil, nil
	}
}

// kinds are the operations as they are counted; the others are latency.Other.
var kinds = [...]latency.Operation{
	cmdRead: latency.Read, cmdWrite: latency.Write, cmdDisconnect: latency.Other, cmdFlush: latency.Flush,
}

// answered notes that a request is answered.
func (m *timing) answered(s *entry) {
	kind := latency.Other
	if int(s.header.command) < len(kinds) {
		kind = kinds[s.header.command]
	}
	m.End(m.recorder, kind, s.began, s.given)
}

// sinceEpoch is the clock of the connection.
func (t *transmission) sinceEpoch() time.Duration { return time.Since(t.epoch) }
