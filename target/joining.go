package target

import (
	"github.com/viablk/viablk/internal/access"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/wire"
)

// A connection joins a session as the client that began it: with its identity,
// and by its keys, or in clear by its ID and nonce. Over another provider the
// same initiator may have no identity, because a kernel tells users and a
// network in clear does not. Such a connection joins all the same, if it
// gains nothing: it may itself use every export that the session has open, as
// its own session might. From then on the session opens only what all that
// joined may use.

// joining is a connection that joins a session.
type joining struct {
	signals  *signals
	identity access.Identity
	proof    *handshake.Result // how it has authenticated; nil in clear
	exports  *exportTable      // of its server
}

// joining returns the connection as one that joins a session.
func (w *worker) joining() *joining {
	return &joining{&w.conn.signals, w.login.identity, w.authenticated, w.conn.server.exports}
}

// errNoRights refuses a connection of the session's own initiator.
const errNoRights = "the session has an export open that has a list of clients, and over this listener the initiator is not known to be one: leave this path out"

// find returns the session that a connection joins, which is unknown to other
// clients.
func (t *sessionTable) find(j *joining, q *wire.LoginRequest) (*session, wire.LoginReason, string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.byID[q.SessionID]
	if s == nil || !s.admits(j.proof) || !s.mayBeOf(j) {
		return nil, wire.ReasonSession, "no such session"
	}
	return s, wire.ReasonNone, ""
}

// mayBeOf reports whether the session may be of the client that a connection
// is of: one of them is anonymous, or they are the same.
func (s *session) mayBeOf(j *joining) bool {
	key := j.identity.Key()
	return s.identity.Key() == key || j.proof == nil && (key == "" || s.identity.Key() == "")
}

// admitIdentityLocked returns why a connection does not join the session for
// its identity, if so. The session remembers an identity that is not its own,
// at most one.
//
// +checklocks:s.mu
func (s *session) admitIdentityLocked(j *joining) (wire.LoginReason, string) {
	key := j.identity.Key()
	switch {
	case key == s.identity.Key():
		return wire.ReasonNone, ""
	case s.other != nil && s.other.Key() != key:
		return wire.ReasonSession, "no such session"
	}
	for _, o := range s.opens {
		if !o.closed.Load() && !j.exports.admits(j.identity, o) {
			return wire.ReasonHost, errNoRights
		}
	}
	s.other = &j.identity
	return wire.ReasonNone, ""
}

// admits reports whether a client may open what a session has open: by the
// rights of then, and by those of now.
func (t *exportTable) admits(i access.Identity, o *opened) bool {
	m := accessMode(&wire.OpenRequest{Mode: o.mode})
	if access.Admits(i, o.export.Rights, m) != access.Granted {
		return false
	}
	x := t.current.Load().byName[o.export.Name]
	return x == nil || x.Reservations != o.export.Reservations || access.Admits(i, x.Rights, m) == access.Granted
}

// findForAll is find for all identities of a session.
func (s *session) findForAll(t *exportTable, name string, m access.Mode) (x *exported, v access.Verdict, why string) {
	x, v, why = t.find(s.identity, name, m)
	s.mu.Lock()
	other := s.other
	s.mu.Unlock()
	if other == nil {
		return x, v, why
	}
	if _, least, reason := t.find(*other, name, m); least < v {
		v, why = least, "over another path: "+reason
	}
	return x, v, why
}

// overtakenLocked reports whether a client joined, while an export was being
// opened, that may not use it.
//
// +checklocks:s.mu
func (s *session) overtakenLocked(x *exported, m access.Mode) bool {
	return s.other != nil && access.Admits(*s.other, x.Rights, m) != access.Granted
}
