package initiator

import (
	"encoding/hex"
	"sync"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/regcache"
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
	Returns        uint64 `json:"returns"` // connections that were restored

	// Of memory that the caller brought.
	Choice regcache.ChoiceStats `json:"choice"`
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
	s.Returns += o.Returns
	s.Choice.Add(&o.Choice)
}

// publishedStats are a queue's counters as others see them.
type publishedStats struct {
	mu    sync.Mutex
	stats QueueStats
	write regcache.Boundary
	read  regcache.Boundary
}

func (q *Queue) publish() {
	if q.absence.result != nil {
		return // the connection is not the owner's
	}
	q.stats.Traffic = q.carrier.Traffic()
	var write, read regcache.Boundary
	if q.chooser != nil {
		q.stats.Choice = q.chooser.Stats()
		write, read = q.chooser.Boundaries()
	}
	q.published.mu.Lock()
	defer q.published.mu.Unlock()
	q.published.stats, q.published.write, q.published.read = q.stats, write, read
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
	Error         string     `json:"error,omitempty"`        // why not
	Away          float64    `json:"away_seconds,omitempty"` // since the target was lost, if it is waited for
	Losses        uint64     `json:"losses"`                 // sessions that were lost
	InlineMax     uint32     `json:"inline_max"`             // bytes
	MaxIO         uint32     `json:"max_io"`                 // bytes
	Queues        int        `json:"queues"`
	Registrations uint64     `json:"registrations"` // of memory, ever; steady state adds none
	Stats         QueueStats `json:"stats"`         // of all queues ever
	Copy          CopyStatus `json:"copy"`
}

// CopyStatus describes how payload in memory of the caller's moves.
type CopyStatus struct {
	Mode        regcache.CopyMode     `json:"mode"`
	Off         string                `json:"off,omitempty"`         // why nothing is ever registered
	Calibration *regcache.Calibration `json:"calibration,omitempty"` // of the provider, at the start
	Write       regcache.Boundary     `json:"write_boundary"`        // bytes; of the queue that moved most
	Read        regcache.Boundary     `json:"read_boundary"`
	Cache       *regcache.Stats       `json:"cache,omitempty"` // absent if nothing is ever registered
}

// Status returns the disk's state and counters.
func (d *Device) Status() Status {
	s := d.session()
	st := Status{
		Export: d.export.Name, Description: d.export.Description, UUID: hex.EncodeToString(d.export.ExportUUID[:]),
		Size: d.Size(), ReadOnly: d.info.Features&block.ReadOnly != 0,
		Provider: s.cfg.NIC.Name(), Target: hex.EncodeToString(s.login.TargetID[:]), Session: hex.EncodeToString(s.id[:]),
		Connected: true, InlineMax: s.login.InlineMax, MaxIO: s.login.MaxIO,
		Registrations: s.cfg.NIC.Agent().Registrations.Load(),
	}
	if err := s.err(); err != nil {
		st.Connected, st.Error = false, err.Error()
	}
	if d.keeper != nil {
		d.keeper.report(&st)
	}
	st.Copy = d.memory.status()
	d.mu.Lock()
	defer d.mu.Unlock()
	st.Stats = d.past
	most := uint64(0)
	for _, q := range d.conns {
		if q == nil {
			continue
		}
		st.Queues++
		s, write, read := q.published.all()
		st.Stats.add(s)
		if n := s.BytesRead + s.BytesWritten; n >= most {
			most, st.Copy.Write, st.Copy.Read = n, write, read
		}
	}
	return st
}

func (p *publishedStats) all() (s QueueStats, write, read regcache.Boundary) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats, p.write, p.read
}

// status describes the memory; the boundaries are those of a new queue.
func (m *memory) status() CopyStatus {
	st := CopyStatus{Mode: m.mode, Off: m.off}
	if m.cache == nil {
		return st
	}
	s := m.cache.Stats()
	st.Cache = &s
	cost := m.cost
	st.Calibration = &cost
	st.Write, st.Read = m.chooser().Boundaries()
	return st
}
