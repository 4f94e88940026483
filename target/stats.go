package target

import (
	"slices"
	"sync"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/regcache"
)

// ConnStats are the counters of connections. The worker counts without atomics
// and publishes before it sleeps and every publishIterations iterations.
type ConnStats struct {
	block.Counts
	carrier.Traffic
	BytesPulled    uint64 `json:"bytes_pulled"` // by RDMA Read from initiators
	BytesPlaced    uint64 `json:"bytes_placed"` // by RDMA Write to initiators
	Errors         uint64 `json:"errors"`       // requests answered with an error
	Sleeps         uint64 `json:"sleeps"`       // each ends in a wake-up
	Yields         uint64 `json:"yields"`       // passes through the Go scheduler before a sleep
	BusyPolls      uint64 `json:"busy_polls"`   // busy-poll attempts
	PollHits       uint64 `json:"poll_hits"`    // attempts that found work
	BusyPollTime   uint64 `json:"busy_poll_ns"` // ns that the attempts took
	WaitsForMemory uint64 `json:"waits_for_memory"`
	WaitsForSends  uint64 `json:"waits_for_sends"`
	RangesTaken    uint64 `json:"ranges_taken"` // transfers through the queue: their range was busy

	Mappings MappingStats `json:"mappings"`
}

// ExportCounts are the requests to an export.
type ExportCounts struct {
	block.Counts
	Errors uint64 `json:"errors"` // answered with an error
	Waits  uint64 `json:"waits"`  // that waited for memory, sends or a range
}

func (s *ExportCounts) add(o *ExportCounts) {
	s.Counts.Add(&o.Counts)
	s.Errors += o.Errors
	s.Waits += o.Waits
}

// MappingStats count Reads of mapped files by how they moved.
type MappingStats struct {
	Choice         regcache.ChoiceStats `json:"choice"`          // of Reads with a choice
	NotResident    uint64               `json:"not_resident"`    // copied: not in the page cache, or behind the file's end
	CrossesGranule uint64               `json:"crosses_granule"` // copied: across two registrations
}

func (s *MappingStats) add(o *MappingStats) {
	s.Choice.Add(&o.Choice)
	s.NotResident += o.NotResident
	s.CrossesGranule += o.CrossesGranule
}

// publishIterations is how often a busy worker publishes its counters.
const publishIterations = 1024

// add adds another connection's counters.
func (s *ConnStats) add(o ConnStats) {
	s.Counts.Add(&o.Counts)
	s.Traffic.Add(&o.Traffic)
	s.BytesPulled += o.BytesPulled
	s.BytesPlaced += o.BytesPlaced
	s.Errors += o.Errors
	s.Sleeps += o.Sleeps
	s.Yields += o.Yields
	s.BusyPolls += o.BusyPolls
	s.PollHits += o.PollHits
	s.BusyPollTime += o.BusyPollTime
	s.WaitsForMemory += o.WaitsForMemory
	s.WaitsForSends += o.WaitsForSends
	s.RangesTaken += o.RangesTaken
	s.Mappings.add(&o.Mappings)
}

// publishedStats are a snapshot of a worker's counters.
type publishedStats struct {
	mu sync.Mutex // taken after exportTable.mu
	// +checklocks:mu
	stats ConnStats
	// +checklocks:mu
	queues []publishedQueue // open ones
	// +checklocks:mu
	busy int // requests in flight
	// +checklocks:mu
	active time.Time // when the requests were last found to be more
}

// publishedQueue are the counters of an open queue.
type publishedQueue struct {
	export  *exported
	counts  ExportCounts
	busy    int              // requests in flight
	mapping publishedMapping // zero if the disk is not mapped
}

// publishedMapping are those of a mapped disk.
type publishedMapping struct {
	stats    MappingStats
	boundary regcache.Boundary
	refused  error
}

// publish makes the worker's counters visible.
func (w *worker) publish() {
	x, s := &w.execute, &w.sleeper
	w.exports.publish(&ConnStats{
		Traffic: w.carrier.Traffic(), BytesPulled: w.send.bytesPulled, BytesPlaced: w.send.bytesPlaced,
		Errors: x.errors, Sleeps: s.sleeps, Yields: s.yields, BusyPolls: s.busyPolls, PollHits: s.pollHits, BusyPollTime: uint64(s.idle.Spent()),
		WaitsForMemory: x.waitsForMemory, WaitsForSends: w.send.waits, RangesTaken: x.held.taken,
	}, w.receive.busy)
}

// publishLatency publishes what the recorders have counted.
func (t *handleTable) publishLatency() {
	for _, q := range t.queues {
		if q.recorder != nil {
			q.recorder.Publish()
		}
	}
}

// publish publishes a connection's counters with those of its queues, and how
// many of its requests are in flight.
func (t *handleTable) publish(stats *ConnStats, busy int) {
	stats.Counts, stats.Mappings = t.closed, t.closedStats
	p := t.published
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queues = p.queues[:0]
	for _, q := range t.queues {
		stats.Counts.Add(&q.counts.Counts)
		shown := publishedQueue{export: q.export, counts: q.counts, busy: q.busy}
		if w := q.mapping; w != nil {
			boundary, _ := w.policy.Boundaries()
			shown.mapping = publishedMapping{w.counts(), boundary, w.refused}
			stats.Mappings.add(&shown.mapping.stats)
		}
		p.queues = append(p.queues, shown)
	}
	if stats.Counts != p.stats.Counts || stats.Errors != p.stats.Errors {
		p.active = t.server.cfg.Scheduler.Now()
	}
	p.stats, p.busy = *stats, busy
}

// retire moves the counters of a closing queue to its export. Each request is
// counted exactly once.
func (t *handleTable) retire(q *exportQueue) {
	defer contain.Shared()
	if q.recorder != nil {
		t.stopwatch.Flush() // what it has of the recorder's
		q.export.latency.Release(q.recorder)
		q.recorder = nil
	}
	t.closed.Add(&q.counts.Counts)
	var mapping MappingStats
	if q.mapping != nil {
		mapping = q.mapping.counts()
		t.closedStats.add(&mapping)
		q.mapping = nil
	}
	exports, p := t.server.exports, t.published
	exports.mu.Lock()
	defer exports.mu.Unlock()
	q.export.mappingStats.add(&mapping)
	q.export.counts.add(&q.counts)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queues = slices.DeleteFunc(p.queues, func(x publishedQueue) bool { return x.export == q.export })
}

// readActive returns the published counters, and when a request was last
// counted.
func (p *publishedStats) readActive() (ConnStats, time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats, p.active
}

// inFlight returns the published number of requests in flight.
func (p *publishedStats) inFlight() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.busy
}

// read returns the published counters.
func (p *publishedStats) read() (ConnStats, []publishedQueue) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats, slices.Clone(p.queues)
}
