package target_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/via"
)

// peer is an initiator's connection that sends any message, right or
// wrong. One goroutine drives it.
type peer struct {
	nic    *via.NIC
	c      *carrier.Carrier
	answer wire.LoginResponse // of the login
	path   uint16
	epoch  uint32
	seq    map[uint16]uint32 // of the last command, by slot
	memory []exposed
	queue  []event // arrived, not received
	lost   bool
	polls  [1]unix.PollFd
}

// exposed is memory that the target may touch.
type exposed struct {
	arena *via.Arena
	*via.Memory
}

// event is what arrived.
type event struct {
	immediate wire.Immediate
	placed    bool   // by RDMA Write
	msg       []byte // a message; nil for an immediate
}

var errLost = errors.New("the connection is lost")

// The receives of a peer: more than any target may consume.
const (
	peerReceives = 96
	peerSends    = 96
	peerHead     = 12 << 10 // bytes of the longest message
)

// connect connects without a login.
func connect(nic *via.NIC, host string, change func(*via.ViAttributes)) (*peer, error) {
	attrs := via.ViAttributes{Reliability: via.ReliableDelivery, EnableRdmaWrite: true, EnableRdmaRead: true}
	if change != nil {
		change(&attrs)
	}
	c, err := carrier.New(nic, carrier.Config{Attributes: attrs, SendDepth: peerSends, RecvDepth: peerReceives})
	if err != nil {
		return nil, err
	}
	p := &peer{nic: nic, c: c, epoch: 1, seq: make(map[uint16]uint32)}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	err = errors.Join(c.AddReceives(peerReceives, wire.MaxControlSize), c.AddSends(peerSends, peerHead))
	if err == nil {
		err = c.Connect(ctx, via.Address{Host: host, Discriminator: target.Discriminator})
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return p, nil
}

// peer connects without a login; the connection ends with the test at the
// latest.
func (r *rig) peer(t testing.TB) *peer {
	t.Helper()
	p, err := connect(r.nic, r.host, nil)
	must(t, err)
	t.Cleanup(func() { must(t, p.close()) })
	return p
}

// close ends the connection. It may be called twice.
func (p *peer) close() error {
	if p.c == nil {
		return nil
	}
	p.c.Disconnect()
	var errs []error
	for _, m := range p.memory {
		errs = append(errs, m.Deregister(), m.arena.Close())
	}
	errs = append(errs, p.c.Close())
	p.c = nil
	return errors.Join(errs...)
}

// expose registers memory for the target's RDMA.
func (p *peer) expose(n int, attrs via.MemAttributes) (exposed, error) {
	arena, err := p.nic.NewArena(n)
	if err != nil {
		return exposed{}, err
	}
	attrs.Ptag = p.c.Tag()
	m, err := p.nic.RegisterMem(arena.Bytes()[:n], attrs)
	if err != nil {
		return exposed{}, errors.Join(err, arena.Close())
	}
	p.memory = append(p.memory, exposed{arena, m})
	return p.memory[len(p.memory)-1], nil
}

var readWrite = via.MemAttributes{EnableRdmaRead: true, EnableRdmaWrite: true}

// send sends a message of any bytes.
func (p *peer) send(msg []byte) error {
	s := p.c.AcquireLargeSend(len(msg))
	for s == nil && !p.lost {
		if err := p.wait(); err != nil {
			return err
		}
		s = p.c.AcquireLargeSend(len(msg))
	}
	if p.lost {
		return errLost
	}
	n := copy(s.Head, msg)
	err := p.c.StageMessage(s, n, carrier.Span{})
	p.c.Doorbell()
	return err
}

// sendImmediate sends an immediate.
func (p *peer) sendImmediate(i wire.Immediate) error {
	s := p.c.AcquireSend()
	if s == nil {
		return errors.New("no send is free")
	}
	err := p.c.StageImmediate(s, uint32(i))
	p.c.Doorbell()
	return err
}

// poll takes what has arrived.
func (p *peer) poll() int {
	var done [16]via.Completion
	n := p.c.Poll(done[:])
	for i := range done[:n] {
		e := &done[i]
		switch {
		case e.Status.Failed():
			p.lost = true
		case !e.Recv:
			p.c.FreeSend(p.c.Sent(e))
		default:
			p.arrived(e)
		}
	}
	return n
}

func (p *peer) arrived(e *via.Completion) {
	r := p.c.Arrived(e)
	ev := event{placed: e.Status&via.StatusOpMask == via.StatusOpRemoteWrite}
	if e.Status&via.StatusImmediate != 0 {
		ev.immediate = wire.Immediate(e.Immediate)
	} else {
		ev.msg = append(ev.msg, r.Head[:min(int(e.Length), len(r.Head))]...)
		ev.msg = append(ev.msg, r.Data[:max(0, int(e.Length)-len(r.Head))]...)
	}
	p.queue = append(p.queue, ev)
	_ = p.c.Post(r) // a lost connection is met at the next poll
}

// wait polls until something happened.
func (p *peer) wait() error {
	for deadline := time.Now().Add(testTimeout); time.Now().Before(deadline); {
		if p.poll() > 0 {
			return nil
		}
		if !p.c.Connected() {
			p.lost = true
			return nil
		}
		p.nap()
	}
	return fmt.Errorf("nothing arrived for %v", testTimeout)
}

// receive returns the next event.
func (p *peer) receive() (event, error) {
	for len(p.queue) == 0 {
		if p.lost {
			return event{}, errLost
		}
		if err := p.wait(); err != nil {
			return event{}, err
		}
	}
	e := p.queue[0]
	p.queue = p.queue[1:]
	return e, nil
}

// ends waits for the target to end the connection. It returns how many events
// came before.
func (p *peer) ends() (events int, err error) {
	for {
		_, err := p.receive()
		switch {
		case errors.Is(err, errLost):
			return events, nil
		case err != nil:
			return events, err
		}
		events++
	}
}

// ask sends a control message and decodes the answer.
func (p *peer) ask(q, answer wire.Message) error {
	b := make([]byte, wire.MaxControlSize)
	n, err := q.Encode(b)
	if err != nil {
		return err
	}
	if err := p.send(b[:n]); err != nil {
		return err
	}
	e, err := p.receive()
	if err != nil {
		return err
	}
	return answer.Decode(e.msg)
}

// loginRequest is a good one.
func (p *peer) loginRequest(role wire.Role, session [16]byte, index uint16) *wire.LoginRequest {
	q := &wire.LoginRequest{
		ID: 1, PathEpoch: p.epoch, MinVersion: wire.Version, MaxVersion: wire.Version, Role: role,
		SessionID: session, SessionGen: 1, Nonce: 7, PathID: p.path, Conn: index,
		DataModes: wire.ModesInline | wire.ModesPull | wire.ModesPlace, Features: wire.FeatureImmediate,
	}
	if index > 0 {
		q.Conns = index
	}
	if role == wire.RoleDiscover {
		q.SessionID = [16]byte{}
	}
	return q
}

// login logs in.
func (p *peer) login(q *wire.LoginRequest) error {
	if err := p.ask(q, &p.answer); err != nil {
		return fmt.Errorf("log in: %w", err)
	}
	if p.answer.Status != wire.StatusOK {
		return fmt.Errorf("log in: %v: %v: %s", p.answer.Status, p.answer.Reason, p.answer.Text)
	}
	return nil
}

// command numbers a command and sends it with its payload.
func (p *peer) command(cmd wire.Command, payload []byte) error {
	return p.send(p.encode(cmd, payload))
}

// encode numbers a command and encodes it.
func (p *peer) encode(cmd wire.Command, payload []byte) []byte {
	p.seq[cmd.Slot]++
	cmd.Seq, cmd.PathEpoch = p.seq[cmd.Slot], p.epoch
	cmd.Slot += p.answer.SlotBase
	b := make([]byte, wire.MaxHeader+len(payload))
	n := cmd.Encode(b)
	return append(b[:n], payload...)
}

// status waits for the answer of a command and returns its status and data.
func (p *peer) status() (wire.Status, []byte, error) {
	e, err := p.receive()
	if err != nil {
		return 0, nil, err
	}
	if e.msg == nil {
		if t := e.immediate.Type(); t > wire.ImmOKData {
			return 0, nil, fmt.Errorf("immediate of type %d", t)
		}
		return wire.StatusOK, nil, nil
	}
	var r wire.Reply
	if err := r.Decode(e.msg); err != nil {
		return 0, nil, err
	}
	return r.Status, r.Inline(e.msg), nil
}
