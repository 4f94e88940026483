package initiator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/wire"
)

// pauses is a scheduler that notes pauses in place of waiting for their end.
type pauses struct {
	sched.Scheduler
	diary *diary
	first func() // at the first pause; nil does nothing
}

// Wait implements [sched.Scheduler].
func (p *pauses) Wait(ctx context.Context, d time.Duration, events ...*sched.Event) {
	if d < 0 || len(events) != 0 {
		p.Scheduler.Wait(ctx, d, events...)
		return
	}
	p.diary.note("pause " + d.String())
	if p.first != nil {
		p.first()
	}
}

// diary is what happened, in its order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (x *diary) note(line string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.lines = append(x.lines, line)
}

func (x *diary) wants(t *testing.T, want ...string) {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	if !slices.Equal(x.lines, want) {
		t.Errorf("%q, want %q", x.lines, want)
	}
}

// refuser is a scripted target that refuses handshakes, or logins of a role,
// and notes each.
type refuser struct {
	diary  diary
	sealed *scriptedTarget
	role   wire.Role // whose logins are refused
	answer wire.LoginResponse

	mu    sync.Mutex
	after []uint32 // milliseconds, of each refusal to come
}

// next returns the time of the next refusal.
func (x *refuser) next() (after uint32, ok bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.after) == 0 {
		return 0, false
	}
	after, x.after = x.after[0], x.after[1:]
	return after, true
}

func (x *refuser) play() play {
	return play{
		message: func(e *end, msg []byte) (handled, goesOn bool) {
			if wire.RawOpcode(msg) != wire.OpAuth {
				return false, true
			}
			var m wire.Auth
			if m.Decode(msg) != nil {
				return true, false
			}
			if e.auth == nil {
				x.diary.note("handshake")
				if after, ok := x.next(); ok {
					e.sendControl(&wire.Auth{
						ID: m.ID, PathEpoch: m.PathEpoch, Answer: true, Status: wire.StatusRetry,
						Kind: m.Kind, Version: m.Version, RetryAfter: after,
					})
					return true, true
				}
			}
			return true, x.sealed.authenticate(e, msg)
		},
		login: func(e *end, q *wire.LoginRequest, a *wire.LoginResponse) bool {
			if q.Role == x.role {
				x.diary.note("login")
				if after, ok := x.next(); ok {
					refusal := x.answer
					refusal.ID, refusal.PathEpoch, refusal.RetryAfter = q.ID, 1, after
					e.sendControl(&refusal)
					return true
				}
			}
			e.sendControl(a)
			return true
		},
		sealable: x.sealed != nil,
	}
}

// TestRetryAfterHandshakes: an initiator waits as long as a target with too
// many handshakes says, each time, and then asks again.
func TestRetryAfterHandshakes(t *testing.T) {
	folder := certificates(t, "alice")
	x := &refuser{sealed: &scriptedTarget{guard: targetSecurity(t, folder)}, after: []uint32{3 * 3600 * 1000, 0, 250}}
	s := newStage(t, x.play())
	cfg := s.config()
	cfg.Security = initiatorSecurity(folder, "alice", targetName)
	cfg.Scheduler = &pauses{Scheduler: sched.Real, diary: &x.diary}
	d, err := initiator.Dial(t.Context(), cfg)
	must(t, err)
	must(t, d.Close())
	x.diary.wants(t, "handshake", "pause 3h0m0s", "handshake", "pause 10ms", "handshake", "pause 250ms", "handshake")
}

// TestRetryAfterLogins: likewise after a login that the target refuses for some
// time, at the control connection and at that of a queue.
func TestRetryAfterLogins(t *testing.T) {
	for name, role := range map[string]wire.Role{"control": wire.RoleControl, "queue": wire.RoleIO} {
		t.Run(name, func(t *testing.T) {
			x := &refuser{
				role: role, after: []uint32{90_000, 1},
				answer: wire.LoginResponse{Status: wire.StatusBusy, Reason: wire.ReasonResources, Text: "later"},
			}
			s := newStage(t, x.play())
			cfg := s.config()
			cfg.Scheduler = &pauses{Scheduler: sched.Real, diary: &x.diary}
			d, err := initiator.Dial(t.Context(), cfg)
			must(t, err)
			q, err := d.NewQueue(4)
			must(t, err)
			must(t, q.Close())
			must(t, d.Close())
			x.diary.wants(t, "login", "pause 1m30s", "login", "pause 10ms", "login")
		})
	}
}

// TestFinalRefusals: an initiator does not ask a target again that names no
// time, nor one that refuses because of security, whatever time it names.
func TestFinalRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		answer wire.LoginResponse
		after  uint32
		want   error
	}{
		"no time":  {wire.LoginResponse{Status: wire.StatusBusy, Reason: wire.ReasonResources}, 0, syscall.EBUSY},
		"security": {wire.LoginResponse{Status: wire.StatusPermission, Reason: wire.ReasonAuthRequired}, 5, syscall.EPERM},
	} {
		t.Run(name, func(t *testing.T) {
			x := &refuser{role: wire.RoleControl, after: []uint32{c.after}, answer: c.answer}
			s := newStage(t, x.play())
			cfg := s.config()
			cfg.Scheduler = &pauses{Scheduler: sched.Real, diary: &x.diary}
			if d, err := initiator.Dial(t.Context(), cfg); !errors.Is(err, c.want) {
				t.Errorf("%v, %v", d, err)
			}
			x.diary.wants(t, "login")
		})
	}
}

// TestRetryAfterIsTooLong: an initiator that may not wait until then says why
// it gives up.
func TestRetryAfterIsTooLong(t *testing.T) {
	folder := certificates(t, "alice")
	x := &refuser{sealed: &scriptedTarget{guard: targetSecurity(t, folder)}, after: []uint32{3600 * 1000}}
	s := newStage(t, x.play())
	cfg := s.config()
	cfg.Security = initiatorSecurity(folder, "alice", targetName)
	ctx, cancel := context.WithCancel(t.Context())
	cfg.Scheduler = &pauses{Scheduler: sched.Real, diary: &x.diary, first: cancel}
	if d, err := initiator.Dial(ctx, cfg); err == nil || !strings.Contains(err.Error(), "retry after 1h0m0s") {
		t.Error(fmt.Sprint(d), err)
	}
	x.diary.wants(t, "handshake", "pause 1h0m0s")
}
