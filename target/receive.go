package target

import (
	"errors"
	"fmt"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
)

// receiver owns the slots of a connection and checks what arrives in them. A
// slot stands for a credit: the initiator has no more commands in flight than
// slots. Its steps in the order of a command:
//
//  1. command         decodes, finds the slot, checks the login's limits
//  2. begin           stores the command; its inline payload stays in place
//  3. repost          gives every other receive back to the VI
//  4. releaseReceive  gives the receive of an inline payload back, when the
//     backend has taken the payload
//  5. free            makes the slot free, and takes the command that arrived
//     meanwhile
type receiver struct {
	carrier  *carrier.Carrier
	login    login
	requests []request // by slot; nil unless the connection is for I/O
	busy     int       // requests not free
}

// repost gives a receive back to the VI.
func (x *receiver) repost(r *carrier.Receive) error {
	if err := x.carrier.Post(r); err != nil {
		return fmt.Errorf("post receive: %w", err)
	}
	return nil
}

// immediate checks immediate data: it is a keepalive, or an error.
func (x *receiver) immediate(i wire.Immediate, length uint32) error {
	switch {
	case x.login.role == 0:
		return errNoLogin
	case x.login.features&wire.FeatureImmediate == 0:
		return errFeature
	case i.Epoch() != x.login.epoch&0xf:
		return errEpoch
	case i.Type() != wire.ImmKeepAlive || length != 0:
		return fmt.Errorf("immediate of type %d with %d bytes", i.Type(), length)
	}
	return nil
}

// Protocol errors of commands; each ends the connection.
var (
	errNoIO     = errors.New("command on a connection that is not for commands")
	errSlot     = errors.New("command in a slot of another connection")
	errSequence = errors.New("command out of sequence in its slot")
	errCredits  = errors.New("command in a slot that is in use")
	errEpoch    = errors.New("command of another path epoch")
	errTooLong  = errors.New("command longer than negotiated")
	errFeature  = errors.New("the initiator uses what was not negotiated")
	errDigest   = errors.New("command without the data digest that was negotiated")
)

// command decodes a command, checks it against the login and puts it into its
// slot. It returns the request with a status that refuses it or StatusOK, or
// nil if the command waits for the completion of its slot's last answer; after
// that it is passed again, as a stashed one. An error is a protocol error.
func (x *receiver) command(rc *carrier.Receive, length uint32, stashed bool) (*request, wire.Status, error) {
	if x.login.role != wire.RoleIO {
		return nil, 0, errNoIO
	}
	var cmd wire.Command
	var tags []byte
	tail := rc.Data[:length-wire.HeaderSize]
	if x.carrier.Sealed() {
		tail, tags = wire.CutTags(rc.Head, tail)
	}
	err := cmd.DecodeSplit(rc.Head, tail)
	if err != nil && !errors.Is(err, wire.ErrUnknownOpcode) {
		return nil, 0, err
	}
	status := wire.StatusOK
	if err != nil {
		// An unknown command has only the common fields.
		cmd = wire.Command{Opcode: cmd.Opcode, Slot: cmd.Slot, Seq: cmd.Seq, PathEpoch: cmd.PathEpoch}
		status = wire.StatusNotSupported
	}
	at := cmd.Slot - x.login.base
	if int(at) >= len(x.requests) {
		return nil, 0, errSlot
	}
	r := &x.requests[at]
	if r.state == answering && !r.stashed {
		// The peer saw the answer before this end saw its completion.
		r.stashed, r.next, r.nextLen = true, rc.Index(), length
		return nil, 0, x.protect(r.nextProtection, &cmd, rc, tags)
	}
	if err := x.check(r, &cmd); err != nil {
		return nil, 0, err
	}
	if stashed {
		r.protection, r.nextProtection = r.nextProtection, r.protection
	} else if err := x.protect(r.protection, &cmd, rc, tags); err != nil {
		return nil, 0, err
	}
	return r, status, x.begin(r, &cmd, rc)
}

// protect readies the protection of a command that was opened last, in a sealed
// session.
func (x *receiver) protect(p *protection, cmd *wire.Command, rc *carrier.Receive, tags []byte) error {
	if p == nil {
		return nil
	}
	return p.claim(x.carrier.Opener(), cmd, rc, tags)
}

// check checks a command against its slot and the negotiated limits.
func (x *receiver) check(r *request, cmd *wire.Command) error {
	l := &x.login
	switch {
	case cmd.PathEpoch != l.epoch:
		return errEpoch
	case r.state != free:
		return errCredits
	case r.used && cmd.Seq != r.seq+1:
		return errSequence
	case cmd.Flags&wire.FlagReplay != 0 || cmd.Flags&wire.FlagDataDigest != 0 && !l.digest || cmd.Mode != wire.ModeNone && !l.modes.Has(cmd.Mode):
		return errFeature
	case l.digest && cmd.Mode != wire.ModeNone && cmd.Flags&wire.FlagDataDigest == 0:
		return errDigest
	case cmd.InlineLength > l.inline || cmd.Mode == wire.ModeInline && cmd.Opcode == wire.OpRead && cmd.Length > l.inline:
		return errTooLong
	case cmd.Opcode <= wire.OpWrite && cmd.Length > l.maxIO:
		return errTooLong
	}
	return nil
}

// begin stores the command in its slot. An inline payload stays in the receive,
// which the request holds; every other receive is reposted.
func (x *receiver) begin(r *request, cmd *wire.Command, rc *carrier.Receive) error {
	r.seq, r.used, r.command = cmd.Seq, true, *cmd
	r.pending, r.handle = 0, nil
	r.holdsReceive = cmd.InlineLength > 0
	r.receive = rc.Index()
	x.busy++
	if r.holdsReceive {
		return nil
	}
	return x.repost(rc)
}

// releaseReceive reposts the receive that a request holds.
func (x *receiver) releaseReceive(r *request) error {
	if !r.holdsReceive {
		return nil
	}
	r.holdsReceive = false
	return x.repost(x.carrier.Receive(r.receive))
}

// free makes the slot of an answered request free. It returns the command that
// arrived in the slot meanwhile, if any.
func (x *receiver) free(r *request) (*carrier.Receive, uint32) {
	r.state = free
	x.busy--
	if !r.stashed {
		return nil, 0
	}
	r.stashed = false
	return x.carrier.Receive(r.next), r.nextLen
}
