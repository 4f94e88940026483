package target

import (
	"fmt"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/ring"
	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
)

// Steps of a send: the owner of its completion.
const (
	stepControl = iota // a control message or immediate: the send is free
	stepRequest        // a part of request User
)

// sender owns the order in which requests get sends of the carrier, for RDMA
// Reads of payload and for answers. Its steps:
//
//  1. submit   a request in state awaitPull or awaitAnswer goes to 2, or waits
//     for sends behind the others
//  2. pull     fetches a Write's payload from the initiator
//  3. answer   sends a Read's data and the answer; data stays in the request's
//     memory until the last completion
//  4. resume   continues requests that wait, when sends have completed
type sender struct {
	carrier    *carrier.Carrier
	login      login
	awaitSends ring.Ring[*request]
	ackPending bool   // a keepalive is to be acknowledged
	ackID      uint32 // of the keepalive, if it was a message

	bytesPulled, bytesPlaced, waits uint64
}

// submit starts a request's pull or answer, now or, in order, when sends are
// free.
func (x *sender) submit(r *request) error {
	if x.awaitSends.Empty() && x.fits(r) {
		return x.start(r)
	}
	r.countWait()
	x.awaitSends.Push(r)
	return nil
}

// resume starts the requests that wait for sends, in FIFO order.
func (x *sender) resume() error {
	for !x.awaitSends.Empty() && x.fits(*x.awaitSends.First()) {
		if err := x.start(x.awaitSends.Pop()); err != nil {
			return err
		}
	}
	return nil
}

// fits reports whether there are enough sends for a request.
func (x *sender) fits(r *request) bool {
	n := 1
	if r.state == awaitPull || x.places(r) {
		n = int(r.command.NumSegments)
		if r.state == awaitAnswer && x.login.features&wire.FeatureImmediate == 0 {
			n++ // a reply follows the writes
		}
	}
	if x.carrier.FreeSends() < n {
		x.waits++
		return false
	}
	return true
}

// places reports whether the answer of a request is data by RDMA Write.
func (x *sender) places(r *request) bool {
	return r.status == wire.StatusOK && r.command.Mode == wire.ModePlace
}

// start stages a request's pull or answer, for which there are enough sends.
func (x *sender) start(r *request) error {
	switch {
	case r.state == awaitPull:
		return x.pull(r)
	case x.places(r):
		return x.answerByWrite(r)
	default:
		return x.answer(r)
	}
}

// pull fetches a Write's payload by RDMA Read, a read for each segment.
func (x *sender) pull(r *request) error {
	r.state = pulling
	off := uint32(0)
	for _, s := range r.command.Segments[:r.command.NumSegments] {
		if err := x.carrier.StageRead(x.acquireSend(r), r.span(off, s.Length), s.Addr, s.Handle); err != nil {
			return fmt.Errorf("stage rdma read: %w", err)
		}
		off += s.Length
	}
	x.bytesPulled += uint64(r.command.Length)
	return nil
}

// answer answers a request. Success without inline data is four bytes of
// immediate; everything else is a reply capsule.
func (x *sender) answer(r *request) error {
	r.state = answering
	s := x.acquireSend(r)
	data := r.command.Mode == wire.ModeInline && r.command.Opcode != wire.OpWrite // in the reply
	if r.status == wire.StatusOK && !data && x.login.features&wire.FeatureImmediate != 0 {
		return staged(x.carrier.StageImmediate(s, uint32(wire.MakeImmediate(wire.ImmOK, x.login.epoch, r.seq, r.slot))))
	}
	return x.reply(r, s)
}

