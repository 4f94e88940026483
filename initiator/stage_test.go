package initiator_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testTimeout is how long a test waits for an expected event.
const testTimeout = time.Minute

// play is the behaviour of a scripted target. A nil part behaves as a correct
// target; a part that returns false ends the connection.
type play struct {
	login     func(e *end, q *wire.LoginRequest, a *wire.LoginResponse) bool
	control   func(e *end, op wire.Opcode, msg []byte) bool
	command   func(e *end, cmd *wire.Command, payload []byte) bool
	keepalive func(e *end) bool // keepalives
	open      func(a *wire.OpenResponse)
	millis    uint32 // between keepalives; 0 none

	// message, if not nil, comes before the others: it reports whether it has
	// handled a message that is no immediate, and whether the connection goes on.
	message  func(e *end, msg []byte) (handled, goesOn bool)
	idle     func(e *end) bool                  // nothing arrived for a while
	reject   func() (reason byte, rejects bool) // a connection
	sealable bool
}

// stage is where scripted targets play: each connection gets an end of its own.
type stage struct {
	host string
	nic  *via.NIC // of the initiators
	wg   sync.WaitGroup
}

// newStage listens until the test ends; by then the initiators are gone.
func newStage(t testing.TB, p play) *stage {
	t.Helper()
	s := &stage{host: filepath.Join(t.TempDir(), "target.sock"), nic: openNIC(t)}
	nic := openNIC(t)
	l, err := nic.Listen(via.Address{Host: s.host, Discriminator: initiator.Discriminator})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		for {
			r, err := l.Wait(ctx)
			if err != nil {
				return
			}
			if p.reject != nil {
				if reason, rejects := p.reject(); rejects {
					must(t, r.RejectFor(reason))
					continue
				}
			}
			s.wg.Add(1)
			go func() {
				defer s.wg.Done()
				if err := perform(ctx, nic, r, p); err != nil {
					t.Errorf("the scripted target: %v", err)
				}
			}()
		}
	}()
	t.Cleanup(func() {
		cancel()
		must(t, l.Close())
		s.wg.Wait()
		must(t, nic.Close())
		must(t, s.nic.Close())
	})
	return s
}

func openNIC(t testing.TB) *via.NIC {
	t.Helper()
	nic, err := via.OpenNic(shm.New(shm.Options{}), "")
	must(t, err)
	nic.ErrorCallback(func(via.AsyncError) {})
	return nic
}

// config attaches to the stage.
func (s *stage) config() initiator.Config {
	return initiator.Config{NIC: s.nic, Host: s.host, Depth: 4, Log: slog.New(slog.DiscardHandler)}
}

