package target

import (
	"encoding/hex"
	"sync"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
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
}

// publishedStats are a worker's counters as others see them.
type publishedStats struct {
	mu    sync.Mutex
	stats ConnStats
}

// publish makes the worker's counters visible.
func (c *conn) publish() {
	c.stats.Traffic = c.carrier.Traffic()
	c.published.mu.Lock()
	defer c.published.mu.Unlock()
	c.published.stats = c.stats
}

// snapshot returns the published counters.
func (c *conn) snapshot() ConnStats {
	c.published.mu.Lock()
	defer c.published.mu.Unlock()
	return c.published.stats
}

// Status describes a server.
type Status struct {
	ID            string         `json:"id"`
	Provider      string         `json:"provider"`
	Draining      bool           `json:"draining"`
	Connections   int            `json:"connections"`
	Accepted      uint64         `json:"accepted"` // connections ever
	Refused       uint64         `json:"refused"`
	Sessions      int            `json:"sessions"`
	Registrations uint64         `json:"registrations"` // of memory, ever; steady state adds none
	Exports       []ExportStatus `json:"exports"`
	Stats         ConnStats      `json:"stats"` // of all connections ever
}

// ExportStatus describes an export.
type ExportStatus struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	UUID        string `json:"uuid"`
	Size        int64  `json:"size"`
	Default     bool   `json:"default"`
	ReadOnly    bool   `json:"read_only"`
	Opens       int    `json:"opens"`
}

// Status returns the server's state and counters.
func (s *Server) Status() Status {
	st := Status{
		ID: hex.EncodeToString(s.id[:]), Provider: s.cfg.NIC.Name(),
		Registrations: s.cfg.NIC.Agent().Registrations.Load(),
	}
	s.mu.Lock()
	st.Draining, st.Connections, st.Accepted, st.Refused = s.draining, len(s.conns), s.started, s.refused
	st.Stats = s.past
	for c := range s.conns {
		st.Stats.add(c.snapshot())
	}
	s.mu.Unlock()
	s.sessions.mu.Lock()
	st.Sessions = len(s.sessions.byID)
	s.sessions.mu.Unlock()
	s.exports.mu.Lock()
	defer s.exports.mu.Unlock()
	for _, x := range s.exports.list {
		st.Exports = append(st.Exports, ExportStatus{
			Name: x.Name, Description: x.Description, UUID: hex.EncodeToString(x.uuid[:]), Size: x.info.Size,
			Default: x.Default, ReadOnly: x.info.Features&block.ReadOnly != 0, Opens: x.opens,
		})
	}
	return st
}
