package initiator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/viablk/viablk/internal/backoff"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
)

// A reconnector ends a session that lost a connection and opens the next one
// when the target is reachable again. Meanwhile the queues keep their requests,
// and resend the unanswered ones, see reconnectState.
//
// The resend is safe for two reasons. A target grants a disk to one writer at a
// time: it opens the disk to the new session after the last request of the old
// one has left the disk, so that no late write of the old session meets one of
// the new; the writes of a target that was killed end with it. And a request
// holds its blocks until it is answered, see overlaps.
type reconnector struct {
	device    *Device
	scheduler sched.Scheduler
	quit      context.Context // stop cancels it
	cancel    context.CancelFunc
	cut       context.Context // of the logout from a target that drains; stop cancels it later
	cancelCut context.CancelFunc
	ended     *sched.Event // routineReconnect has ended

	mu      sync.Mutex
	session *session // the current one, or the last
	// +checklocks:mu
	changed       *sched.Event // a field guarded by mu has changed; update replaces it
	sessionLosses uint64       // of sessions
	forged        uint64       // control messages that a seal refused
	lostAt        time.Time    // of the last loss; zero while connected
	returnedAt    time.Time    // of the current session; zero of the first
	presentAt     time.Time    // when the lost target was there last; see present
	present       bool         // it was, at the last attempt
	failure       error        // why the reconnector gave up
	refusal       string       // why the target does not open the disk; "" if it is not there
}

// changedError is how the disk of a target that is back differs from the lost
// one.
type changedError struct{ what string }

func (e *changedError) Error() string { return "the target is back, but " + e.what }

func newReconnector(d *Device, s *session) *reconnector {
	scheduler := d.cfg.Scheduler
	k := &reconnector{device: d, scheduler: scheduler, session: s, ended: scheduler.NewEvent(), changed: scheduler.NewEvent()}
	k.quit, k.cancel = scheduler.WithCancel(context.Background())
	k.cut, k.cancelCut = scheduler.WithCancel(context.Background())
	return k
}

// stop ends routineReconnect; the caller closes the session.
func (k *reconnector) stop() {
	k.cancel()
	k.scheduler.Wait(context.Background(), k.device.cfg.Timeout, k.ended)
	k.cancelCut()
	k.scheduler.Wait(context.Background(), -1, k.ended)
}

// current returns the current session, which may have ended, and why the
// reconnector gave up, or nil.
func (k *reconnector) current() (*session, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.session, k.failure
}

// await returns a live session other than the one that the caller lost. It
// fails when ctx is over, and from stop on.
func (k *reconnector) await(ctx context.Context, lost *session) (*session, error) {
	for {
		k.mu.Lock()
		s, failure, changed := k.session, k.failure, k.changed
		k.mu.Unlock()
		switch {
		case failure != nil:
			return nil, failure
		case k.quit.Err() != nil:
			return nil, errClosed
		case ctx.Err() != nil:
			return nil, k.awayError(nil)
		case s != lost && s.err() == nil && !s.draining.Load():
			return s, nil
		}
		k.scheduler.Wait(ctx, -1, changed, k.ended)
	}
}

// awaitPath returns the path over which a queue goes on that lost its
// connection over another one: of the same session when that path is fenced, or
// of the next session. It fails as await does.
func (k *reconnector) awaitPath(ctx context.Context, r *redialer) (*path, error) {
	lost := r.lost
	for {
		if !r.moving {
			k.scheduler.Wait(ctx, -1, lost.fenced, lost.s.lost, k.ended)
		}
		except := lost.s
		if r.moving || lost.fenced.IsSet() {
			except = nil
		}
		s, err := k.await(ctx, except)
		if err != nil {
			return nil, err
		}
		if p := s.pathFor(r.index); p != nil {
			return p, nil
		}
		k.scheduler.Wait(ctx, longestPoll) // it is being lost, or there is another soon
	}
}

// presence reports whether the target is there: it answers the keepalives of
// the current session, as far as the reconnector knows, or refuses the next one
// for a reason that passes. Else last is when it was there last.
func (k *reconnector) presence() (last time.Time, there bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.presenceLocked()
}

// +checklocks:k.mu
func (k *reconnector) presenceLocked() (last time.Time, there bool) {
	last = k.returnedAt
	for _, t := range [...]time.Time{k.lostAt, k.presentAt} {
		if t.After(last) {
			last = t
		}
	}
	return last, k.present || k.lostAt.IsZero() || !k.session.ended.IsSet()
}

// addStatus adds the state of the reconnector to a status.
func (k *reconnector) addStatus(st *Status) {
	k.mu.Lock()
	defer k.mu.Unlock()
	st.SessionLosses, st.Stats.Forged = k.sessionLosses, k.forged
	if !k.lostAt.IsZero() {
		now := k.scheduler.Now()
		st.Connected, st.DisconnectedSeconds, st.State, st.Error = false, now.Sub(k.lostAt).Seconds(), StateWaiting, k.refusal
		if last, there := k.presenceLocked(); !there && now.Sub(last) > k.device.cfg.LossTimeout {
			st.State = StateFailed
			st.Error = cmp.Or(k.refusal, fmt.Sprintf("the target did not return within %v", k.device.cfg.LossTimeout))
		}
	}
	if k.failure != nil {
		st.Connected, st.State, st.Error = false, StateFailed, k.failure.Error()
	}
}

