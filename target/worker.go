package target

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/latency"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
)

// worker serves a VIA connection. A loop drives it; before and after that its
// goroutine has it. One at a time uses it, so nothing in it has a lock. Each
// part has one owner, whose methods touch that part only and return errors; the
// worker passes requests from one owner to the next, and alone ends the
// connection.
type worker struct {
	conn    *conn
	log     *slog.Logger
	carrier *carrier.Carrier
	login   login

	handshake     *handshake.Target // nil before an authentication
	authenticated *handshake.Result // nil in clear
	rechecked     time.Time         // the certificate
	rekey         rekeyer

	control controller  // control messages, logout
	exports handleTable // open exports and their queues
	receive receiver    // slots, checks of commands
	execute executor    // payload memory, disk ranges, the backend
	send    sender      // RDMA and answers

	watch      peerWatch
	stopwatch  latency.Stopwatch
	sleeper    sleeper
	iterations uint32
	payload    uint64 // bytes of the reads and writes that have begun
	share      uint64 // payload at which the visit ends
	failure    error  // why the connection ends
	done       [64]via.Completion
	polled     []via.Completion // of done, not handled yet
}

func newWorker(c *conn) *worker {
	w := &worker{conn: c, log: c.log, sleeper: newSleeper(c.server.cfg.Scheduler, c.server.cfg.BusyPoll)}
	w.exports = handleTable{server: c.server, conn: c, published: &c.published, log: c.log}
	w.execute.conn, w.execute.timer.scheduler = c, c.server.cfg.Scheduler
	w.stopwatch.Start(c.server.exports.clock)
	w.exports.stopwatch, w.execute.stopwatch = &w.stopwatch, &w.stopwatch
	w.control = controller{server: c.server, conn: c, signals: &c.signals, log: c.log}
	w.control.calls = diskCalls{scheduler: c.server.cfg.Scheduler, signals: &c.signals}
	return w
}

// serve accepts a confirmed request, serves the connection until it ends, and
// releases it.
func (w *worker) serve(ctx context.Context, r *via.ConnRequest, attrs via.ViAttributes) {
	refusals := &w.conn.server.refusals
	w.guard(func() {
		err := w.identifyLocal(r)
		if err == nil {
			err = w.accept(ctx, r, attrs)
		}
		if err != nil {
			w.fail(err)
		}
	})
	if err := w.failure; err != nil {
		w.conn.refuse(r, err)
		w.release()
		return
	}
	w.log.Debug("connection accepted", "event", "connection_accepted")
	debug.SetPanicOnFault(true) // of the release; loops have it set
	w.watch.next = w.sleeper.scheduler.Now().Add(loginTimeout)
	if err := w.sleeper.scheduler.Drive(w); err != nil {
		w.fail(err)
	}
	known := w.login.session != nil
	w.release()
	switch {
	case known && w.login.role == wire.RoleControl && w.login.session.preemptedBy.Load() != nil:
		w.conn.logCaused(w.log, slog.LevelWarn, "session ended: another client preempted it", "event", "session_preempted", "by", *w.login.session.preemptedBy.Load())
	case w.failure == nil:
		w.log.Debug("connection ended", "event", "connection_ended")
	case !known: // an unauthenticated peer: rate-limited
		refusals.Warn(w.log, "connection ended", "event", "connection_ended", "error", w.failure)
	default:
		w.conn.logCaused(w.log, slog.LevelWarn, "connection ended", "event", "connection_ended", "error", w.failure)
	}
}

// endReason returns why the control connection ends.
func (w *worker) endReason() string {
	by := w.login.session.preemptedBy.Load()
	switch {
	case by != nil:
		return "preempted by " + *by
	case w.failure != nil:
		return w.failure.Error()
	case w.control.loggingOut:
		return "logged out"
	}
	return "the target stops"
}

// fail records why the connection ends; no visit follows the present one.
func (w *worker) fail(err error) {
	if w.failure == nil {
		w.failure = err
	}
}

// finished reports whether the worker is to end.
func (w *worker) finished() bool {
	halt := w.conn.signals.halt.Load()
	switch {
	case w.failure != nil || halt == stopNow:
		return true
	case !w.carrier.Connected():
		if w.receive.busy > 0 || !w.control.leaving() {
			w.fail(errPeerLost)
		}
		return true
	case w.control.closing:
		return w.receive.busy == 0 && w.carrier.Idle()
	case halt == stopDrain:
		return w.receive.busy == 0 && w.carrier.Idle() && !w.control.leaving() && w.drained()
	}
	return false
}

// life changes when a packet shows that the initiator is alive.
func (w *worker) life() uint64 {
	if w.login.session == nil {
		return w.conn.signals.vi.Life()
	}
	return w.login.session.life(w.login.path)
}

var errPeerLost = errors.New("the initiator is gone")

// checkPeer runs once per interval of the watch. It closes a connection that is
// not logged in after the first interval, and a control connection whose
// initiator is silent. An I/O connection may be silent, it ends with its
// session; but it may not hold a range without progress.
func (w *worker) checkPeer() {
	interval, now := w.conn.server.cfg.KeepAlive, w.sleeper.scheduler.Now()
	defer w.tendRekey(now)
	if w.authenticated != nil {
		w.carrier.Age(now)
	}
	switch w.login.role {
	case 0:
		w.fail(errors.New("no login arrived in time"))
		return
	case wire.RoleIO:
		w.watch.next = now.Add(idleKeepalive)
		w.measureAges()
		if vi := w.conn.signals.vi; w.execute.held.stuck(vi.Life(), interval, vi.AnswerTime()) {
			w.fail(errRangeHeld)
		}
		return
	}
	if !w.control.calls.busy() && w.conn.mustOpen(now.Sub(w.watch.loggedIn)) {
		w.fail(fmt.Errorf("the initiator opened no export in %v", openTimeout))
		return
	}
	if w.authenticated != nil {
		w.refreshAuthenticated()
		s, err := w.login.session, w.recheck(now)
		switch {
		case err != nil && s == nil:
			w.fail(err)
			return
		case err != nil:
			if w.rekey.leaveBy.IsZero() {
				w.conn.logCaused(w.log, slog.LevelWarn, "session ended: its certificate is not valid any more", "event", "certificate_refused", "error", err)
			}
			w.dismiss(now)
		case s != nil:
			s.generation.Store(w.carrier.Generation())
		}
	}
	w.carrier.KeepAlive()
	if w.watch.tick(now, interval, w.life(), w.conn.signals.vi.AnswerTime()) {
		w.fail(fmt.Errorf("the initiator was silent for %d keepalives of %v", w.watch.missed, interval))
		return
	}
	if w.login.role == wire.RoleControl {
		w.login.session.checkAges()
	}
	if err := w.control.watchSizes(); err != nil {
		w.fail(err)
		return
	}
	w.carrier.Doorbell()
}
