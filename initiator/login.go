package initiator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
)

// Descriptors of a connection for control messages; an I/O connection adds
// those of its commands. On a control connection a target has one answer, one
// keepalive and one event of each kind in flight. On an I/O connection each end
// has one answer and one keepalive in flight.
const (
	controlReceives  = 9
	controlSends     = 9
	loginReceives    = 2
	loginSends       = 2
	reservedReceives = 2
	reservedSends    = 2
	controlData      = wire.MaxControlSize - carrier.HeadSize
	// the longest answer to a login; any receive may get it when a queue
	// returns
	loginData = 512 - carrier.HeadSize
)

// commonTransfer is the maximum transfer size, in bytes, that a connection
// requests unless commands are longer. Both ends of a connection agree on one
// size, and a peer of another provider may support less: this is the limit of
// rdma_rxe.
const commonTransfer = 8 << 20

// connect opens a connection of a role and logs in. It asks a target that
// refuses for some time again after that time.
func (p *path) connect(ctx context.Context, role wire.Role, index uint16, depth int) (*carrier.Carrier, wire.LoginResponse, error) {
	for {
		keys := p.s.keys.Load()
		c, a, err := p.tryConnect(ctx, role, index, depth)
		if err != nil && role == wire.RoleIO && p.s.keys.Load() != keys && ctx.Err() == nil {
			continue // it joined by keys that were replaced meanwhile
		}
		pause, again := retryAfter(err)
		if again && ctx.Err() == nil {
			p.s.cfg.Scheduler.Wait(ctx, pause)
		}
		if !again || ctx.Err() != nil {
			return c, a, err
		}
	}
}

// leastRetry is the least pause before a target that refuses for some time is
// asked again.
const leastRetry = 10 * time.Millisecond

// retryAfter returns for how long a target refuses, if it says so: because it
// has too many handshakes, or in its answer to a login. A refusal by security
// is final.
func retryAfter(err error) (pause time.Duration, ok bool) {
	var busy *handshake.BusyError
	var refused *refusedError
	var final *SecurityError
	switch {
	case errors.As(err, &final):
		return 0, false
	case errors.As(err, &busy):
		return max(busy.RetryAfter, leastRetry), true
	case errors.As(err, &refused) && refused.answer.RetryAfter != 0:
		return max(time.Duration(refused.answer.RetryAfter)*time.Millisecond, leastRetry), true
	}
	return 0, false
}

// tryConnect opens a connection of a role and logs in.
func (p *path) tryConnect(ctx context.Context, role wire.Role, index uint16, depth int) (*carrier.Carrier, wire.LoginResponse, error) {
	cfg := &p.s.cfg
	c, err := carrier.New(cfg.NIC, carrier.Config{
		Attributes: via.ViAttributes{
			Reliability: via.ReliableDelivery, EnableRdmaWrite: true,
			MaxTransferSize: min(cfg.NIC.Limits().MaxTransferSize, max(commonTransfer, uint32(cfg.MaxIO))),
			EnableRdmaRead:  cfg.NIC.Limits().RdmaReadLevels&via.ReliableDelivery != 0,
		},
		SendDepth: depth + controlSends, RecvDepth: depth + controlReceives, Sealable: cfg.sealed(),
	})
	if err != nil {
		return nil, wire.LoginResponse{}, err
	}
	answer, err := p.begin(ctx, c, p.loginRequest(role, index, depth))
	if err != nil {
		return nil, answer, errors.Join(err, c.Close())
	}
	return c, answer, nil
}

// begin gives a new connection the descriptors of a login, and logs in.
func (p *path) begin(ctx context.Context, c *carrier.Carrier, q wire.LoginRequest) (a wire.LoginResponse, err error) {
	receives, sends := loginReceives, loginSends
	if q.Role == wire.RoleControl {
		receives, sends = controlReceives, controlSends
	}
	if err := c.AddReceives(receives, p.s.cfg.firstReceives()); err != nil {
		return a, err
	}
	head := wire.MaxControlSize
	if p.s.cfg.sealed() {
		head = wire.MaxHeader + p.s.cfg.firstReceives() // a command may be in it
	}
	if err := c.AddSends(sends, head); err != nil {
		return a, err
	}
	return p.logIn(ctx, c, q)
}

// firstReceives returns the bytes behind the head that a receive of a login
// holds. On an I/O connection the first replies arrive there too, so no reply
// is longer.
func (c *Config) firstReceives() int { return max(controlData, c.InlineMax) }

// loginRequest returns the login request of a connection.
func (p *path) loginRequest(role wire.Role, index uint16, depth int) wire.LoginRequest {
	s := p.s
	q := wire.LoginRequest{
		ID: 1, PathID: p.id, PathEpoch: p.epoch, MinVersion: wire.Version, MaxVersion: wire.Version, Role: role,
		SessionID: s.id, SessionGen: 1, Nonce: s.nonce, Conn: index, Conns: s.conns,
		Depth: uint16(depth), InlineMax: uint32(s.cfg.InlineMax), MaxIO: uint32(s.cfg.MaxIO),
		DataModes: wire.ModesInline | wire.ModesPull | wire.ModesPlace, Features: wire.FeatureImmediate | wire.FeatureEvents,
	}
	switch {
	case s.cfg.sealed():
		q.Features = wire.FeatureEvents | wire.FeatureRekey // an immediate has no tag
	case s.cfg.Digest:
		q.Features, q.Digest = wire.FeatureEvents, wire.DigestCRC32C // nor a checksum
	}
	if role == wire.RoleDiscover {
		q.SessionID, q.Digest = [16]byte{}, wire.DigestNone
	}
	return q
}