// update changes fields under mu and wakes the goroutines in await.
func (k *reconnector) update(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
	k.changed.Set()
	k.changed = k.scheduler.NewEvent()
}

// routineReconnect replaces lost sessions until stop, or until the disk
// changed.
func (k *reconnector) routineReconnect() {
	defer k.ended.Set()
	err := k.device.cfg.guard("panic: the disk is lost, and requests fail with EIO", func() error {
		k.replaceSessions()
		return nil
	})
	if err != nil {
		k.update(func() { k.failure, k.lostAt = err, time.Time{} })
	}
}

// replaceSessions replaces lost sessions until stop, or until the disk changed.
func (k *reconnector) replaceSessions() {
	log := k.device.cfg.Log
	for {
		s, _ := k.current()
		k.scheduler.Wait(k.quit, -1, s.ended, s.lost)
		if k.quit.Err() != nil {
			return
		}
		began := k.scheduler.Now()
		away := log.With("host", k.device.cfg.Host, "timeout", k.device.cfg.LossTimeout)
		if s.draining.Load() {
			away.Warn("the target ends the session: requests wait for it", "event", "target_leaves")
		} else {
			away.Warn("the target is lost: requests wait for it", "event", "target_lost")
		}
		k.update(func() { k.sessionLosses, k.lostAt = k.sessionLosses+1, began })
		end := expiry{absent: began.Add(absentTime)}
		if s.draining.Load() {
			k.awaitAnswers(s)
			end.soon = k.scheduler.Now().Add(successorTime)
		}
		if errors.Is(s.err(), seal.ErrForged) {
			k.update(func() { k.forged++ })
		}
		s.superseded.Store(true)
		// With an answer to the logout, no request of the session is in the disk.
		k.logOut(s)
		if s.durable {
			k.device.markDurable(k.device.writes())
		}
		last, _ := k.presence()
		end.at = last.Add(k.device.cfg.LossTimeout)
		if ms := s.retryAfter.Load(); ms != 0 {
			end.delay, end.announced = time.Duration(ms)*time.Millisecond, k.scheduler.Now().Add(announcedTime)
		}
		next, err := k.reopen(log, end)
		switch {
		case k.quit.Err() != nil:
			if next != nil {
				_ = next.close()
			}
			return
		case err != nil:
			log.Error("the disk is lost: requests fail with EIO", "event", "disk_failed", "host", k.device.cfg.Host, "error", err)
			k.update(func() { k.failure, k.lostAt = err, time.Time{} })
			return
		}
		next.conflicts += s.conflicts
		k.update(func() {
			k.session, k.lostAt, k.returnedAt, k.refusal, k.present = next, time.Time{}, k.scheduler.Now(), "", false
		})
		next.keepPaths() // hosts may have changed while it was not known
		log.Info("the target is back", "event", "target_back", "host", k.device.cfg.Host, "disconnected", k.scheduler.Now().Sub(began).Round(time.Millisecond))
	}
}

// logOut logs out of a session that is lost, or whose target drains: that one
// may have to flush for long, and the answer says what is durable.
func (k *reconnector) logOut(s *session) {
	there := !s.ended.IsSet()
	if s.draining.Load() {
		_ = s.closeBy(k.cut)
	} else {
		_ = s.close()
	}
	if there && (s.draining.Load() || s.loggedOut) {
		k.update(func() { k.presentAt = k.scheduler.Now() })
	}
}

// reopen retries until the disk is open again. It fails if the disk is another
// one, or has lost data. It logs the end of the loss timeout.
func (k *reconnector) reopen(log *slog.Logger, end expiry) (*session, error) {
	cfg := &k.device.cfg
	ask := wire.OpenRequest{Writer: k.device.writer, Return: true, Generation: k.device.generation}
	conflicts := 0
	for pauses := (backoff.Backoff{Random: cfg.Random}); ; {
		ctx, cancel := k.scheduler.WithTimeout(k.quit, cfg.Timeout)
		s, err := openDisk(ctx, *cfg, &ask)
		cancel()
		if err == nil {
			s.conflicts = conflicts
			if err = k.device.checkSame(&s.export); err == nil {
				k.device.generation = s.export.Generation
				k.device.keepLife()
				return s, nil
			}
			return nil, errors.Join(err, s.close())
		}
		var refused *openRefusedError
		if errors.As(err, &refused) && refused.status == wire.StatusStale && ask.Return {
			if cfg.OnConflict == ConflictFail {
				return nil, &changedError{"another client wrote to the disk meanwhile (" + refused.reason + ")"}
			}
			log.Warn("another client wrote to the disk meanwhile: requests that wait fail, and what is cached may be old", "event", "writer_conflict", "host", cfg.Host, "reason", refused.reason)
			ask.Return, conflicts = false, 1
			continue
		}
		k.notePresence(err, &end)
		most := end.longestPause(k.scheduler.Now(), k.noteRefusal(log, err))
		if k.pause(log, pauses.Next(min(most, cfg.ReconnectDelay)), &end); k.quit.Err() != nil {
			return nil, errClosed
		}
	}
}

