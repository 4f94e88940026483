package target

import (
	"encoding/hex"
	"sync"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/via"
)

// ConnStats count what connections did. The worker counts without atomics and
// publishes before it sleeps and every publishTurns turns.
type ConnStats struct {
	Reads          uint64 `json:"reads"`
	Writes         uint64 `json:"writes"`
	Flushes        uint64 `json:"flushes"`
	Trims          uint64 `json:"trims"`
	WriteZeroes    uint64 `json:"write_zeroes"`
	BytesRead      uint64 `json:"bytes_read"`
	BytesWritten   uint64 `json:"bytes_written"`
	BytesPulled    uint64 `json:"bytes_pulled"` // by RDMA Read from initiators
	BytesPlaced    uint64 `json:"bytes_placed"` // by RDMA Write to initiators
	Errors         uint64 `json:"errors"`       // requests answered with an error
	Sleeps         uint64 `json:"sleeps"`       // each ends in a wake-up
	Spins          uint64 `json:"spins"`        // looks for work before a sleep
	SpinsPaid      uint64 `json:"spins_paid"`   // spins that found work
	WaitsForMemory uint64 `json:"waits_for_memory"`
	WaitsForSends  uint64 `json:"waits_for_sends"`

	MessagesSent     uint64 `json:"messages_sent"`
	MessagesReceived uint64 `json:"messages_received"`
	RdmaWrites       uint64 `json:"rdma_writes"`
	RdmaReads        uint64 `json:"rdma_reads"`
	Doorbells        uint64 `json:"doorbells"` // system calls that woke the peer
	BytesCopied      uint64 `json:"bytes_copied"`
	Stalls           uint64 `json:"stalls"` // times the fabric had no room
}

// publishTurns is how often a busy worker publishes its counters.
const publishTurns = 1024

func (s *ConnStats) count(op block.Op, n uint64) {
	switch op {
	case block.Read:
		s.Reads++
		s.BytesRead += n
	case block.Write:
		s.Writes++
		s.BytesWritten += n
	case block.Flush:
		s.Flushes++
	case block.Trim:
		s.Trims++
	case block.WriteZeroes:
		s.WriteZeroes++
	}
}

func (s *ConnStats) setLink(l via.LinkStats) {
	s.MessagesSent, s.MessagesReceived = l.Sends, l.Receives
	s.RdmaWrites, s.RdmaReads = l.RdmaWrites, l.RdmaReads
	s.Doorbells, s.BytesCopied, s.Stalls = l.Doorbells, l.BytesCopied, l.Stalls
}

// add adds another connection's counters.
func (s *ConnStats) add(o ConnStats) {
	s.Reads += o.Reads
	s.Writes += o.Writes
	s.Flushes += o.Flushes
	s.Trims += o.Trims
	s.WriteZeroes += o.WriteZeroes
	s.BytesRead += o.BytesRead
	s.BytesWritten += o.BytesWritten
	s.BytesPulled += o.BytesPulled
	s.BytesPlaced += o.BytesPlaced
	s.Errors += o.Errors
	s.Sleeps += o.Sleeps
	s.Spins += o.Spins
	s.SpinsPaid += o.SpinsPaid
	s.WaitsForMemory += o.WaitsForMemory
	s.WaitsForSends += o.WaitsForSends
	s.MessagesSent += o.MessagesSent
	s.MessagesReceived += o.MessagesReceived
	s.RdmaWrites += o.RdmaWrites
	s.RdmaReads += o.RdmaReads
	s.Doorbells += o.Doorbells
	s.BytesCopied += o.BytesCopied
	s.Stalls += o.Stalls
}

// publishedStats are a worker's counters as others see them.
type publishedStats struct {
	mu    sync.Mutex
	stats ConnStats
}

// publish makes the worker's counters visible.
func (c *conn) publish() {
	c.stats.setLink(c.carrier.VI().Stats())
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
