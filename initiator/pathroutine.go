package initiator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/viablk/viablk/internal/backoff"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/wire"
)

// A session with several hosts has a goroutine for each of them, which keeps a
// path there. When a path is lost, it
//
//  1. ends the control connection; queues end theirs, so that no transfer of
//     the target's accesses their memory, see Queue.fail;
//  2. has the target fence the path, over another one: from the answer on,
//     none of its requests is in the disk or will be;
//  3. lets the queues go on over another path, where they resend what has no
//     answer;
//  4. connects the path again, after a hold-down.
//
// Without another path the session is lost, which the reconnector replaces.

// Bounds of the pauses of a path.
const (
	fencePoll = time.Millisecond // the first pause between two questions; it doubles
	fenceMost = 20 * time.Millisecond

	holdFirst = time.Second      // after the first loss; it doubles
	holdMost  = 30 * time.Second // and goes on from there
	holdReset = time.Minute      // a path that stood for so long has no past
)

// attemptFirst is how long the first attempt at a host may take if there are
// others. It doubles up to Config.Timeout: the host may be slow.
const attemptFirst = time.Second

// attemptTime returns how long an attempt at a host may take, after so many
// that failed.
func (c *Config) attemptTime(failed int) time.Duration {
	if !c.targets.several() {
		return c.Timeout
	}
	return min(c.Timeout, attemptFirst<<min(failed, 10))
}

// holdDown is the time for which a path that was lost is not used. It doubles
// with each loss soon after the last one.
type holdDown struct{ limit time.Duration }

// next returns how long to hold down a path that stood for a time.
func (h *holdDown) next(stood time.Duration, random io.Reader) time.Duration {
	h.limit = min(max(2*h.limit, holdFirst), holdMost)
	if stood >= holdReset {
		h.limit = holdFirst
	}
	var r [8]byte
	if _, err := io.ReadFull(random, r[:]); err != nil {
		return h.limit
	}
	half := h.limit / 2
	return half + time.Duration(binary.LittleEndian.Uint64(r[:])%uint64(half)) // paths that were lost together return apart
}

// pathRoutine is the goroutine that keeps the path to a host.
type pathRoutine struct {
	id    uint16
	host  string
	ended *sched.Event // the path is closed and fenced, or the session ends

	// leave ends ctx once the host is not one of the target's any more.
	ctx   context.Context
	leave context.CancelFunc
}

// keepPaths starts a routinePath for each host that has none, and ends those
// whose host is not the target's any more, which it returns by number. A
// session with one host has none until it gets another host.
func (s *session) keepPaths() (left [maxPaths]*pathRoutine) {
	begun, left := s.changeRoutines()
	for _, k := range begun {
		s.cfg.Scheduler.Go(func() { s.routinePath(k) })
	}
	return left
}

// changeRoutines does the work of keepPaths but for starting goroutines.
func (s *session) changeRoutines() (begun []*pathRoutine, left [maxPaths]*pathRoutine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing || s.kept.IsSet() || !s.cfg.targets.several() && s.running == 0 {
		return nil, left
	}
	s.keeping.Store(true)
	for id, host := range s.cfg.targets.list() { // inside the lock: a later call sees no older list
		switch k := s.routines[id]; {
		case k != nil && k.host != host:
			k.leave()
			left[id] = k
		case k == nil && host != "":
			k = &pathRoutine{id: uint16(id), host: host, ended: s.cfg.Scheduler.NewEvent()}
			k.ctx, k.leave = s.cfg.Scheduler.WithCancel(s.ctx)
			s.routines[id], s.failures[id], s.losses[id], s.lostAt[id] = k, nil, 0, time.Time{}
			s.taken[id].Store(0)
			s.running++
			begun = append(begun, k)
		}
	}
	return begun, left
}

