package initiator

import (
	"encoding/hex"
	"sync"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
)

// QueueStats count what queues did. The owner counts without atomics and
// publishes before it sleeps and every publishTurns turns.
type QueueStats struct {
	block.Counts
	carrier.Traffic
	BytesBounced   uint64 `json:"bytes_bounced"` // copied between the caller's memory and the pool
	Errors         uint64 `json:"errors"`
	Sleeps         uint64 `json:"sleeps"` // each ends in a wake-up
	WaitsForMemory uint64 `json:"waits_for_memory"`
	WaitsForCredit uint64 `json:"waits_for_credit"`
}

// publishTurns is how often a busy queue publishes its counters.
const publishTurns = 1024

func (s *QueueStats) add(o QueueStats) {
	s.Counts.Add(&o.Counts)
	s.Traffic.Add(&o.Traffic)
	s.BytesBounced += o.BytesBounced
	s.Errors += o.Errors
	s.Sleeps += o.Sleeps
	s.WaitsForMemory += o.WaitsForMemory
	s.WaitsForCredit += o.WaitsForCredit
}

// publishedStats are a queue's counters as others see them.
type publishedStats struct {
	mu    sync.Mutex
	stats QueueStats
}

func (q *Queue) publish() {
	q.stats.Traffic = q.carrier.Traffic()
	q.published.mu.Lock()
	defer q.published.mu.Unlock()
	q.published.stats = q.stats
}

func (q *Queue) snapshot() QueueStats {
	q.published.mu.Lock()
	defer q.published.mu.Unlock()
	return q.published.stats
}

// Status describes an attached disk.
type Status struct {
	Export        string     `json:"export"`
	Description   string     `json:"description,omitempty"`
	UUID          string     `json:"uuid"`
	Size          int64      `json:"size"`
	ReadOnly      bool       `json:"read_only"`
	Provider      string     `json:"provider"`
	Target        string     `json:"target"` // its identity
	Session       string     `json:"session"`
	Connected     bool       `json:"connected"`
	Error         string     `json:"error,omitempty"` // why not
	InlineMax     uint32     `json:"inline_max"`      // bytes
	MaxIO         uint32     `json:"max_io"`          // bytes
	Queues        int        `json:"queues"`
	Registrations uint64     `json:"registrations"` // of memory, ever; steady state adds none
	Stats         QueueStats `json:"stats"`         // of all queues ever
}

// Status returns the disk's state and counters.
func (d *Device) Status() Status {
	s := d.session
	st := Status{
		Export: d.export.Name, Description: d.export.Description, UUID: hex.EncodeToString(d.export.ExportUUID[:]),
		Size: d.info.Size, ReadOnly: d.info.Features&block.ReadOnly != 0,
		Provider: s.cfg.NIC.Name(), Target: hex.EncodeToString(s.login.TargetID[:]), Session: hex.EncodeToString(s.id[:]),
		Connected: true, InlineMax: s.login.InlineMax, MaxIO: s.login.MaxIO,
		Registrations: s.cfg.NIC.Agent().Registrations.Load(),
	}
	if err := s.err(); err != nil {
		st.Connected, st.Error = false, err.Error()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	st.Stats = d.past
	for _, q := range d.conns {
		if q != nil {
			st.Queues++
			st.Stats.add(q.snapshot())
		}
	}
	return st
}
