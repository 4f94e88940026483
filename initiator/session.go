package initiator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/wire"
)

// errSession is why I/O fails once the session has ended, and errLost why
// connections do.
var (
	errSession = errors.New("the session with the target has ended")
	errLost    = errors.New("the target closed the connection")
)

// session is the paths to a target and the state that all connections share.
type session struct {
	cfg   Config
	id    [16]byte
	nonce uint64

	ctx    context.Context // of the goroutines that keep the paths
	cancel context.CancelFunc
	kept   *sched.Event // they have ended

	keeping atomic.Bool // there are such goroutines, or were

	keys    atomic.Pointer[sessionKeys] // of a sealed session; else nil
	recheck atomic.Bool                 // routineControl is to check the certificates

	login  wire.LoginResponse
	conns  uint16            // I/O connections that the target grants
	export wire.OpenResponse // the disk, once it is open

	resized atomic.Pointer[wire.Event] // the last of a size; nil without any

	taken [maxPaths]atomic.Uint64 // requests by queues of a path to the present host

	ended *sched.Event // the last path has ended
	lost  *sched.Event // the last path is lost, or the target goes down

	mu sync.Mutex
	// +checklocks:mu
	paths [maxPaths]*path // nil: not connected
	// +checklocks:mu
	failures [maxPaths]error // why a path does not connect
	// +checklocks:mu
	losses [maxPaths]uint64 // of a path to the present host
	// +checklocks:mu
	lostAt [maxPaths]time.Time // the last of them
	// +checklocks:mu
	epoch uint32 // the last of a path
	// +checklocks:mu
	routines [maxPaths]*pathRoutine // nil: none runs
	// +checklocks:mu
	running int // routines
	// +checklocks:mu
	cause error
	// +checklocks:mu
	closing bool

	closed   *sched.Event // release has returned
	closeErr error        // what it returned

	draining   atomic.Bool   // the target goes down: no command is sent any more
	retryAfter atomic.Uint32 // ms; the target has a successor; 0: it does not say so
	superseded atomic.Bool   // the reconnector replaces it: answers do not count
	forgotten  atomic.Bool   // the target does not know it any more

	// conflicts counts the sessions so far before which another client wrote:
	// requests of before such a session fail. It is set before other goroutines
	// know the session.
	conflicts int

	loggedOut bool // the target answered the logout; set by close
	durable   bool // it made every answered write durable; likewise
}

// newSession returns a session without a path.
func newSession(cfg Config) (*session, error) {
	sch := cfg.Scheduler
	s := &session{
		cfg: cfg, kept: sch.NewEvent(), ended: sch.NewEvent(), lost: sch.NewEvent(), closed: sch.NewEvent(),
	}
	var nonce [8]byte
	for _, b := range [][]byte{s.id[:], nonce[:]} {
		if _, err := io.ReadFull(cfg.Random, b); err != nil {
			return nil, fmt.Errorf("choose a session's identity: %w", err)
		}
	}
	s.nonce = binary.LittleEndian.Uint64(nonce[:])
	s.ctx, s.cancel = sch.WithCancel(context.Background())
	return s, nil
}

// openSession logs in at the first of the hosts that answers. It asks each for
// a short time first, and longer while one of them may be slow.
func openSession(ctx context.Context, cfg Config) (*session, error) {
	for failed := 0; ; failed++ {
		slow, errs := false, []error(nil)
		for id, host := range cfg.targets.list() {
			if host == "" {
				continue
			}
			limited, cancel := cfg.Scheduler.WithTimeout(ctx, cfg.attemptTime(failed))
			s, err := beginSession(limited, cfg, uint16(id), host)
			slow = slow || limited.Err() != nil
			cancel()
			if err == nil {
				return s, nil
			}
			errs = append(errs, err)
		}
		if !slow || ctx.Err() != nil {
			return nil, errors.Join(errs...)
		}
	}
}

// beginSession logs in at a host.
func beginSession(ctx context.Context, cfg Config, id uint16, host string) (*session, error) {
	s, err := newSession(cfg)
	if err != nil {
		return nil, err
	}
	if err := s.newPath(id, host, s.nextEpoch()).start(ctx); err != nil {
		s.forgetKeys()
		s.cancel()
		return nil, err
	}
	s.conns = min(s.login.Conns, sessionConns)
	return s, nil
}

// preemptPoll is the interval at which an open asks again while the target ends
// the clients that are in the way.
const preemptPoll = 20 * time.Millisecond

