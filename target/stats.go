package target

import (
	"slices"
	"sync"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/regcache"
)

// ConnStats count what connections did. The worker counts without atomics and
// publishes before it sleeps and every publishTurns turns.
type ConnStats struct {
	block.Counts
	carrier.Traffic
	BytesPulled    uint64 `json:"bytes_pulled"` // by RDMA Read from initiators
	BytesPlaced    uint64 `json:"bytes_placed"` // by RDMA Write to initiators
	Errors         uint64 `json:"errors"`       // requests answered with an error
	Sleeps         uint64 `json:"sleeps"`       // each ends in a wake-up
	Spins          uint64 `json:"spins"`        // looks for work before a sleep
	SpinsPaid      uint64 `json:"spins_paid"`   // spins that found work
	WaitsForMemory uint64 `json:"waits_for_memory"`
	WaitsForSends  uint64 `json:"waits_for_sends"`
	RangesTaken    uint64 `json:"ranges_taken"` // transfers through the queue, for others used that part of the disk

	Windows WindowStats `json:"windows"`
}

// WindowStats count what became of Reads of mapped files.
type WindowStats struct {
	Choice   regcache.ChoiceStats `json:"choice"`   // of those that could be either copied or not
	Absent   uint64               `json:"absent"`   // copied: not in the page cache, or behind the file's end
	Spanning uint64               `json:"spanning"` // copied: in two windows
}

func (s *WindowStats) add(o *WindowStats) {
	s.Choice.Add(&o.Choice)
	s.Absent += o.Absent
	s.Spanning += o.Spanning
}

// publishTurns is how often a busy worker publishes its counters.
const publishTurns = 1024

// add adds another connection's counters.
func (s *ConnStats) add(o ConnStats) {
	s.Counts.Add(&o.Counts)
	s.Traffic.Add(&o.Traffic)
	s.BytesPulled += o.BytesPulled
	s.BytesPlaced += o.BytesPlaced
	s.Errors += o.Errors
	s.Sleeps += o.Sleeps
	s.Spins += o.Spins
	s.SpinsPaid += o.SpinsPaid
	s.WaitsForMemory += o.WaitsForMemory
	s.WaitsForSends += o.WaitsForSends
	s.RangesTaken += o.RangesTaken
	s.Windows.add(&o.Windows)
}

// publishedStats are a worker's counters as others see them.
type publishedStats struct {
	mu      sync.Mutex // taken after exportTable.mu
	stats   ConnStats
	windows []publishedWindows // of queues that are open
}

// publishedWindows are those of an export.
type publishedWindows struct {
	export   *exported
	stats    WindowStats
	boundary regcache.Boundary
	refused  error
}

// publish makes the worker's counters visible.
func (c *conn) publish() {
	c.stats.Traffic = c.carrier.Traffic()
	c.stats.Windows = c.gone
	c.published.mu.Lock()
	defer c.published.mu.Unlock()
	c.published.windows = c.published.windows[:0]
	for _, q := range c.queues {
		if w := q.windows; w != nil {
			s := w.counts()
			c.stats.Windows.add(&s)
			boundary, _ := w.chooser.Boundaries()
			c.published.windows = append(c.published.windows, publishedWindows{q.export, s, boundary, w.refused})
		}
	}
	c.published.stats = c.stats
}

// retire counts the Reads of a queue that ends as those of its export. Nobody sees
// them twice, nor not at all.
func (c *conn) retire(q *exportQueue) {
	if q.windows == nil {
		return
	}
	s := q.windows.counts()
	c.gone.add(&s)
	q.windows = nil
	exports := c.server.exports
	exports.mu.Lock()
	defer exports.mu.Unlock()
	q.export.windows.add(&s)
	c.published.mu.Lock()
	defer c.published.mu.Unlock()
	c.published.windows = slices.DeleteFunc(c.published.windows, func(w publishedWindows) bool { return w.export == q.export })
}

// read returns the published counters.
func (p *publishedStats) read() (ConnStats, []publishedWindows) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats, slices.Clone(p.windows)
}
