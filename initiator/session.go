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

// errSession is why I/O fails once the session has ended.
var errSession = errors.New("the session with the target has ended")

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

// Receives of a connection before its login is answered.
const (
	loginReceives = 2
	loginSends    = 4
	controlData   = wire.MaxControlSize - carrier.HeadSize
	spareReceives = 4 // beyond the credits: event, heartbeat
)

// connect opens a connection of a role and logs in.
func (s *session) connect(ctx context.Context, role wire.Role, index uint16, depth int) (*carrier.Carrier, wire.LoginResponse, error) {
	cfg := &s.cfg
	most := max(depth, 1)
	c, err := carrier.New(cfg.NIC, carrier.Config{
		Attributes: via.ViAttributes{
			Reliability: via.ReliableDelivery, EnableRdmaWrite: true,
			EnableRdmaRead: cfg.NIC.Limits().RdmaReadLevels&via.ReliableDelivery != 0,
		},
		SendDepth: most + loginSends + spareReceives, RecvDepth: most + loginReceives + spareReceives,
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
	if err := c.AddReceives(loginReceives, controlData); err != nil {
		return a, err
	}
	if err := c.AddSends(loginSends, wire.MaxControlSize); err != nil {
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
	msg, err := ask(ctx, c, &q)
	if err != nil {
		return a, fmt.Errorf("log in: %w", err)
	}
	if err := a.Decode(msg); err != nil {
		return a, fmt.Errorf("log in: answer: %w", err)
	}
	if a.Status != wire.StatusOK {
		return a, fmt.Errorf("log in: the target refused (%v): %s: %w", a.Reason, a.Text, a.Status.Errno())
	}
	return a, nil
}

// ask sends a control message on a connection that nobody else uses and returns
// the answer.
func ask(ctx context.Context, c *carrier.Carrier, m wire.Message) ([]byte, error) {
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
	case e.Status.Failed():
		return nil, fmt.Errorf("%w: %v", errSession, e.Status)
	case !e.Recv:
		c.FreeSend(c.Sent(e))
		return nil, nil
	}
	r := c.Arrived(e)
	var msg []byte
	if e.Length >= wire.HeaderSize {
		msg = append(msg, r.Head...)
		msg = append(msg, r.Data[:e.Length-wire.HeaderSize]...)
	}
	return msg, c.Post(r)
}

// sleepOn waits until fd is readable, at most d.
func sleepOn(fd int, d time.Duration, more ...int) {
	polls := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for _, m := range more {
		polls = append(polls, unix.PollFd{Fd: int32(m), Events: unix.POLLIN})
	}
	timeout := unix.NsecToTimespec(int64(d))
	_, _ = unix.Ppoll(polls, &timeout, nil) // the caller looks again, whatever it says
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
		if wire.RawOpcode(msg) == wire.OpRefused {
			var r wire.Refused
			if err := r.Decode(msg); err != nil {
				return err
			}
			return fmt.Errorf("refused: %s: %w", r.Text, r.Status.Errno())
		}
		return answer.Decode(msg)
	case <-s.ended:
		return s.err()
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

// close logs out and waits until the control connection is released.
func (s *session) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Timeout)
	defer cancel()
	var a wire.LogoutResponse
	err := s.request(ctx, &wire.Logout{PathEpoch: pathEpoch}, &a)
	s.quitOnce.Do(func() { close(s.quit) })
	s.nudge()
	<-s.ended
	if errors.Is(err, errSession) {
		err = nil // it ended by itself; whoever cares asked Err
	}
	return errors.Join(err, s.wake.Close())
}
