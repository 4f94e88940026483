package target

import (
	"crypto/rand"
	"fmt"
	"io"
	"sync"
)

// Sessions are the sessions of a target. Servers that have them in common are
// one target to initiators, with a path over each: the paths of a session lead
// to any of them, over different providers, and one server fences those of
// another.
//
// Each server admits and authenticates the connections of its own listeners, by
// its own configuration. A connection joins a session of another server by what
// it would join one of its own: the keys of a sealed session, which one in
// clear does not have; or the ID and nonce of one in clear, together with an
// identity that may use all that the session has open, see joining.
//
// The servers export the same disks, with the same Depth, and are drained
// together.
type Sessions struct {
	id       [16]byte // of the target; here of its process
	lifetime uint64   // of the process, as the verifiers of disks have it
	table    sessionTable
	ended    endedTable
	removed  endedTable // writers of removed disks

	mu sync.Mutex // before Server.mu; guards session.counts and conn.session
	// +checklocks:mu
	servers []*Server

	exportsMu sync.Mutex // guards what the exports of all servers say
}

// NewSessions returns the sessions of a target, of which there are none yet.
// random is the source of its identity; nil is crypto/rand.
func NewSessions(random io.Reader) (*Sessions, error) {
	if random == nil {
		random = rand.Reader
	}
	s := makeSessions()
	return s, s.identify(random)
}

func makeSessions() *Sessions {
	s := new(Sessions)
	s.table.byID, s.table.byKeys = make(map[[16]byte]*session), make(map[[16]byte]*session)
	return s
}

// identify gives the target its identity.
func (s *Sessions) identify(random io.Reader) (err error) {
	if s.lifetime, err = newLifetime(random); err != nil {
		return fmt.Errorf("choose the lifetime of the process: %w", err)
	}
	if _, err := io.ReadFull(random, s.id[:]); err != nil {
		return fmt.Errorf("choose an identity: %w", err)
	}
	return nil
}

// add adds a server.
func (s *Sessions) add(server *Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.servers = append(s.servers, server)
}

// begunHere returns the sessions that began at the server, in no order. It
// shows them, whatever server their paths lead to by now.
func (s *Server) begunHere() (all []*session) {
	for _, x := range s.sessions.all() {
		if x.server == s {
			all = append(all, x)
		}
	}
	return all
}
