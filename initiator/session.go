package initiator

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
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

	login wire.LoginResponse

	requests chan *exchange // to routineControl
	wake     *os.File       // eventfd that ends routineControl's sleep
	wakeFD   int
	quit     chan struct{}
	quitOnce sync.Once
	ended    chan struct{} // closed when routineControl has ended

	mu    sync.Mutex
	cause error
}

// exchange is a control request and where its answer goes.
type exchange struct {
	ask    wire.Message
	answer chan []byte
}

// openSession connects the control connection and logs in.
func openSession(ctx context.Context, cfg Config) (*session, error) {
	s := &session{cfg: cfg, requests: make(chan *exchange, 1), quit: make(chan struct{}), ended: make(chan struct{})}
	var nonce [8]byte
	_, _ = rand.Read(s.id[:])
	_, _ = rand.Read(nonce[:])
	s.nonce = binary.LittleEndian.Uint64(nonce[:])
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create eventfd: %w", err)
	}
	s.wake, s.wakeFD = os.NewFile(uintptr(fd), "wake"), fd
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

// What a connection has for control messages, and an I/O connection beyond its
// commands. A target has one answer, one heartbeat and one event of each kind
// under way on a control connection, and on another one answer and one heartbeat
// of each end.
const (
	controlReceives = 9
	controlSends    = 9
	loginReceives   = 2
	loginSends      = 2
	spareReceives   = 2
	spareSends      = 2
	controlData     = wire.MaxControlSize - carrier.HeadSize
)

// connect opens a connection of a role and logs in.
func (s *session) connect(ctx context.Context, role wire.Role, index uint16, depth int) (*carrier.Carrier, wire.LoginResponse, error) {
	cfg := &s.cfg
	c, err := carrier.New(cfg.NIC, carrier.Config{
		Attributes: via.ViAttributes{
			Reliability: via.ReliableDelivery, EnableRdmaWrite: true,
			EnableRdmaRead: cfg.NIC.Limits().RdmaReadLevels&via.ReliableDelivery != 0,
		},
		SendDepth: depth + controlSends, RecvDepth: depth + controlReceives,
	})
	if err != nil {
		return nil, wire.LoginResponse{}, err
	}
	answer, err := s.logIn(ctx, c, role, index, depth)
	if err != nil {
		return nil, answer, errors.Join(err, c.Close())
	}
	return c, answer, nil
}

func (s *session) logIn(ctx context.Context, c *carrier.Carrier, role wire.Role, index uint16, depth int) (a wire.LoginResponse, err error) {
	receives, sends := loginReceives, loginSends
	if role == wire.RoleControl {
		receives, sends = controlReceives, controlSends
	}
	if err := c.AddReceives(receives, controlData); err != nil {
		return a, err
	}
	if err := c.AddSends(sends, wire.MaxControlSize); err != nil {
		return a, err
	}
	if err := c.Connect(ctx, via.Address{Host: s.cfg.Host, Discriminator: Discriminator}); err != nil {
		return a, err
	}
	q := wire.LoginRequest{
		ID: 1, PathEpoch: pathEpoch, MinVersion: wire.Version, MaxVersion: wire.Version, Role: role,
		SessionID: s.id, SessionGen: 1, Nonce: s.nonce, Conn: index, Conns: s.conns,
		Depth: uint16(depth), InlineMax: uint32(s.cfg.InlineMax), MaxIO: uint32(s.cfg.MaxIO),
		DataModes: wire.ModesInline | wire.ModesPull | wire.ModesWindow, Features: wire.FeatureImmediate,
	}
	if role == wire.RoleDiscover {
		q.SessionID = [16]byte{}
	}
	if err := ask(ctx, c, q.ID, &q, &a); err != nil {
		return a, fmt.Errorf("log in: %w", err)
	}
	switch a.Status {
	case wire.StatusOK:
		return a, nil
	case wire.StatusContinue:
		return a, errors.New("log in: the target wants a proof of identity, which this version has not")
	default:
		return a, &refusedError{a}
	}
}

