package target

import (
	"encoding/hex"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/regcache"
)

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
	Stats         ConnStats      `json:"stats"`          // of all connections ever
	Copy          *CopyStatus    `json:"copy,omitempty"` // absent if no disk is a mapped file
}

// CopyStatus describes how Reads of mapped files move, over all exports.
type CopyStatus struct {
	Mode        regcache.CopyMode     `json:"mode"`
	Calibration *regcache.Calibration `json:"calibration,omitempty"` // of the provider, at the start
	Cache       *regcache.Stats       `json:"cache,omitempty"`       // absent while nothing is registered
}

// ExportStatus describes an export.
type ExportStatus struct {
	Name        string        `json:"name"`
	Description string        `json:"description,omitempty"`
	UUID        string        `json:"uuid"`
	Size        int64         `json:"size"`
	Default     bool          `json:"default"`
	ReadOnly    bool          `json:"read_only"`
	Opens       int           `json:"opens"`
	Windows     *WindowStatus `json:"windows,omitempty"` // absent if it is no mapped file
}

// WindowStatus describes the windows of a mapped file.
type WindowStatus struct {
	Off      string            `json:"off,omitempty"`     // why all Reads are copied
	Refused  string            `json:"refused,omitempty"` // why a window of an open connection was not registered, lately
	Boundary regcache.Boundary `json:"boundary"`          // bytes; of the connection that read most
	WindowStats
}

// Status returns the server's state and counters.
func (s *Server) Status() Status {
	st := Status{
		ID: hex.EncodeToString(s.id[:]), Provider: s.cfg.NIC.Name(),
		Registrations: s.cfg.NIC.Agent().Registrations.Load(),
	}
	s.sessions.mu.Lock()
	st.Sessions = len(s.sessions.byID)
	s.sessions.mu.Unlock()
	for _, x := range s.exports.list {
		e := ExportStatus{
			Name: x.Name, Description: x.Description, UUID: hex.EncodeToString(x.uuid[:]), Size: x.info().Size,
			Default: x.Default, ReadOnly: x.readOnly,
		}
		if _, ok := x.Device.(block.Windowed); ok {
			e.Windows = &WindowStatus{Off: s.mappings.off(x)}
			st.Copy = &CopyStatus{Mode: s.cfg.CopyMode, Cache: s.mappings.stats()}
		}
		st.Exports = append(st.Exports, e)
	}
	if st.Copy != nil && s.cost.Took > 0 {
		cost := s.cost
		st.Copy.Calibration = &cost
	}
	s.count(&st)
	return st
}

// count fills in what changes while connections work.
func (s *Server) count(st *Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Draining, st.Connections, st.Accepted, st.Refused = s.draining, len(s.conns), s.started, s.refused
	st.Stats = s.past
	// While this lock is held no queue ends: each counts once.
	s.exports.mu.Lock()
	defer s.exports.mu.Unlock()
	place := make(map[*exported]*WindowStatus)
	for i, x := range s.exports.list {
		e := &st.Exports[i]
		e.Opens = x.opens
		if e.Windows != nil {
			e.Windows.WindowStats = x.windows
			place[x] = e.Windows
		}
	}
	most := make(map[*exported]uint64)
	for c := range s.conns {
		stats, windows := c.published.read()
		st.Stats.add(stats)
		for i := range windows {
			w := &windows[i]
			to := place[w.export]
			to.add(&w.stats)
			if w.refused != nil {
				to.Refused = w.refused.Error()
			}
			if n := 1 + w.stats.Choice.BytesCopied + w.stats.Choice.BytesZeroCopied; n > most[w.export] {
				most[w.export], to.Boundary = n, w.boundary
			}
		}
	}
}
