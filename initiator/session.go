package initiator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
)

// errSession is why I/O fails once the session has ended, and errLost why
// connections do.
var (
	errSession = errors.New("the session with the target has ended")
	errLost    = errors.New("the target closed the connection")
)

// session is the control connection and the state that all connections share.
type session struct {
	cfg               Config
	id                [16]byte
	nonce             uint64
	conns             uint16 // I/O connections that the target grants
	keepaliveInterval time.Duration

	keys    atomic.Pointer[sessionKeys] // of a sealed session; else nil
	recheck atomic.Bool                 // routineControl is to check the certificates

	login  wire.LoginResponse
	export wire.OpenResponse // the disk, once it is open

	resized atomic.Pointer[wire.Event] // the last of a size; nil without any

	quit  *sched.Event // routineControl is to end
	ended *sched.Event // routineControl has ended
	lost  *sched.Event // a connection of the session is lost, or the target goes down

	mu sync.Mutex
	// +checklocks:mu
	requests []*exchange // that routineControl has not sent, in order
	// +checklocks:mu
	bell sched.Bell // ends a sleep of routineControl; nil once closed
	// +checklocks:mu
	cause error
	// +checklocks:mu
	closing bool
	// +checklocks:mu
	connections map[*via.VI]struct{} // all of the session, also I/O

	closed   *sched.Event // release has returned
	closeErr error        // what it returned

	heard      atomic.Uint64 // messages on the control connection
	draining   atomic.Bool   // the target goes down: no command is sent any more
	superseded atomic.Bool   // the reconnector replaces it: answers do not count
	forgotten  atomic.Bool   // the target does not know it any more

	// conflicts counts the sessions so far before which another client wrote:
	// requests of before such a session fail. It is set before other goroutines
	// know the session.
	conflicts int

	durable bool // the target made every answered write durable; set by close
}

// exchange is a control request with its answer.
type exchange struct {
	ask      wire.Message
	answered *sched.Event
	answer   []byte // set before answered
}

// openSession connects the control connection and logs in.
func openSession(ctx context.Context, cfg Config) (*session, error) {
	sch := cfg.Scheduler
	s := &session{cfg: cfg, quit: sch.NewEvent(), ended: sch.NewEvent(), lost: sch.NewEvent(), closed: sch.NewEvent()}
	var nonce [8]byte
	for _, b := range [][]byte{s.id[:], nonce[:]} {
		if _, err := io.ReadFull(cfg.Random, b); err != nil {
			return nil, fmt.Errorf("choose a session's identity: %w", err)
		}
	}
	s.nonce = binary.LittleEndian.Uint64(nonce[:])
	bell, err := sch.NewBell()
	if err != nil {
		return nil, err
	}
	c, answer, err := s.connect(ctx, wire.RoleControl, 0, 0)
	if err != nil {
		s.forgetKeys()
		return nil, errors.Join(err, bell.Close())
	}
	s.setBell(bell)
	s.login = answer
	s.conns = min(answer.Conns, sessionConns)
	s.keepaliveInterval = time.Duration(answer.KeepAliveMillis) * time.Millisecond
	sch.Go(func() { s.routineControl(c, bell) })
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
	ask.PathEpoch, ask.OpenID, ask.Mode, ask.Name = pathEpoch, 1, wire.OpenReadWrite, cfg.Export
	switch {
	case cfg.ReadOnly:
		ask.Mode = wire.OpenReadOnly
	case cfg.Exclusive:
		ask.Mode = wire.OpenExclusive
	}
	err = cfg.guard("panic: the disk is not opened", func() error { return s.open(ctx, ask) })
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open export %q: %w", cfg.Export, err), s.close())
	}
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

// request sends a control request through routineControl and decodes the
// answer.
func (s *session) request(ctx context.Context, q, answer wire.Message) error {
	x := &exchange{ask: q, answered: s.cfg.Scheduler.NewEvent()}
	s.mu.Lock()
	s.requests = append(s.requests, x)
	s.mu.Unlock()
	s.wakeControl()
	s.cfg.Scheduler.Wait(ctx, -1, x.answered, s.ended)
	ended := s.ended.IsSet()
	switch {
	case x.answered.IsSet(): // perhaps before the session ended
		return decodeAnswer(x.answer, answer)
	case ended:
		return s.err()
	}
	s.mu.Lock()
	s.requests = slices.DeleteFunc(s.requests, func(other *exchange) bool { return other == x })
	s.mu.Unlock()
	return context.Cause(ctx)
}

// nextRequest takes a request from the list, or returns nil.
func (s *session) nextRequest() *exchange {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) == 0 {
		return nil
	}
	x := s.requests[0]
	s.requests = s.requests[1:]
	return x
}

// wakeControl wakes routineControl.
func (s *session) wakeControl() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bell != nil {
		s.bell.Ring()
	}
}

// addConnection lets the control connection know of a connection.
func (s *session) addConnection(vi *via.VI) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connections == nil {
		s.connections = make(map[*via.VI]struct{})
	}
	s.connections[vi] = struct{}{}
}

// removeConnection undoes addConnection.
func (s *session) removeConnection(vi *via.VI) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.connections, vi)
}

// life changes when a packet on any connection of the session shows that the
// target is alive: on a slow link, payload holds up the control connection.
func (s *session) life() (n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for vi := range s.connections {
		n += vi.Life()
	}
	return n
}

// setBell sets the bell that wakeControl rings, and returns the one before.
func (s *session) setBell(b sched.Bell) (old sched.Bell) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, s.bell = s.bell, b
	return old
}

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

// failed reports whether an error ended the session.
func (s *session) failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause != nil
}

// close logs out, and waits until the control connection is released. Further
// calls wait for the first and return its result.
func (s *session) close() error {
	s.mu.Lock()
	first := !s.closing
	s.closing = true
	s.mu.Unlock()
	if first {
		s.closeErr = s.cfg.guard("panic: the session is not released", s.release)
		s.closed.Set()
	}
	s.cfg.Scheduler.Wait(context.Background(), -1, s.closed)
	return s.closeErr
}

// release logs out, unless the target forgot the session, and waits until
// routineControl has released the control connection.
func (s *session) release() error {
	ctx, cancel := s.cfg.Scheduler.WithTimeout(context.Background(), s.cfg.Timeout)
	defer cancel()
	var err error
	if !s.forgotten.Load() {
		var a wire.LogoutResponse
		err = s.request(ctx, &wire.Logout{PathEpoch: pathEpoch}, &a)
		s.durable = err == nil && a.Durable
	}
	s.quit.Set()
	s.wakeControl()
	s.cfg.Scheduler.Wait(context.Background(), -1, s.ended)
	if s.failed() {
		err = nil // the session failed before; Err returns why
	}
	return errors.Join(err, s.setBell(nil).Close())
}
