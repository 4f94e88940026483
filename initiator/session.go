package initiator

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/wire"
)

// errSession is why I/O fails once the session has ended, and errLost why
// connections do.
var (
	errSession = errors.New("the session with the target has ended")
	errLost    = errors.New("the target closed the connection")
)

// session is the control connection and what all connections share.
type session struct {
	cfg   Config
	id    [16]byte
	nonce uint64
	conns uint16 // I/O connections that the target grants
	beat  time.Duration

	login  wire.LoginResponse
	export wire.OpenResponse // the disk, once it is open

	resized atomic.Pointer[wire.Event] // the last of a size; nil without any

	requests chan *exchange // to routineControl
	wake     *os.File       // eventfd that ends routineControl's sleep
	wakeFD   int
	quit     chan struct{}
	quitOnce sync.Once
	ended    chan struct{} // closed when routineControl has ended

	mu    sync.Mutex
	cause error

	lost       chan struct{} // closed when a connection of it is lost
	lose       func()        // closes lost
	superseded atomic.Bool   // no answer of it counts any more

	close func() error // logs out and waits until the control connection is released, once
}

// exchange is a control request and where its answer goes.
type exchange struct {
	ask    wire.Message
	answer chan []byte
}

// openSession connects the control connection and logs in.
func openSession(ctx context.Context, cfg Config) (*session, error) {
	s := &session{
		cfg: cfg, requests: make(chan *exchange, 1),
		quit: make(chan struct{}), ended: make(chan struct{}), lost: make(chan struct{}),
	}
	s.lose = sync.OnceFunc(func() { close(s.lost) })
	var nonce [8]byte
	_, _ = rand.Read(s.id[:])
	_, _ = rand.Read(nonce[:])
	s.nonce = binary.LittleEndian.Uint64(nonce[:])
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create eventfd: %w", err)
	}
	s.wake, s.wakeFD = os.NewFile(uintptr(fd), "wake"), fd
	s.close = sync.OnceValue(s.leave)
	c, answer, err := s.connect(ctx, wire.RoleControl, 0, 0)
	if err != nil {
		return nil, errors.Join(err, s.wake.Close())
	}
	s.login = answer
	s.conns = min(answer.Conns, sessionConns)
	s.beat = time.Duration(answer.HeartbeatMillis) * time.Millisecond
	go s.routineControl(c)
	return s, nil
}

// openDisk logs in and opens the export.
func openDisk(ctx context.Context, cfg Config) (*session, error) {
	s, err := openSession(ctx, cfg)
	if err != nil {
		return nil, err
	}
	mode := wire.OpenReadWrite
	if cfg.ReadOnly {
		mode = wire.OpenReadOnly
	}
	a := &s.export
	if err = s.request(ctx, &wire.OpenRequest{PathEpoch: pathEpoch, OpenID: 1, Mode: mode, Name: cfg.Export}, a); err == nil && a.Status != wire.StatusOK {
		err = fmt.Errorf("%s: %w", a.Reason, a.Status.Errno())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open export %q: %w", cfg.Export, err), s.close())
	}
	return s, nil
}

// request sends a control request through routineControl and decodes the answer.
func (s *session) request(ctx context.Context, q, answer wire.Message) error {
	x := &exchange{ask: q, answer: make(chan []byte, 1)}
	select {
	case s.requests <- x:
	case <-s.ended:
		return s.err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.nudge()
	select {
	case msg := <-x.answer:
		return decodeAnswer(msg, answer)
	case <-s.ended:
		select {
		case msg := <-x.answer: // the last thing the session did
			return decodeAnswer(msg, answer)
		default:
			return s.err()
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// nudge wakes routineControl.
func (s *session) nudge() {
	_, _ = s.wake.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0}) // full means awake already
}

// err returns why the session ended.
func (s *session) err() error {
	select {
	case <-s.ended:
	default:
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause == nil {
		return errSession
	}
	return s.cause
}

// failed reports whether the session ended for a reason.
func (s *session) failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause != nil
}

// leave logs out and waits until the control connection is released.
func (s *session) leave() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Timeout)
	defer cancel()
	var a wire.LogoutResponse
	err := s.request(ctx, &wire.Logout{PathEpoch: pathEpoch}, &a)
	s.quitOnce.Do(func() { close(s.quit) })
	s.nudge()
	<-s.ended
	if s.failed() {
		err = nil // it ended by itself; whoever cares asked Err
	}
	return errors.Join(err, s.wake.Close())
}