// logIn connects and logs in. The first receives hold any control message.
func (p *path) logIn(ctx context.Context, c *carrier.Carrier, q wire.LoginRequest) (a wire.LoginResponse, err error) {
	err = p.s.cfg.guard("panic: the login fails", func() error {
		a, err = p.tryLogIn(ctx, c, q)
		return err
	})
	return a, err
}

func (p *path) tryLogIn(ctx context.Context, c *carrier.Carrier, q wire.LoginRequest) (a wire.LoginResponse, err error) {
	if err := c.Connect(ctx, via.Address{Host: p.host, Discriminator: Discriminator}); err != nil {
		return a, explainRejection(err)
	}
	if p.s.cfg.sealed() {
		if err := p.secure(ctx, c, &q); err != nil {
			return a, err
		}
	}
	if err := p.ask(ctx, c, q.ID, &q, &a); err != nil {
		return a, fmt.Errorf("log in: %w", err)
	}
	switch a.Status {
	case wire.StatusOK:
		if err := checkDigest(&q, &a); err != nil {
			return a, err
		}
		if q.Role != wire.RoleDiscover {
			p.addConnection(c.VI())
		}
		return a, nil
	case wire.StatusContinue:
		return a, errors.New("log in: the target demands a proof of identity, which this version does not support")
	default:
		return a, refusalOf(&a)
	}
}

// explainRejection adds what the reason of a target means that rejected a
// connection.
func explainRejection(err error) error {
	r := new(via.RejectError)
	if !errors.As(err, &r) {
		return err
	}
	switch r.Reason {
	case wire.RejectFull:
		return fmt.Errorf("%w: the target has no place for another connection: end one, or raise its --connections or --connections-per-address", err)
	case wire.RejectLeaving:
		return fmt.Errorf("%w: the target is going down", err)
	}
	return err
}

// refusedError is a login that the target refused.
type refusedError struct{ answer wire.LoginResponse }

func (e *refusedError) Error() string {
	return fmt.Sprintf("log in: the target refused (%v): %s: %v", e.answer.Reason, e.answer.Text, e.answer.Status.Errno())
}

func (e *refusedError) Unwrap() error { return e.answer.Status.Errno() }

// ask sends a request on a connection that the caller alone uses and decodes
// the answer.
func (p *path) ask(ctx context.Context, c *carrier.Carrier, id uint32, m, answer wire.Message) error {
	msg, err := p.s.await(ctx, c, m)
	if err != nil {
		return err
	}
	h, err := wire.PeekControl(msg)
	switch {
	case err != nil:
		return fmt.Errorf("answer: %w", err)
	case h.ID != id || h.PathEpoch != p.epoch:
		return fmt.Errorf("answer: %w", errStale)
	}
	return decodeAnswer(msg, answer)
}

// decodeAnswer decodes the answer to a request, or the Refused that took its
// place.
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

// loginPoll is the longest sleep of await, which polls its context.
const loginPoll = 10 * time.Millisecond

// await sends a control message and waits for the next one that arrives. An
// answer may arrive before its request completes, so that no send is free for
// the next one: await waits for that too. It takes one completion at a time:
// what is behind the answer is for the caller's next call, or for the owner of
// the connection.
func (s *session) await(ctx context.Context, c *carrier.Carrier, m wire.Message) ([]byte, error) {
	var done [1]via.Completion
	polls := []unix.PollFd{{Fd: int32(c.FD()), Events: unix.POLLIN}}
	for sent := false; ; {
		if !sent {
			err := sendControl(c, m)
			if err != nil && !errors.Is(err, errNoSend) {
				return nil, err
			}
			if sent = err == nil; sent {
				c.Doorbell()
			}
		}
		polled := c.Poll(done[:]) > 0
		if polled {
			msg, err := receiveControl(c, &done[0])
			if msg != nil || err != nil {
				return msg, err
			}
		}
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		if !polled && c.Arm() {
			_ = s.cfg.Scheduler.Poll(polls, loginPoll)
		}
	}
}

// errNoSend is a connection all of whose sends are in flight.
var errNoSend = errors.New("too many control messages are in flight")

// sendControl stages a control message.
func sendControl(c *carrier.Carrier, m wire.Message) error {
	s := c.AcquireLargeSend(wire.MaxControlSize)
	if s == nil {
		return errNoSend
	}
	n, err := m.Encode(s.Head)
	if err != nil {
		c.FreeSend(s)
		return err
	}
	return c.StageMessage(s, n, carrier.Span{})
}

// receiveControl returns the control message of a completion, or nil for other
// completions.
func receiveControl(c *carrier.Carrier, e *via.Completion) ([]byte, error) {
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
	length, err := c.Open(r, e.Length)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errSession, err)
	case length < wire.HeaderSize:
		return nil, fmt.Errorf("message of %d bytes", length)
	}
	msg := append([]byte(nil), r.Head...)
	return append(msg, r.Data[:length-wire.HeaderSize]...), c.Post(r)
}