// openDisk logs in and opens the export as ask says, whose mode and name are
// those of the configuration.
func openDisk(ctx context.Context, cfg Config, ask *wire.OpenRequest) (*session, error) {
	s, err := openSession(ctx, cfg)
	if err != nil {
		return nil, err
	}
	ask.OpenID, ask.Mode, ask.Name = 1, wire.OpenReadWrite, cfg.Export
	switch {
	case cfg.ReadOnly:
		ask.Mode = wire.OpenReadOnly
	case cfg.Exclusive:
		ask.Mode = wire.OpenExclusive
	}
	err = cfg.guard("panic: the disk is not opened", func() error { return s.open(ctx, ask) })
	if err != nil {
		if ctx.Err() != nil && s.err() == nil {
			err = fmt.Errorf("%w: %w", errOpenPending, err)
		}
		return nil, errors.Join(fmt.Errorf("open export %q: %w", cfg.Export, err), s.close())
	}
	s.keepPaths()
	return s, nil
}

// open opens the export. It waits while clients in the way are being ended.
func (s *session) open(ctx context.Context, ask *wire.OpenRequest) error {
	for {
		err := s.request(ctx, ask, &s.export)
		switch {
		case err != nil:
			return err
		case s.export.Status == wire.StatusOK:
			return nil
		case s.export.Status != wire.StatusRetry:
			return &openRefusedError{s.export.Status, s.export.Reason}
		}
		s.cfg.Scheduler.Wait(ctx, preemptPoll)
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", s.export.Reason, context.Cause(ctx))
		}
	}
}

// openRefusedError is why a target does not open an export.
type openRefusedError struct {
	status wire.Status
	reason string
}

func (e *openRefusedError) Error() string { return fmt.Sprintf("%s: %v", e.reason, e.status.Errno()) }
func (e *openRefusedError) Unwrap() error { return e.status.Errno() }

// err returns why the session ended.
func (s *session) err() error {
	if !s.ended.IsSet() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause == nil {
		return errSession
	}
	return s.cause
}

// beginDrain has the reconnector replace the session of a target that drains.
// The target answers the commands in flight; the queues keep the others for the
// next session.
func (s *session) beginDrain() {
	if s.cfg.LossTimeout > 0 {
		s.draining.Store(true)
		s.lost.Set()
	}
}

// noteForgotten has the reconnector replace a session that the target does not
// know any more, if err says so, the refusal of a connection for I/O: the
// target was started again, and the control connection may not notice for long.
func (s *session) noteForgotten(err error) bool {
	unknown := errors.Is(err, handshake.ErrRejected)
	if refused := new(refusedError); errors.As(err, &refused) {
		unknown = refused.answer.Reason == wire.ReasonSession || refused.answer.Reason == wire.ReasonGeneration
	}
	if unknown {
		s.forgotten.Store(true)
		s.lost.Set()
	}
	return unknown
}

// isClosing reports whether close was called.
func (s *session) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// failed reports whether an error ended the session.
func (s *session) failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause != nil
}

// close logs out, and waits until the control connection is released. Further
// calls wait for the first and return its result.
func (s *session) close() error {
	ctx, cancel := s.cfg.Scheduler.WithTimeout(context.Background(), s.cfg.Timeout)
	defer cancel()
	return s.closeBy(ctx)
}

// closeBy is close, where the target may take until the end of ctx to answer
// the logout, while it answers keepalives.
func (s *session) closeBy(ctx context.Context) error {
	s.mu.Lock()
	first := !s.closing
	s.closing = true
	s.mu.Unlock()
	if first {
		lost := s.lost.IsSet() && !s.draining.Load() // of several paths, one may be closed after that
		s.closeErr = s.cfg.guard("panic: the session is not released", func() error {
			if err := s.release(ctx); !lost {
				return err
			}
			return nil // Err returns why
		})
		s.closed.Set()
	}
	s.cfg.Scheduler.Wait(context.Background(), -1, s.closed)
	return s.closeErr
}

// release logs out, unless the target forgot the session, and waits until the
// paths are released.
func (s *session) release(ctx context.Context) error {
	var err error
	if !s.forgotten.Load() {
		var a wire.LogoutResponse
		err = s.request(ctx, &wire.Logout{}, &a)
		s.loggedOut = err == nil
		s.durable = s.loggedOut && a.Durable
	}
	s.cancel()
	s.mu.Lock()
	keeps := s.running > 0
	s.mu.Unlock()
	if keeps {
		s.cfg.Scheduler.Wait(context.Background(), -1, s.kept)
	}
	for id := range uint16(maxPaths) {
		if p := s.at(id); p != nil {
			err = errors.Join(err, p.close())
		}
	}
	if s.failed() {
		return nil // the session failed before; Err returns why
	}
	return err
}