// dial attaches; the device is closed with the test.
func (s *stage) dial(t testing.TB) *initiator.Device {
	t.Helper()
	d, err := initiator.Dial(context.Background(), s.config())
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// end is the scripted target's end of a connection.
type end struct {
	c    *carrier.Carrier
	p    play
	role wire.Role
	data carrier.Span      // memory to move from and to
	auth *handshake.Target // of a sealed session
}

const (
	endDepth = 96
	endHead  = 12 << 10 // bytes of the longest message
	endData  = 2 << 20  // bytes
)

// perform plays on one connection until it ends.
func perform(ctx context.Context, nic *via.NIC, r *via.ConnRequest, p play) (err error) {
	attrs := r.Attributes()
	attrs.EnableRdmaRead, attrs.EnableRdmaWrite = false, false
	c, err := carrier.New(nic, carrier.Config{Attributes: attrs, SendDepth: endDepth, RecvDepth: endDepth, Sealable: p.sealable})
	if err != nil {
		return errors.Join(err, r.Reject())
	}
	arena, err := nic.NewArena(endData)
	if err != nil {
		return errors.Join(err, c.Close())
	}
	m, err := nic.RegisterMem(arena.Bytes(), via.MemAttributes{Ptag: c.Tag()})
	if err != nil {
		return errors.Join(err, arena.Close(), c.Close())
	}
	defer func() {
		c.Disconnect()
		err = errors.Join(err, m.Deregister(), arena.Close(), c.Close())
	}()
	if err := errors.Join(c.AddReceives(endDepth, endHead), c.AddSends(endDepth, endHead)); err != nil {
		return err
	}
	if c.Accept(ctx, r) != nil {
		return nil // the initiator is gone
	}
	e := &end{c: c, p: p, data: carrier.Span{Addr: m.Addr(), Handle: m.Handle(), Length: endData}}
	e.loop(ctx)
	if e.auth != nil {
		e.auth.Close()
	}
	return nil
}

// loop plays until the connection ends.
func (e *end) loop(ctx context.Context) {
	var done [16]via.Completion
	for ctx.Err() == nil && e.c.Connected() {
		n := e.c.Poll(done[:])
		for i := range done[:n] {
			if !e.handle(&done[i]) {
				e.c.Doorbell()
				return
			}
		}
		e.c.Doorbell()
		if n == 0 && e.c.Arm() {
			timeout := unix.NsecToTimespec(int64(50 * time.Millisecond))
			ready, _ := unix.Ppoll([]unix.PollFd{{Fd: int32(e.c.FD()), Events: unix.POLLIN}}, &timeout, nil)
			if ready == 0 && e.p.idle != nil && !e.p.idle(e) {
				return
			}
		}
	}
}

// acknowledge answers a keepalive.
func (e *end) acknowledge() {
	if e.role != wire.RoleIO {
		e.sendControl(&wire.KeepAlive{PathEpoch: 1, Ack: true})
		return
	}
	e.immediate(wire.MakeImmediate(wire.ImmKeepAliveAck, 1, 0, 0))
}

func (e *end) handle(d *via.Completion) bool {
	switch {
	case d.Status.Failed():
		return d.Status&via.StatusFlushed != 0
	case !d.Recv:
		e.c.FreeSend(e.c.Sent(d))
		return true
	}
	r := e.c.Arrived(d)
	var msg []byte
	if d.Status&via.StatusImmediate == 0 {
		length, err := e.c.Open(r, d.Length)
		if err != nil {
			return false
		}
		msg = append(msg, r.Head[:min(int(length), len(r.Head))]...)
		msg = append(msg, r.Data[:max(0, int(length)-len(r.Head))]...)
	}
	_ = e.c.Post(r) // a lost connection is met at the next poll
	if msg == nil {
		return e.keepalive(wire.MakeImmediate(wire.ImmKeepAliveAck, 1, 0, 0))
	}
	if e.p.message != nil {
		if handled, goesOn := e.p.message(e, msg); handled {
			return goesOn
		}
	}
	if !wire.RawOpcode(msg).IsCommand() {
		return e.control(msg)
	}
	var cmd wire.Command
	if err := cmd.Decode(msg); err != nil {
		return false
	}
	if e.p.command != nil {
		return e.p.command(e, &cmd, cmd.Inline(msg))
	}
	e.answer(&cmd)
	return true
}

func (e *end) keepalive(ack wire.Immediate) bool {
	if e.p.keepalive != nil {
		return e.p.keepalive(e)
	}
	if e.role == wire.RoleIO {
		e.immediate(ack)
	}
	return true
}

// control does what a good target does, unless the play says otherwise.
func (e *end) control(msg []byte) bool {
	op := wire.RawOpcode(msg)
	h, err := wire.PeekControl(msg)
	if err != nil {
		return false
	}
	if op == wire.OpLogin {
		var q wire.LoginRequest
		if q.Decode(msg) != nil {
			return false
		}
		e.role = q.Role
		a := wire.LoginResponse{
			ID: q.ID, PathEpoch: 1, Version: wire.Version, Credits: q.Depth, SlotCount: q.Depth, SlotBase: q.Conn * 128, Conns: 4,
			InlineMax: 4096, MaxIO: 1 << 20, DataModes: q.DataModes, Features: q.Features, KeepAliveMillis: e.p.millis,
		}
		if e.p.login != nil {
			return e.p.login(e, &q, &a)
		}
		e.sendControl(&a)
		return true
	}
	if e.p.control != nil && op != wire.OpKeepAlive {
		return e.p.control(e, op, msg)
	}
	return e.obey(op, h, msg)
}

// obey answers a control request.
func (e *end) obey(op wire.Opcode, h wire.ControlHeader, msg []byte) bool {
	switch op {
	case wire.OpOpen:
		a := wire.OpenResponse{
			ID: h.ID, PathEpoch: 1, Export: 3, Size: 8 << 30, MinimumBlock: 512, PreferredBlock: 4096, Name: "disk",
			Features: 1 | 2 | 4 | 8 | 16 | 32,
		}
		if e.p.open != nil {
			e.p.open(&a)
		}
		e.sendControl(&a)
	case wire.OpKeepAlive:
		if e.p.keepalive != nil {
			return e.p.keepalive(e)
		}
		e.sendControl(&wire.KeepAlive{ID: h.ID, PathEpoch: 1, Ack: true})
	case wire.OpLogout:
		e.sendControl(&wire.LogoutResponse{ID: h.ID, PathEpoch: 1})
	default:
		e.sendControl(&wire.Refused{ID: h.ID, PathEpoch: 1, Status: wire.StatusNotSupported, Request: op})
	}
	return true
}

// sendControl sends a control message.
func (e *end) sendControl(m wire.Message) {
	b := make([]byte, wire.MaxControlSize)
	if n, err := m.Encode(b); err == nil {
		e.send(b[:n])
	}
}

// send sends any bytes.
func (e *end) send(msg []byte) {
	if s := e.c.AcquireSend(); s != nil {
		_ = e.c.StageMessage(s, copy(s.Head, msg), carrier.Span{})
	}
}

func (e *end) immediate(i wire.Immediate) {
	if s := e.c.AcquireSend(); s != nil {
		_ = e.c.StageImmediate(s, uint32(i))
	}
}

// place writes n bytes to the command's first segment, with an immediate.
func (e *end) place(cmd *wire.Command, n uint32, i wire.Immediate) {
	s, w := e.c.AcquireSend(), cmd.Segments[0]
	if s != nil {
		_ = e.c.StageWriteImmediate(s, carrier.Span{Addr: e.data.Addr, Handle: e.data.Handle, Length: n}, w.Addr, w.Handle, uint32(i))
	}
}

// write writes the command's data without an immediate.
func (e *end) write(cmd *wire.Command) {
	s, w := e.c.AcquireSend(), cmd.Segments[0]
	if s != nil {
		_ = e.c.StageWrite(s, carrier.Span{Addr: e.data.Addr, Handle: e.data.Handle, Length: cmd.Length}, w.Addr, w.Handle)
	}
}

// immediateOf answers a command in four bytes.
func immediateOf(t wire.ImmediateType, cmd *wire.Command) wire.Immediate {
	return wire.MakeImmediate(t, cmd.PathEpoch, cmd.Seq, cmd.Slot)
}

// replyOf answers a command with a capsule.
func replyOf(cmd *wire.Command) wire.Reply {
	r := wire.Reply{Slot: cmd.Slot, Seq: cmd.Seq, PathEpoch: cmd.PathEpoch}
	if cmd.Opcode <= wire.OpWrite {
		r.Length = cmd.Length
	}
	if cmd.Opcode == wire.OpRead && cmd.Mode == wire.ModeInline {
		r.InlineLength = cmd.Length
	}
	return r
}

// reply sends a reply with n bytes of payload.
func (e *end) reply(r wire.Reply, n int) {
	b := make([]byte, wire.HeaderSize+n)
	r.Encode(b)
	e.send(b)
}

// answer answers a command well. Data is zeroes.
func (e *end) answer(cmd *wire.Command) {
	switch {
	case cmd.Mode == wire.ModePlace:
		e.place(cmd, cmd.Length, immediateOf(wire.ImmOKData, cmd))
	case cmd.Opcode == wire.OpRead:
		e.reply(replyOf(cmd), int(cmd.Length))
	default:
		e.immediate(immediateOf(wire.ImmOK, cmd))
	}
}
