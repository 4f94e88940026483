package target

import (
	"time"

	"github.com/viablk/viablk/internal/wire"
)

// A drain ends sessions as a whole: an initiator that loses one connection of a
// session gives up the others, with the requests in flight there.
//
//  1. Each I/O connection refuses new commands. It is quiet when nothing is in
//     flight and the last answer has left.
//  2. When all are quiet, the control connection sends the event go away. The
//     initiator takes the answers and logs out, within logoutGrace.
//  3. The I/O connections end, and after them the control connection, whose end
//     would stop them.

// returnAfter is when the initiators of a target with a successor return, and
// how far apart their attempts may be, ms: the successor serves soon.
const returnAfter = 4

// AnnounceSuccessor has Drain tell initiators that another target is ready to
// serve them, so that they return at once. It is called before Drain.
func (s *Server) AnnounceSuccessor() { s.succeeded.Store(true) }

// logoutGrace is how long a drain waits for the logout of an initiator that has
// nothing in flight. Its answer says that everything is durable.
const logoutGrace = time.Second

// tendDrain takes the next step of a drain.
func (w *worker) tendDrain() {
	session := w.login.session
	switch w.login.role {
	case wire.RoleIO:
		quiet := w.receive.busy == 0 && w.carrier.Idle()
		if before := w.conn.signals.quiet.Swap(quiet); quiet && !before {
			session.controls((*signals).recheckSession)
		}
	case wire.RoleControl:
		if session.letGo.Load() {
			return
		}
		now := w.sleeper.scheduler.Now()
		if err := w.control.drain(now); err != nil {
			w.fail(err)
		}
		if by := w.control.leaveBy; !by.IsZero() {
			w.watch.within(now, by.Sub(now))
		}
	}
}

// drained reports whether a connection without requests in flight may end.
func (w *worker) drained() bool {
	session := w.login.session
	switch w.login.role {
	case wire.RoleIO:
		return session.letGo.Load()
	case wire.RoleControl:
		return session.letGo.Load() && !session.served()
	}
	return true // of no session
}

// drain tells the initiator, once, to log out, and lets the connections end if
// it does not. Its requests in flight have been answered by then: a logout
// would cut them off.
func (k *controller) drain(now time.Time) error {
	session := k.login.session
	switch {
	case !k.leaveBy.IsZero():
		if !now.Before(k.leaveBy) {
			session.dismissConns()
		}
	case !session.quiet():
	case k.login.features&wire.FeatureEvents == 0 || k.leaving():
		session.dismissConns()
	default:
		k.leaveBy = now.Add(logoutGrace)
		if err := k.watchExports(); err != nil { // the removal that it may go for comes first
			return err
		}
		return k.sendGoAway()
	}
	return nil
}

// sendGoAway tells the initiator that the target drains, and when to return if
// there is a successor.
func (k *controller) sendGoAway() error {
	v := wire.Event{Kind: wire.EventGoAway}
	if k.server.succeeded.Load() {
		v.RetryAfter = returnAfter
	}
	return k.sendEvent(v)
}

// announce tells an initiator that logged out before it was asked to go when it
// may return.
func (k *controller) announce() error {
	if !k.leaveBy.IsZero() || !k.server.succeeded.Load() || k.login.features&wire.FeatureEvents == 0 {
		return nil
	}
	return k.sendGoAway()
}

// quiet reports whether nothing is in flight on the I/O connections of a
// session whose target drains.
func (s *session) quiet() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		if !c.quiet.Load() {
			return false
		}
	}
	return true
}

// dismissConns lets the connections end.
func (s *session) dismissConns() {
	s.letGo.Store(true)
	s.recheckConns()
}
