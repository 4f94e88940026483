package target

import (
	"encoding/hex"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/latency"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/target/reserve"
)

// Status describes a server.
type Status struct {
	ID            string          `json:"id"`
	Provider      string          `json:"provider"`
	Draining      bool            `json:"draining"`
	Connections   int             `json:"connections"`
	Limit         int             `json:"limit"`    // of connections
	Accepted      uint64          `json:"accepted"` // connections ever
	Refused       uint64          `json:"refused"`
	Panics        uint64          `json:"panics"`      // each ended one connection
	Quarantined   uint64          `json:"quarantined"` // connections whose memory and exports stay in use after a panic
	InFlight      int             `json:"in_flight"`   // requests
	Sessions      int             `json:"sessions"`
	SessionList   []SessionStatus `json:"-"`
	Registrations uint64          `json:"registrations"` // of memory, ever; steady state adds none
	Exports       []ExportStatus  `json:"exports"`
	Stats         ConnStats       `json:"stats"`          // of all connections ever
	Copy          *CopyStatus     `json:"copy,omitempty"` // absent if no disk is a mapped file

	// Security is absent if sessions are in clear.
	Security *SecurityStatus `json:"security,omitempty"`
}

// CopyStatus describes how Reads of mapped files move, over all exports.
type CopyStatus struct {
	Mode        regcache.CopyMode     `json:"mode"`
	Calibration *regcache.Calibration `json:"calibration,omitempty"` // of the provider, at the start
	Cache       *regcache.Stats       `json:"cache,omitempty"`       // absent while nothing is registered
}

// ExportStatus describes an export.
type ExportStatus struct {
	Name        string           `json:"name"`
	Description string           `json:"description,omitempty"`
	UUID        string           `json:"uuid"`
	Size        int64            `json:"size"`
	Default     bool             `json:"default"`
	ReadOnly    bool             `json:"read_only"`
	Opens       int              `json:"opens"`
	Clients     []reserve.Client `json:"clients"`     // of every face
	Connections int              `json:"connections"` // that have sent it requests
	InFlight    int              `json:"in_flight"`   // requests

	// OldestRequest is how long the oldest request has been in the disk.
	OldestRequest float64 `json:"oldest_request_seconds"`

	Stats   ExportCounts    `json:"stats"`             // of all connections ever
	Mapping *MappingStatus  `json:"mapping,omitempty"` // absent if it is no mapped file
	Latency *latency.Status `json:"latency,omitempty"` // absent before the first connection
}

// MappingStatus describes the mapping of a file.
type MappingStatus struct {
	Off      string            `json:"off,omitempty"`     // why all Reads are copied
	Refused  string            `json:"refused,omitempty"` // the last failed registration of an open connection
	Boundary regcache.Boundary `json:"boundary"`          // bytes; of the connection that read most
	MappingStats
}

// Status returns the server's state and counters.
func (s *Server) Status() Status {
	st := Status{
		ID: hex.EncodeToString(s.id[:]), Provider: s.cfg.NIC.Name(),
		Limit: s.cfg.MaxConnections, Registrations: s.cfg.NIC.Agent().Registrations.Load(), Panics: s.panics.Load(), Quarantined: s.quarantined.Load(),
	}
	st.Sessions = len(s.begunHere())
	st.SessionList, st.Security = s.Sessions(), s.security()
	exports := s.exports.current.Load()
	for _, x := range exports.list {
		e := ExportStatus{
			Name: x.Name, Description: x.Description, UUID: block.FormatUUID(x.identity.UUID()), Size: x.info().Size,
			Default: exports.isDefault(x), ReadOnly: x.readOnly, Latency: x.latency.Read(),
		}
		if _, ok := x.Device.(block.FileMapped); ok {
			e.Mapping = &MappingStatus{Off: s.mappings.disabledReason(x)}
			st.Copy = &CopyStatus{Mode: s.cfg.CopyMode, Cache: s.mappings.stats()}
		}
		st.Exports = append(st.Exports, e)
	}
	if st.Copy != nil && s.cost.Elapsed > 0 {
		cost := s.cost
		st.Copy.Calibration = &cost
	}
	s.count(&st, exports.list)
	return st
}

// count fills in what changes while connections work. The list is that of
// st.Exports.
func (s *Server) count(st *Status, list []*exported) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Draining, st.Connections, st.Accepted, st.Refused = s.draining, len(s.conns), s.started, s.refused
	st.Stats = s.past
	// While this lock is held no queue ends: each counts once.
	s.exports.mu.Lock()
	defer s.exports.mu.Unlock()
	place := make(map[*exported]*ExportStatus)
	for i, x := range list {
		e := &st.Exports[i]
		e.Clients, e.Stats = x.Reservations.Clients(), x.counts
		e.Opens = len(e.Clients)
		e.OldestRequest = x.Reservations.Oldest().Seconds()
		if e.Mapping != nil {
			e.Mapping.MappingStats = x.mappingStats
		}
		place[x] = e
	}
	most := make(map[*exported]uint64)
	for _, c := range s.conns {
		stats, queues := c.published.read()
		st.Stats.add(stats)
		st.InFlight += c.published.inFlight()
		for i := range queues {
			q := &queues[i]
			e, w := place[q.export], &q.mapping
			if e == nil {
				continue // no export any more, and still open
			}
			e.Connections++
			e.InFlight += q.busy
			e.Stats.add(&q.counts)
			to := e.Mapping
			if to == nil {
				continue
			}
			to.add(&w.stats)
			if w.refused != nil {
				to.Refused = w.refused.Error()
			}
			if n := 1 + w.stats.Choice.BytesCopied + w.stats.Choice.BytesZeroCopied; n > most[q.export] {
				most[q.export], to.Boundary = n, w.boundary
			}
		}
	}
}
