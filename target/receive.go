package target

import (
	"errors"
	"fmt"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
)

// message handles an arrived message: a heartbeat, a control message or a
// command. The receive is posted again before anything is answered, so that the
// answer can stand for the credit.
func (c *conn) message(e *via.Completion) {
	r := c.carrier.Arrived(e)
	switch {
	case c.leaving:
		c.repost(r) // who has said goodbye is not listened to
		return
	case e.Status&via.StatusImmediate != 0:
		// The length is not looked at: of an RDMA Write it is no length of r.
		c.repost(r)
		c.immediate(wire.Immediate(e.Immediate), e.Length)
		return
	case e.Length < wire.HeaderSize:
		c.fail(fmt.Errorf("message of %d bytes", e.Length))
		return
	}
	if !wire.RawOpcode(r.Head).IsCommand() {
		n := copy(c.scratch, r.Head)
		n += copy(c.scratch[n:], r.Data[:e.Length-wire.HeaderSize])
		c.repost(r)
		c.control(c.scratch[:n])
		return
	}
	c.command(r, e.Length)
}

// repost gives a receive back to the VI.
func (c *conn) repost(r *carrier.Receive) {
	if err := c.carrier.Post(r); err != nil {
		c.fail(fmt.Errorf("post receive: %w", err))
	}
}

// immediate handles what travels without a message: heartbeats.
func (c *conn) immediate(i wire.Immediate, length uint32) {
	switch {
	case c.role == 0:
		c.fail(errNoLogin)
	case i.Epoch() != c.epoch&0xf:
		c.fail(errEpoch)
	case i.Type() != wire.ImmHeartbeat || length != 0:
		c.fail(fmt.Errorf("immediate of type %d with %d bytes", i.Type(), length))
	default:
		c.owesBeat = true
		c.answerBeat()
	}
}

// What breaks the protocol, so that the connection goes.
var (
	errNoIO     = errors.New("command on a connection that is not for commands")
	errSlot     = errors.New("command in a slot of another connection")
	errSequence = errors.New("command out of sequence in its slot")
	errCredits  = errors.New("command in a slot that is in use")
	errEpoch    = errors.New("command of another path epoch")
	errTooLong  = errors.New("command longer than negotiated")
	errFeature  = errors.New("command uses what was not negotiated")
)

// command decodes a command and checks it against the session. What breaks a
// rule of the protocol ends the connection; what the export refuses is answered.
func (c *conn) command(rc *carrier.Receive, length uint32) {
	if c.role != wire.RoleIO {
		c.fail(errNoIO)
		return
	}
	var cmd wire.Command
	err := cmd.DecodeSplit(rc.Head, rc.Data[:length-wire.HeaderSize])
	if err != nil && !errors.Is(err, wire.ErrUnknownOpcode) {
		c.fail(err)
		return
	}
	at := cmd.Slot - c.base
	if int(at) >= len(c.requests) {
		c.fail(errSlot)
		return
	}
	r := &c.requests[at]
	if r.state == answering && !r.stashed {
		// The peer saw the answer before this end saw its completion.
		r.stashed, r.next, r.nextLen = true, rc.Index(), length
		return
	}
	if err != nil {
		// Of an unknown command only what all commands share has a meaning.
		cmd = wire.Command{Opcode: cmd.Opcode, Slot: cmd.Slot, Seq: cmd.Seq, PathEpoch: cmd.PathEpoch}
	}
	if broken := c.checkSession(r, &cmd); broken != nil {
		c.fail(broken)
		return
	}
	c.begin(r, &cmd, rc)
	if err != nil {
		c.refuse(r, wire.StatusNotSupported)
		return
	}
	c.checkExport(r)
}

// checkSession checks what the session prescribes.
func (c *conn) checkSession(r *request, cmd *wire.Command) error {
	switch {
	case cmd.PathEpoch != c.epoch:
		return errEpoch
	case r.state != free:
		return errCredits
	case r.used && cmd.Seq != r.seq+1:
		return errSequence
	case cmd.Flags&(wire.FlagReplay|wire.FlagDataDigest) != 0 || cmd.Mode != wire.ModeNone && !c.modes.Has(cmd.Mode):
		return errFeature
	case cmd.InlineLength > c.inline || cmd.Mode == wire.ModeInline && cmd.Opcode == wire.OpRead && cmd.Length > c.inline:
		return errTooLong
	case cmd.Opcode <= wire.OpWrite && cmd.Length > c.maxIO:
		return errTooLong
	}
	return nil
}

// begin books the command in its slot. An inline payload stays in the receive,
// which is held; every other receive goes back.
func (c *conn) begin(r *request, cmd *wire.Command, rc *carrier.Receive) {
	r.seq, r.used, r.command = cmd.Seq, true, *cmd
	r.pending, r.handle = 0, nil
	r.held = cmd.InlineLength > 0
	r.receive = rc.Index()
	c.busy++
	c.disturbed()
	if !r.held {
		c.repost(rc)
	}
}

// opOf maps the wire's operations to the device's.
var opOf = [...]block.Op{
	wire.OpRead: block.Read, wire.OpWrite: block.Write, wire.OpFlush: block.Flush,
	wire.OpTrim: block.Trim, wire.OpWriteZeroes: block.WriteZeroes,
	wire.OpPrefetch: block.Prefetch, wire.OpBlockStatus: block.Status,
}

// checkExport checks the command against its export, once and for all, and sends
// it on its way.
func (c *conn) checkExport(r *request) {
	cmd := &r.command
	if c.halt.Load() != 0 {
		c.refuse(r, wire.StatusShutdown)
		return
	}
	h, status := c.handle(cmd.Export)
	if status != wire.StatusOK {
		c.refuse(r, status)
		return
	}
	r.handle = h
	h.busy++
	op, flags := opOf[cmd.Opcode], blockFlags(cmd.Flags)
	info := h.opened.info
	info.Size = h.opened.size.Load()
	if e := info.Check(op, flags, cmd.Offset, uint64(cmd.Length)); e != 0 {
		c.refuse(r, wire.StatusOf(e))
		return
	}
	r.block = block.Request{
		Op: op, Flags: flags, Offset: int64(cmd.Offset), Length: int64(cmd.Length), User: uint64(r.slot - c.base),
	}
	c.start(r)
}

func blockFlags(f wire.CommandFlags) (b block.Flags) {
	if f&wire.FlagFUA != 0 {
		b |= block.FUA
	}
	if f&wire.FlagNoHole != 0 {
		b |= block.NoHole
	}
	if f&wire.FlagFastZero != 0 {
		b |= block.FastZero
	}
	return b
}