// routinePath keeps the path of a host until the session is closed or lost, or
// the host leaves.
func (s *session) routinePath(k *pathRoutine) {
	err := s.cfg.guard("panic: the session is lost", func() error {
		s.keepPath(k)
		return nil
	})
	if err != nil {
		s.lost.Set()
	}
	left := k.ctx.Err() != nil
	k.leave()
	s.mu.Lock()
	s.routines[k.id] = nil
	s.mu.Unlock()
	k.ended.Set()
	if left {
		s.keepPaths() // another host may have the number by now
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running--; s.running == 0 {
		s.kept.Set()
	}
}

func (s *session) keepPath(k *pathRoutine) {
	id := k.id
	sch, log := s.cfg.Scheduler, s.cfg.Log.With("path", id, "host", k.host)
	var hold holdDown
	for k.ctx.Err() == nil {
		p := s.at(id)
		if p == nil {
			if p = s.regainPath(k); p == nil {
				return
			}
			log.Info("the path is up", "event", "path_up", "epoch", p.epoch)
		}
		sch.Wait(k.ctx, -1, p.ended, p.lost)
		if s.isClosing() {
			return // close ends the path
		}
		removed, lostAt := p.up(), sch.Now()
		p.lose() // a queue may have done it
		err := p.close()
		if removed {
			log.Info("the path is removed", "event", "path_removed", "epoch", p.epoch)
		} else {
			log.Warn("the path is lost", "event", "path_lost", "epoch", p.epoch, "error", errors.Join(p.err(), err))
		}
		if !s.fencePath(p) {
			s.lost.Set()
			return
		}
		log.Debug("the path is fenced", "event", "path_fenced", "epoch", p.epoch)
		s.mu.Lock()
		s.paths[id], s.losses[id], s.lostAt[id] = nil, s.losses[id]+1, lostAt
		s.mu.Unlock()
		p.fenced.Set()
		sch.Wait(k.ctx, hold.next(sch.Now().Sub(p.since), s.cfg.Random))
	}
}

// regainPath connects a path until it is up, or until the session is closed or
// the host leaves.
func (s *session) regainPath(k *pathRoutine) *path {
	sch := s.cfg.Scheduler
	pauses := backoff.Backoff{Random: s.cfg.Random}
	for failed := 0; k.ctx.Err() == nil; failed++ {
		ctx, cancel := sch.WithTimeout(k.ctx, s.cfg.attemptTime(failed))
		p := s.newPath(k.id, k.host, s.nextEpoch())
		err := p.start(ctx)
		cancel()
		if err == nil {
			return p
		}
		s.cfg.Log.Debug("the path does not connect", "event", "path_failed", "path", k.id, "host", k.host, "error", err)
		s.noteFailure(k.id, err)
		sch.Wait(k.ctx, pauses.Next(s.cfg.ReconnectDelay), s.ended)
		if s.ended.IsSet() {
			return nil
		}
	}
	return nil
}

var errOtherTarget = errors.New("another target answers there")

// fencePath has the target fence a path, over any other one. It returns false
// if there is none, or the session is closed.
func (s *session) fencePath(p *path) bool {
	for pause := fencePoll; s.ctx.Err() == nil; pause = min(2*pause, fenceMost) {
		over := s.choose(p.id)
		if over == nil {
			return false
		}
		ask, a := wire.Fence{PathID: p.id, Epoch: p.epoch}, wire.FenceResponse{}
		err := over.request(s.ctx, &ask, &a)
		switch {
		case err != nil && over.up():
			s.cfg.Log.Debug("the target does not fence", "event", "fence_failed", "path", p.id, "error", err)
			return false
		case err != nil: // it was lost too
		case a.Status == wire.StatusOK && a.PathID == p.id && a.Epoch >= p.epoch:
			return true
		case a.Status != wire.StatusBusy:
			s.cfg.Log.Debug("the target does not fence", "event", "fence_failed", "path", p.id, "error", fmt.Errorf("%v", a.Status))
			return false
		}
		s.cfg.Scheduler.Wait(s.ctx, pause)
	}
	return false
}

// addPath makes a path known whose control connection has logged in.
func (s *session) addPath(p *path, a *wire.LoginResponse) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended.IsSet() {
		return errSession
	}
	if p.epoch == firstEpoch {
		s.login = *a
	} else if a.TargetID != s.login.TargetID {
		return errOtherTarget
	}
	s.paths[p.id], s.failures[p.id] = p, nil
	return nil
}

// at returns the path of a host, or nil.
func (s *session) at(id uint16) *path {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paths[id]
}

// nextEpoch returns an epoch that no connection of the session has had.
func (s *session) nextEpoch() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch++
	return s.epoch
}

// noteFailure notes why a path does not connect.
func (s *session) noteFailure(id uint16, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures[id] = err
}

// upPaths returns the paths that are up, but not that with a number.
func (s *session) upPaths(but int) (up []*path) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.paths[:]), func(p *path) bool { return p == nil || int(p.id) == but || !p.up() })
}

// choose returns a path that is up, other than that with a number, or nil.
func (s *session) choose(but uint16) *path {
	if up := s.upPaths(int(but)); len(up) > 0 {
		return up[0]
	}
	return nil
}

// lead returns the path of the session's control requests: the first that is
// up, or one that has not ended, or nil.
func (s *session) lead() *path {
	if up := s.upPaths(-1); len(up) > 0 {
		return up[0]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.paths {
		if p != nil && !p.ended.IsSet() {
			return p
		}
	}
	return nil
}

// request sends a control request over a path, and over another one if that is
// lost before the answer: the target answers a request the same way again.
func (s *session) request(ctx context.Context, q, answer wire.Message) error {
	for {
		p := s.lead()
		if p == nil {
			return s.err()
		}
		err := p.request(ctx, q, answer)
		if err == nil || ctx.Err() != nil || !p.ended.IsSet() || s.choose(p.id) == nil {
			return err
		}
	}
}

// setEnded notes that routineControl has ended; the session ends with the last.
func (p *path) setEnded() {
	s := p.s
	s.mu.Lock()
	defer s.mu.Unlock()
	p.ended.Set()
	for _, other := range s.paths {
		if other != nil && !other.ended.IsSet() {
			return
		}
	}
	p.mu.Lock()
	s.cause = p.cause // nil: it was closed
	p.mu.Unlock()
	s.lost.Set()
	s.ended.Set()
}

// only reports whether no other path has a control connection.
func (p *path) only() bool {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	for _, other := range p.s.paths {
		if other != nil && other != p && !other.ended.IsSet() {
			return false
		}
	}
	return true
}
