package target

import (
	"cmp"
	"encoding/hex"
	"log/slog"
	"slices"
	"time"

	"github.com/viablk/viablk/internal/contain"
)

// SessionStatus describes the session of an initiator.
type SessionStatus struct {
	ID          string       // 32 hexadecimal digits
	Peer        string       // of the control connection
	Identity    string       // of the client, as its kernel or certificate proves it
	Exports     []string     // open
	Connections int          // logged in
	Opened      time.Time    // logged in
	LastActive  time.Time    // of the last request that its connections have published
	Stats       ExportCounts // of all its connections ever
}

// sessionCounts are the counters of a session, guarded by Sessions.mu.
type sessionCounts struct {
	conns  int          // logged in, and not removed
	past   ExportCounts // of removed connections
	active time.Time    // of the last request of a removed connection
	reason string       // why the control connection ended
}

// joinSession counts a connection of the session in.
func (s *Server) joinSession(c *conn, x *session) {
	defer contain.Shared()
	s.shared.mu.Lock()
	defer s.shared.mu.Unlock()
	c.session = x
	x.counts.conns++
}

// detachSession counts a connection that ends out of its session. The last one
// logs the end of the session.
func (s *Server) detachSession(c *conn) {
	s.shared.mu.Lock()
	x := c.session
	c.session = nil
	if x == nil {
		s.shared.mu.Unlock()
		return
	}
	stats, active := c.published.readActive()
	x.counts.add(&stats, active)
	x.counts.conns--
	n := x.counts
	s.shared.mu.Unlock()
	if n.conns == 0 {
		c.logCaused(c.log, slog.LevelInfo, "session ended", "event", "session_ended", "session", x.shortID(),
			"identity", x.name, "duration", s.cfg.Scheduler.Now().Sub(x.since).Round(time.Millisecond),
			"reads", n.past.Reads, "writes", n.past.Writes, "bytes_read", n.past.BytesRead, "bytes_written", n.past.BytesWritten,
			"errors", n.past.Errors, "reason", n.reason)
	}
}

// shortID returns the start of the ID, as lines of the log have it.
func (s *session) shortID() string { return hex.EncodeToString(s.id[:4]) }

// add adds the counters of a connection.
func (n *sessionCounts) add(stats *ConnStats, active time.Time) {
	n.past.add(&ExportCounts{Counts: stats.Counts, Errors: stats.Errors})
	if active.After(n.active) {
		n.active = active
	}
}

// Sessions describes the sessions that began at the server, the oldest first.
func (s *Server) Sessions() []SessionStatus {
	all := s.begunHere()
	counts := s.sessionCounts(all)
	list := make([]SessionStatus, 0, len(all))
	for i, x := range all {
		list = append(list, x.status(&counts[i]))
	}
	slices.SortFunc(list, func(a, b SessionStatus) int {
		return cmp.Or(a.Opened.Compare(b.Opened), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// sessionCounts returns the counters of sessions, at all servers.
func (s *Server) sessionCounts(all []*session) []sessionCounts {
	s.shared.mu.Lock()
	defer s.shared.mu.Unlock()
	counts, index := make([]sessionCounts, len(all)), make(map[*session]int)
	for i, x := range all {
		counts[i], index[x] = x.counts, i
	}
	for _, server := range s.shared.servers {
		server.eachConn(func(c *conn) {
			if i, ok := index[c.session]; ok {
				stats, active := c.published.readActive()
				counts[i].add(&stats, active)
			}
		})
	}
	return counts
}

// eachConn calls f for every connection.
func (s *Server) eachConn(f func(*conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		f(c)
	}
}

// status describes the session.
func (s *session) status(n *sessionCounts) SessionStatus {
	st := SessionStatus{
		ID: hex.EncodeToString(s.id[:]), Peer: s.peer, Identity: s.name, Exports: []string{},
		Connections: n.conns, Opened: s.since, LastActive: n.active, Stats: n.past,
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.opens {
		if !o.closed.Load() && !slices.Contains(st.Exports, o.export.Name) {
			st.Exports = append(st.Exports, o.export.Name)
		}
	}
	return st
}
