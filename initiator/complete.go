package initiator

import (
	"errors"
	"fmt"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/via"
)

// progress handles what the VI finished, starts what waited and keeps the
// heartbeat.
func (q *Queue) progress() {
	if q.turns++; q.turns%publishTurns == 0 {
		q.publish()
	}
	for {
		n := q.carrier.Poll(q.done[:])
		for i := range q.done[:n] {
			if err := q.completion(&q.done[i]); err != nil {
				q.fail(err)
				return
			}
		}
		if n < len(q.done) {
			break
		}
	}
	if !q.carrier.Connected() {
		q.fail(errLost)
		return
	}
	q.resume()
	if q.beat.due() {
		q.heartbeat()
	}
	q.Kick()
}

// resume cuts the requests that waited for slots or memory, in order.
func (q *Queue) resume() {
	for q.failure == nil && !q.waiting.empty() && q.cut(q.waiting.first()) {
		if q.failure != nil {
			return // nothing waits any more
		}
		q.waiting.pop()
	}
}

// completion handles a finished descriptor.
func (q *Queue) completion(e *via.Completion) error {
	switch {
	case e.Status.Failed():
		if e.Status&via.StatusFlushed != 0 {
			return nil // the state says the rest
		}
		return fmt.Errorf("transfer failed: %v", e.Status)
	case !e.Recv:
		q.carrier.FreeSend(q.carrier.Sent(e))
		return nil
	}
	q.beat.heard()
	r := q.carrier.Arrived(e)
	if e.Status&via.StatusImmediate != 0 {
		placed := e.Status&via.StatusOpMask == via.StatusOpRemoteWrite
		if err := q.carrier.Post(r); err != nil {
			return err
		}
		return q.immediate(wire.Immediate(e.Immediate), placed, e.Length)
	}
	if e.Length < wire.HeaderSize {
		return fmt.Errorf("message of %d bytes", e.Length)
	}
	if wire.RawOpcode(r.Head) != wire.OpReply {
		return q.other(r, e.Length)
	}
	return q.reply(r, e.Length)
}

// immediate handles an answer in four bytes: success.
func (q *Queue) immediate(i wire.Immediate, placed bool, length uint32) error {
	switch i.Type() {
	case wire.ImmOK, wire.ImmOKData:
	case wire.ImmHeartbeatAck:
		q.beat.acknowledged()
		return nil
	case wire.ImmHeartbeat:
		return q.sendImmediate(wire.MakeImmediate(wire.ImmHeartbeatAck, pathEpoch, 0, 0))
	default:
		return fmt.Errorf("immediate of type %d", i.Type())
	}
	sl, at, err := q.answered(i.Slot())
	if err != nil {
		return err
	}
	if !i.Matches(pathEpoch, sl.seq) {
		return errStale
	}
	window := sl.mode == wire.ModeWindow
	if window != (i.Type() == wire.ImmOKData) || window != placed || placed && (length == 0 || length > sl.length) ||
		sl.mode == wire.ModeInline && q.ops[sl.op].request.Op != block.Write {
		return errAnswer
	}
	q.freeSlot(at)
	return q.settle(sl, nil)
}

// What breaks the protocol, so that the connection goes.
var (
	errSlot   = errors.New("answer for a slot that has no command")
	errStale  = errors.New("answer for another command of its slot")
	errAnswer = errors.New("answer does not fit the command")

	errDraining = errors.New("the target is going down")
	errCredits  = errors.New("change of credits, which were granted for good")
)

// answered finds the command that an answer is for, and ends it.
func (q *Queue) answered(number uint16) (*slot, uint16, error) {
	at := number - q.base
	if int(at) >= len(q.slots) || !q.slots[at].busy {
		return nil, 0, errSlot
	}
	q.slots[at].busy = false
	return &q.slots[at], at, nil
}

// freeSlot gives a slot back, unless the target has fewer by now.
func (q *Queue) freeSlot(at uint16) {
	if int(at) < q.credits {
		q.freeSlots = append(q.freeSlots, at)
	}
}

