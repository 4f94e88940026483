package initiator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
)

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
	loginData       = 512 - carrier.HeadSize // the longest answer to a login; any receive may get it when a queue returns
)

// commonTransfer is what is asked for to be carried at a time, bytes, unless commands
// are longer. Both ends of a connection have the same, and devices at the other end of
// another kind may carry no more: it is what rdma_rxe has.
const commonTransfer = 8 << 20

// connect opens a connection of a role and logs in.
func (s *session) connect(ctx context.Context, role wire.Role, index uint16, depth int) (*carrier.Carrier, wire.LoginResponse, error) {
	cfg := &s.cfg
	c, err := carrier.New(cfg.NIC, carrier.Config{
		Attributes: via.ViAttributes{
			Reliability: via.ReliableDelivery, EnableRdmaWrite: true,
			MaxTransferSize: min(cfg.NIC.Limits().MaxTransferSize, max(commonTransfer, uint32(cfg.MaxIO))),
			EnableRdmaRead:  cfg.NIC.Limits().RdmaReadLevels&via.ReliableDelivery != 0,
		},
		SendDepth: depth + controlSends, RecvDepth: depth + controlReceives,
	})
	if err != nil {
		return nil, wire.LoginResponse{}, err
	}
	answer, err := s.begin(ctx, c, s.loginRequest(role, index, depth))
	if err != nil {
		return nil, answer, errors.Join(err, c.Close())
	}
	return c, answer, nil
}

// begin gives a new connection what a login needs, and logs in.
func (s *session) begin(ctx context.Context, c *carrier.Carrier, q wire.LoginRequest) (a wire.LoginResponse, err error) {
	receives, sends := loginReceives, loginSends
	if q.Role == wire.RoleControl {
		receives, sends = controlReceives, controlSends
	}
	if err := c.AddReceives(receives, controlData); err != nil {
		return a, err
	}
	if err := c.AddSends(sends, wire.MaxControlSize); err != nil {
		return a, err
	}
	return s.logIn(ctx, c, q)
}

// loginRequest returns what a connection asks for.
func (s *session) loginRequest(role wire.Role, index uint16, depth int) wire.LoginRequest {
	q := wire.LoginRequest{
		ID: 1, PathEpoch: pathEpoch, MinVersion: wire.Version, MaxVersion: wire.Version, Role: role,
		SessionID: s.id, SessionGen: 1, Nonce: s.nonce, Conn: index, Conns: s.conns,
		Depth: uint16(depth), InlineMax: uint32(s.cfg.InlineMax), MaxIO: uint32(s.cfg.MaxIO),
		DataModes: wire.ModesInline | wire.ModesPull | wire.ModesWindow, Features: wire.FeatureImmediate | wire.FeatureEvents,
	}
	if role == wire.RoleDiscover {
		q.SessionID = [16]byte{}
	}
	return q
}

// logIn connects and logs in. The first receives hold any control message.
func (s *session) logIn(ctx context.Context, c *carrier.Carrier, q wire.LoginRequest) (a wire.LoginResponse, err error) {
	if err := c.Connect(ctx, via.Address{Host: s.cfg.Host, Discriminator: Discriminator}); err != nil {
		return a, err
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