// answerByWrite writes a Read's data into the initiator's segments by RDMA
// Write; the last write carries the answer, or a reply follows where immediates
// were not negotiated.
func (x *sender) answerByWrite(r *request) error {
	n := int(r.command.NumSegments)
	immediate := x.login.features&wire.FeatureImmediate != 0
	r.state = answering
	var reply *carrier.Send
	if r.protection != nil {
		// Sealed once: from here on it is answered, or the connection ends.
		reply = x.acquireSend(r)
		if err := r.protection.seal(r.memory.Data, reply.Head[wire.HeaderSize:]); err != nil {
			return fmt.Errorf("seal payload of a read: %w", err)
		}
		x.carrier.CountSealed(len(r.memory.Data))
	}
	off := uint32(0)
	for i, w := range r.command.Segments[:n] {
		s, local := x.acquireSend(r), r.span(off, w.Length)
		var err error
		if immediate && i == n-1 {
			err = x.carrier.StageWriteImmediate(s, local, w.Addr, w.Handle,
				uint32(wire.MakeImmediate(wire.ImmOKData, x.login.epoch, r.seq, r.slot)))
		} else {
			err = x.carrier.StageWrite(s, local, w.Addr, w.Handle)
		}
		if err != nil {
			return staged(err)
		}
		off += w.Length
	}
	if !immediate {
		if reply == nil {
			reply = x.acquireSend(r)
		}
		if err := x.reply(r, reply); err != nil {
			return err
		}
	}
	x.bytesPlaced += uint64(r.command.Length)
	if r.command.Length >= earlyDoorbellBytes {
		x.carrier.Doorbell()
	}
	return nil
}

// earlyDoorbellBytes is the size from which a Read rings the doorbell at once
// instead of with the batch: its peer may copy this part of a request while the
// next one is written.
const earlyDoorbellBytes = 16 << 10

// reply stages a reply capsule, with a Read's data behind it if that goes
// inline, or the extents of a block-status.
func (x *sender) reply(r *request, s *carrier.Send) error {
	reply := wire.Reply{Status: r.status, Slot: r.slot, Seq: r.seq, PathEpoch: x.login.epoch}
	if r.handle != nil {
		reply.Verifier = r.handle.opened.export.verifier()
	}
	var payload carrier.Span
	if r.status == wire.StatusOK {
		if r.command.Opcode <= wire.OpWrite {
			reply.Length = r.command.Length
		}
		if r.command.Opcode == wire.OpRead && r.command.Mode == wire.ModeInline {
			reply.InlineLength = r.command.Length
			payload = r.span(0, r.command.Length)
		}
		if r.command.Opcode == wire.OpBlockStatus {
			reply.Length, reply.InlineLength = r.extentBytes, r.extentBytes
			payload = r.span(0, r.extentBytes)
		}
	}
	r.digest(&reply)
	n := reply.Encode(s.Head)
	if !x.carrier.Sealed() {
		return staged(x.carrier.StageMessage(s, n, payload))
	}
	switch {
	case payload.Length > 0:
		n += copy(s.Head[n:], r.memory.Data[:payload.Length])
	case x.places(r):
		n += seal.TagsSize(r.command.Length) // which are there
	}
	return staged(x.carrier.StageMessage(s, n, carrier.Span{}))
}

// acquireSend acquires a send for a part of the request's pull or answer.
func (x *sender) acquireSend(r *request) *carrier.Send {
	s := x.carrier.AcquireSend()
	s.User, s.Step = uint32(r.index), stepRequest
	r.pending++
	return s
}

// staged says what failed to be staged.
func staged(err error) error {
	if err != nil {
		return fmt.Errorf("stage answer: %w", err)
	}
	return nil
}

// acknowledgeKeepalive acknowledges a keepalive, now or when a send is free.
func (x *sender) acknowledgeKeepalive(id uint32) error {
	x.ackPending, x.ackID = true, id
	return x.resumeKeepalive()
}

// resumeKeepalive acknowledges the keepalives that wait, all at once, if a send
// is free.
func (x *sender) resumeKeepalive() error {
	if !x.ackPending {
		return nil
	}
	s := x.carrier.AcquireSend()
	if s == nil {
		return nil
	}
	x.ackPending = false
	s.Step = stepControl
	if x.login.features&wire.FeatureImmediate != 0 {
		return staged(x.carrier.StageImmediate(s, uint32(wire.MakeImmediate(wire.ImmKeepAliveAck, x.login.epoch, 0, 0))))
	}
	ack := wire.KeepAlive{ID: x.ackID, PathEpoch: x.login.epoch, Ack: true}
	n, err := ack.Encode(s.Head)
	if err != nil {
		return err
	}
	return staged(x.carrier.StageMessage(s, n, carrier.Span{}))
}