// reply handles a reply capsule: inline data, extents, or an error.
func (q *Queue) reply(rc *carrier.Receive, length uint32) error {
	var reply wire.Reply
	if err := reply.DecodeSplit(rc.Head, rc.Data[:length-wire.HeaderSize]); err != nil {
		return err
	}
	sl, at, err := q.answered(reply.Slot)
	if err != nil {
		return err
	}
	if reply.Seq != sl.seq || reply.PathEpoch != pathEpoch {
		return errStale
	}
	if reply.CreditDelta != 0 {
		return errCredits
	}
	o := &q.ops[sl.op]
	r := o.request
	if reply.Status == wire.StatusShutdown && q.device.keeper != nil {
		return errDraining // it was not executed, and is sent again later
	}
	if reply.Status != wire.StatusOK {
		q.freeSlot(at)
		if err := q.carrier.Post(rc); err != nil {
			return err
		}
		return q.settle(sl, reply.Status.Errno())
	}
	moved, inline := uint32(0), r.Op == block.Read && sl.mode == wire.ModeInline
	if r.Op == block.Read || r.Op == block.Write {
		moved = sl.length
	}
	switch {
	case r.Op == block.Status:
		if err := takeExtents(r, rc.Data[:reply.InlineLength], sl.length); err != nil {
			return err
		}
	case reply.Length != moved || inline != (reply.InlineLength != 0):
		return errAnswer
	case inline:
		return q.inlineData(rc, sl, at, r)
	}
	q.freeSlot(at)
	if err := q.carrier.Post(rc); err != nil {
		return err
	}
	return q.settle(sl, nil)
}

// takeExtents hands the answer to a Status on, as far as the caller has memory.
func takeExtents(r *block.Request, list []byte, length uint32) error {
	n, err := wire.CheckExtents(list, length)
	if err != nil {
		return err
	}
	for i := range n {
		e := wire.ExtentAt(list, i)
		if !r.AddExtent(int64(e.Length), block.ExtentFlags(e.Flags)&block.KnownExtentFlags) {
			break
		}
	}
	return nil
}

// inlineData hands a small Read's data on: to the caller's memory, or, where the
// queue provides the memory, as it lies in the receive, which is held until the
// request is released.
func (q *Queue) inlineData(rc *carrier.Receive, sl *slot, at uint16, r *block.Request) error {
	if r.Memory&reservedAny == 0 {
		q.bounced(regcache.Choice{}, copy(r.Data, rc.Data[:sl.length]), 0)
		q.freeSlot(at)
		if err := q.carrier.Post(rc); err != nil {
			return err
		}
		return q.settle(sl, nil)
	}
	r.Data = rc.Data[:sl.length:sl.length]
	r.Memory = reservedAny | reservedHeld | uint64(at)
	sl.held, sl.receive = true, rc.Index()
	return q.settle(sl, nil)
}

// settle ends a command of a request, and the request with its last command.
func (q *Queue) settle(sl *slot, err error) error {
	o := &q.ops[sl.op]
	o.pending--
	if err != nil && o.err == nil {
		o.err = err
	}
	q.arrive(o, sl, err == nil)
	if o.pending != 0 || o.cut < o.request.Length {
		return nil
	}
	if err := q.count(o); err != nil {
		return err
	}
	q.finish(sl.op)
	return nil
}

// finish hands a request back.
func (q *Queue) finish(i uint16) {
	o := &q.ops[i]
	r := o.request
	r.Err = o.err
	if o.err != nil {
		q.stats.Errors++
	}
	if !o.began.IsZero() && q.alone && o.err == nil {
		q.timed = timed{o.choice, o.began, time.Since(o.began)}
	}
	*o = op{}
	q.freeOps = append(q.freeOps, i)
	q.finished.push(r)
}

// other refuses a control message on an I/O connection: there nothing asks for
// one, but for the logout, whose answer nobody awaits.
func (q *Queue) other(rc *carrier.Receive, length uint32) error {
	op := wire.RawOpcode(rc.Head)
	return fmt.Errorf("unexpected %v of %d bytes", op, length)
}

// heartbeat asks the target for a sign of life, or gives it up.
func (q *Queue) heartbeat() {
	if q.beat.tick() {
		q.fail(fmt.Errorf("the target was silent for %d heartbeats of %v", q.beat.missed, q.beat.interval))
		return
	}
	if q.beat.asked {
		return
	}
	q.beat.asked = q.carrier.FreeSends() > 0
	if err := q.sendImmediate(wire.MakeImmediate(wire.ImmHeartbeat, pathEpoch, 0, 0)); err != nil {
		q.fail(err)
	}
}

// sendImmediate sends four bytes that belong to no command.
func (q *Queue) sendImmediate(i wire.Immediate) error {
	s := q.carrier.TakeSend()
	if s == nil {
		return nil // messages are on their way: they show life
	}
	q.staged = true
	return q.carrier.StageImmediate(s, uint32(i))
}
