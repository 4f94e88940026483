package initiator

import (
	"fmt"
	"syscall"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/via"
)

// An answer comes back in steps; payload is the target's until step 3:
//
//  1. progress       takes completions from the VI
//  2. immediate      or reply: checks the answer against its slot's command
//  3. finishCommand  releases the command's memory; data is the caller's now
//  4. finish         completes the request with its last command, for Reap
//  5. resume         cuts the requests that wait for the slots and memory
//  6. Release        what was reserved is free when the caller has used it

// progress handles completions, resumes waiting requests and sends the
// keepalive.
func (q *Queue) progress() {
	if q.iterations++; q.iterations%publishIterations == 0 {
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
	q.admit()
	if q.poster.leaving && !q.poster.loggedOut {
		q.poster.logOut()
	}
	if q.poster.leaving && !q.slots.busy() {
		q.setActive(false)
		return // the target may have ended the connection
	}
	if !q.carrier.Connected() {
		q.fail(errLost)
		return
	}
	q.resume()
	if q.active && !q.slots.busy() {
		q.setActive(false)
	}
	if q.moving && !q.slots.busy() {
		q.fail(errMoves)
		return
	}
	if q.keepalive.due() {
		q.carrier.Age(q.device.cfg.Scheduler.Now())
		err := q.path.err() // its target may keep the connection
		if n := q.path.heard.Load(); n != q.heard {
			q.heard = n
			q.keepalive.prove() // a slow disk may block the target's worker
		}
		if err == nil {
			err = q.poster.keepalive(&q.keepalive)
		}
		if err != nil {
			q.fail(err)
			return
		}
		q.moving = q.moving || q.prefers()
	}
	q.Kick()
}

// resume cuts the requests that waited for slots or memory, in order.
func (q *Queue) resume() {
	for q.failure == nil && !q.requests.waiting.Empty() && q.cut(*q.requests.waiting.First()) {
		if q.failure != nil {
			return // nothing waits any more
		}
		q.requests.waiting.Pop()
	}
}

// completion handles a completed descriptor.
func (q *Queue) completion(e *via.Completion) error {
	switch {
	case e.Status.Failed():
		if e.Status&via.StatusFlushed != 0 {
			return nil // progress checks the connection state
		}
		return fmt.Errorf("transfer failed: %v", e.Status)
	case !e.Recv:
		q.carrier.FreeSend(q.carrier.Sent(e))
		return nil
	}
	q.keepalive.heard()
	r := q.carrier.Arrived(e)
	if e.Status&via.StatusImmediate != 0 {
		placed := e.Status&via.StatusOpMask == via.StatusOpRemoteWrite
		if err := q.carrier.Post(r); err != nil {
			return err
		}
		return q.immediate(wire.Immediate(e.Immediate), placed, e.Length)
	}
	length, err := q.carrier.Open(r, e.Length)
	if err != nil {
		return err
	}
	if length < wire.HeaderSize {
		return fmt.Errorf("message of %d bytes", length)
	}
	switch op := wire.RawOpcode(r.Head); {
	case op == wire.OpReply:
		return q.reply(r, length)
	case op == wire.OpLogoutResponse && q.poster.loggedOut:
		return q.loggedOut(r, length)
	case (op == wire.OpKeepAlive || op == wire.OpKeepAliveAck) && !q.payload.limits.immediates:
		return q.keepaliveMessage(r, length)
	default:
		return fmt.Errorf("unexpected %v of %d bytes", op, length)
	}
}

// keepaliveMessage handles a keepalive, or the answer to one, where immediates
// were not negotiated.
func (q *Queue) keepaliveMessage(r *carrier.Receive, length uint32) error {
	var m wire.KeepAlive
	err := m.Decode(r.Head)
	switch {
	case err != nil:
		return fmt.Errorf("keepalive: %w", err)
	case length != wire.HeaderSize || m.PathEpoch != q.path.epoch:
		return errStale
	}
	if err := q.carrier.Post(r); err != nil {
		return err
	}
	if m.Ack {
		q.keepalive.acknowledged()
		return nil
	}
	return q.poster.stageKeepalive(true)
}

// loggedOut checks the answer to the logout. A target of an earlier build sends
// it before the answers to commands in flight, so the queue waits for those.
func (q *Queue) loggedOut(r *carrier.Receive, length uint32) error {
	var a wire.LogoutResponse
	msg := append(append([]byte(nil), r.Head...), r.Data[:length-wire.HeaderSize]...)
	if err := a.Decode(msg); err != nil {
		return fmt.Errorf("answer to the logout: %w", err)
	}
	if a.ID != logoutID || a.PathEpoch != q.path.epoch {
		return errStale
	}
	return q.carrier.Post(r)
}

// immediate handles an immediate: a successful answer or a keepalive.
func (q *Queue) immediate(i wire.Immediate, placed bool, length uint32) error {
	if !q.payload.limits.immediates {
		return errImmediate
	}
	switch i.Type() {
	case wire.ImmOK, wire.ImmOKData:
	case wire.ImmKeepAliveAck:
		q.keepalive.acknowledged()
		return nil
	case wire.ImmKeepAlive:
		return q.poster.stageKeepalive(true)
	default:
		return fmt.Errorf("immediate of type %d", i.Type())
	}
	sl, at, err := q.slots.answered(i.Slot())
	if err != nil {
		return err
	}
	if err := sl.checkImmediate(i, q.path.epoch, q.requests.ops[sl.op].request.Op, placed, length); err != nil {
		return err
	}
	q.slots.release(at)
	return q.finishCommand(sl, nil)
}

// reply handles a reply capsule: inline data, extents, or an error.
func (q *Queue) reply(rc *carrier.Receive, length uint32) error {
	var reply wire.Reply
	var tags []byte
	tail := rc.Data[:length-wire.HeaderSize]
	if q.carrier.Sealed() {
		tail, tags = wire.CutTags(rc.Head, tail)
	}
	if err := reply.DecodeSplit(rc.Head, tail); err != nil {
		return err
	}
	sl, at, err := q.slots.answered(reply.Slot)
	if err != nil {
		return err
	}
	if reply.Seq != sl.seq || reply.PathEpoch != q.path.epoch {
		return errStale
	}
	if reply.CreditDelta != 0 {
		return errCredits
	}
	r := q.requests.ops[sl.op].request
	if reply.Status != wire.StatusOK {
		if err := seal.CheckTags(tags, 0); err != nil {
			return err
		}
		if reply.Status == wire.StatusShutdown && q.device.reconnector != nil {
			if q.path.lost.IsSet() {
				return errLost // the target ends the connections of the path, and no more
			}
			q.session.beginDrain()
			return q.finishReply(rc, sl, at, errDraining)
		}
		if r.Op == block.Flush {
			q.device.logFlush(reply.Status.Errno())
		}
		if reply.Status == wire.StatusDigest && r.Op == block.Write && q.payload.limits.digest {
			return q.corrupt(rc, sl, at)
		}
		return q.finishReply(rc, sl, at, reply.Status.Errno())
	}
	if err := sl.checkReply(&reply, r.Op, &q.payload.limits); err != nil {
		return err
	}
	if reply.Flags&wire.ReplyDataDigest != 0 && !q.intact(&reply, rc, sl) {
		return q.corrupt(rc, sl, at)
	}
	if q.carrier.Sealed() {
		if err := q.openReply(r, sl, tags); err != nil {
			return err
		}
	}
	switch {
	case r.Op == block.Status:
		if err := copyExtents(r, rc.Data[:reply.InlineLength], sl.length); err != nil {
			return err
		}
	case sl.inline(r.Op) && r.Memory&reservedAny != 0:
		// A request that reserved memory gets the receive buffer, which the
		// queue posts again when the request is released.
		r.Data = rc.Data[:sl.length:sl.length]
		r.Memory = reservedAny | reservedHeld | uint64(at)
		sl.held, sl.receive = true, rc.Index()
		return q.finishCommand(sl, nil)
	case sl.inline(r.Op):
		q.payload.countCopy(regcache.Choice{}, copy(r.Data, rc.Data[:sl.length]), 0)
	}
	return q.finishReply(rc, sl, at, nil)
}

// finishReply reposts the receive of a reply and completes its command.
func (q *Queue) finishReply(rc *carrier.Receive, sl *slot, at uint16, err error) error {
	q.slots.release(at)
	if err := q.carrier.Post(rc); err != nil {
		return err
	}
	return q.finishCommand(sl, err)
}

// copyExtents copies the extents of a Status reply to the request, as many as
// the request has memory for.
func copyExtents(r *block.Request, list []byte, length uint32) error {
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

// finishCommand completes a command, and its request with the last command.
func (q *Queue) finishCommand(sl *slot, err error) error {
	o := &q.requests.ops[sl.op]
	o.pending--
	if err == errDraining {
		o.again = true // not executed
	} else if err != nil && o.err == nil {
		o.err = err
		if err == syscall.ECANCELED && int64(sl.length) != o.request.Length {
			o.err = syscall.EIO // another command may have begun
		}
	}
	q.payload.finish(o, sl, err == nil)
	if o.pending != 0 || o.cut < o.end {
		return nil
	}
	if o.again {
		if !q.poster.leaving {
			return nil // requeue makes it wait, when the connection ends
		}
		o.err = syscall.EIO
	}
	if o.end < o.request.Length && o.err == nil {
		q.requests.overlaps.release(sl.op)
		o.nextPiece()
		if q.requests.overlaps.acquire(sl.op, o) {
			q.requests.waiting.Push(sl.op)
		}
		return nil
	}
	if err := q.written.count(q.device, q.session, o); err != nil {
		return err
	}
	q.payload.finished(o, q.requests.alone)
	q.requests.finish(sl.op)
	return nil
}

// logFlush logs that the target could not make writes durable: a file system
// above may forget it, and its pages with it. err is the target's answer.
func (d *Device) logFlush(err error) {
	d.flushes.Warn(d.cfg.Log, "the target fails to flush: acknowledged writes may be lost", "event", "flush_failed",
		"host", d.cfg.Host, "export", d.export.Name, "error", err)
}