// refusedError is a login that the target refused.
type refusedError struct{ answer wire.LoginResponse }

func (e *refusedError) Error() string {
	return fmt.Sprintf("log in: the target refused (%v): %s: %v", e.answer.Reason, e.answer.Text, e.answer.Status.Errno())
}

func (e *refusedError) Unwrap() error { return e.answer.Status.Errno() }

// ask sends a request on a connection that nobody else uses and decodes the
// answer.
func ask(ctx context.Context, c *carrier.Carrier, id uint32, m, answer wire.Message) error {
	msg, err := await(ctx, c, m)
	if err != nil {
		return err
	}
	h, err := wire.PeekControl(msg)
	switch {
	case err != nil:
		return fmt.Errorf("answer: %w", err)
	case h.ID != id || h.PathEpoch != pathEpoch:
		return fmt.Errorf("answer: %w", errStale)
	}
	return decodeAnswer(msg, answer)
}

// decodeAnswer decodes what answers a request, which may be that the target does
// not understand it.
func decodeAnswer(msg []byte, answer wire.Message) error {
	if wire.RawOpcode(msg) == wire.OpRefused {
		var r wire.Refused
		if err := r.Decode(msg); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
		return fmt.Errorf("refused: %s: %w", r.Text, r.Status.Errno())
	}
	if err := answer.Decode(msg); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return nil
}

// await sends a control message and waits for the next that arrives.
func await(ctx context.Context, c *carrier.Carrier, m wire.Message) ([]byte, error) {
	if err := sendControl(c, m); err != nil {
		return nil, err
	}
	c.Doorbell()
	var done [4]via.Completion
	for {
		for i := range done[:c.Poll(done[:])] {
			msg, err := takeControl(c, &done[i])
			if msg != nil || err != nil {
				return msg, err
			}
		}
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		if c.Arm() {
			sleepOn(c.FD(), 10*time.Millisecond)
		}
	}
}

func sendControl(c *carrier.Carrier, m wire.Message) error {
	s := c.TakeLargeSend(wire.MaxControlSize)
	if s == nil {
		return errors.New("control requests overlap")
	}
	n, err := m.Encode(s.Head)
	if err != nil {
		c.FreeSend(s)
		return err
	}
	return c.StageMessage(s, n, carrier.Span{})
}

// takeControl returns the control message that a completion brings, or nil if it
// is something else.
func takeControl(c *carrier.Carrier, e *via.Completion) ([]byte, error) {
	switch {
	case e.Status&via.StatusFlushed != 0:
		return nil, fmt.Errorf("%w: %w", errSession, errLost)
	case e.Status.Failed():
		return nil, fmt.Errorf("%w: transfer failed: %v", errSession, e.Status)
	case e.Status&via.StatusImmediate != 0:
		return nil, errors.New("immediate on a connection for control messages")
	case !e.Recv:
		c.FreeSend(c.Sent(e))
		return nil, nil
	}
	r := c.Arrived(e)
	if e.Length < wire.HeaderSize {
		return nil, fmt.Errorf("message of %d bytes", e.Length)
	}
	msg := append([]byte(nil), r.Head...)
	return append(msg, r.Data[:e.Length-wire.HeaderSize]...), c.Post(r)
}

// sleepOn waits until a file descriptor is readable, at most d unless that is
// negative.
func sleepOn(fd int, d time.Duration, more ...int) {
	polls := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for _, m := range more {
		polls = append(polls, unix.PollFd{Fd: int32(m), Events: unix.POLLIN})
	}
	var timeout *unix.Timespec
	if d >= 0 {
		t := unix.NsecToTimespec(int64(d))
		timeout = &t
	}
	_, _ = unix.Ppoll(polls, timeout, nil) // the caller looks again, whatever it says
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

// close logs out and waits until the control connection is released.
func (s *session) close() error {
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