// A target that nothing listens for may be back soon: an attempt costs it
// nothing until then. One that refuses is asked less often.
const (
	absentTime  = 30 * time.Second
	absentDelay = 150 * time.Millisecond
)

// expiry is the end of a loss timeout.
type expiry struct {
	at      time.Time
	present bool // the target was there at the last attempt: the timeout does not run
	logged  bool
	soon    time.Time // before it the successor of a target that drained is due
	absent  time.Time // before it a target that nothing listens for may be back soon

	announced time.Time     // before it the successor serves that the target announced
	delay     time.Duration // between attempts until then
}

// longestPause returns how long to wait at most before the next attempt.
// refused is that a target is there.
func (e *expiry) longestPause(now time.Time, refused bool) time.Duration {
	switch {
	case now.Before(e.announced):
		return e.delay
	case now.Before(e.soon):
		return successorDelay
	case !refused && now.Before(e.absent):
		return absentDelay
	}
	return math.MaxInt64
}

// pause waits for delay, or until stop. It logs the end of the loss timeout.
func (k *reconnector) pause(log *slog.Logger, delay time.Duration, e *expiry) {
	for until := k.scheduler.Now().Add(delay); ; {
		now := k.scheduler.Now()
		if !e.logged && !e.present && !now.Before(e.at) {
			e.logged = true
			log.Error("the target did not return in time: requests fail with EIO until it does", "event", "loss_timeout", "host", k.device.cfg.Host, "timeout", k.device.cfg.LossTimeout)
		}
		left := until.Sub(now)
		if left <= 0 || k.quit.Err() != nil {
			return
		}
		if !e.logged && !e.present {
			left = min(left, e.at.Sub(now))
		}
		k.scheduler.Wait(k.quit, left)
	}
}

// noteRefusal logs why an attempt failed: once at WARN what a target says that
// is there, and at DEBUG everything else. It reports whether to ask less often:
// a place may be free at any moment, all else takes longer.
func (k *reconnector) noteRefusal(log *slog.Logger, err error) (refused bool) {
	var login *refusedError
	var open *openRefusedError
	var security *SecurityError
	said := ""
	if errors.As(err, &login) || errors.As(err, &open) || errors.As(err, &security) || errors.Is(err, errOpenPending) || isFull(err) {
		said = err.Error()
	}
	k.mu.Lock()
	known := said == "" || said == k.refusal
	k.mu.Unlock()
	if known {
		log.Debug("reconnect failed", "event", "reconnect_failed", "host", k.device.cfg.Host, "error", err)
	} else {
		log.Warn("the target is there and refuses: requests wait", "event", "target_refuses", "host", k.device.cfg.Host, "reason", err)
	}
	k.update(func() { k.refusal = said })
	return said != "" && !isFull(err)
}

// notePresence notes whether the target was there at an attempt that failed
// with err. One that rejects connections without a reason, as targets of before
// do, is full, or still going down if it drained.
func (k *reconnector) notePresence(err error, end *expiry) {
	now := k.scheduler.Now()
	end.present = present(err) || end.soon.IsZero() && errors.Is(err, via.ErrReject) && !errors.As(err, new(*via.RejectError))
	if end.present {
		end.at, end.logged = now.Add(k.device.cfg.LossTimeout), false
	}
	k.update(func() {
		if k.present = end.present; k.present {
			k.presentAt = now
		}
	})
}

// checkSame returns an error unless an opened disk is the attached one, with
// every durable write.
func (d *Device) checkSame(a *wire.OpenResponse) error {
	features := block.Features(a.Features) & block.KnownFeatures
	missing, i := d.info.Features&^features, d.Info()
	switch {
	case a.ExportUUID != d.export.ExportUUID:
		return &changedError{"serves another disk under this name, or has lost what was in memory"}
	case int64(a.Size) < i.Size:
		return &changedError{fmt.Sprintf("the disk has %d bytes and had %d", a.Size, i.Size)}
	case a.MinimumBlock != i.MinimumBlock:
		return &changedError{fmt.Sprintf("the disk has blocks of %d bytes and had those of %d", a.MinimumBlock, i.MinimumBlock)}
	case missing&^(block.Rotational|block.ReadOnly) != 0:
		return &changedError{fmt.Sprintf("the disk can do less than before: features %#x are missing", uint32(missing))}
	case features&block.ReadOnly != i.Features&block.ReadOnly:
		return &changedError{"the disk may be written or not, which was otherwise"}
	case a.Verifier == d.verifier:
		return nil
	case d.dirty():
		return &changedError{"its machine was started again, and writes that were not flushed may be lost"}
	}
	d.verifier = a.Verifier
	return nil
}
