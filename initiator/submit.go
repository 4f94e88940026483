package initiator

import (
	"syscall"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
)

// A request goes out in steps; its payload is the caller's until step 3 has
// given the command memory, and the target may access that until the answer:
//
//  1. Submit   the request gets an op and its range; fails, waits, or goes to 2
//  2. cut      for each command: a slot, a send, and memory of payload.provide
//  3. command  encodes the command, names the memory, stages the message
//  4. Kick     rings one doorbell for all that is staged
//
// complete.go has the way back.

// opcodeOf maps the operations of the device contract to those of the wire.
var opcodeOf = [...]wire.Opcode{
	block.Read: wire.OpRead, block.Write: wire.OpWrite, block.Flush: wire.OpFlush,
	block.Trim: wire.OpTrim, block.WriteZeroes: wire.OpWriteZeroes,
	block.Status: wire.OpBlockStatus, block.Prefetch: wire.OpPrefetch,
}

func wireFlags(f block.Flags) (w wire.CommandFlags) {
	if f&block.FUA != 0 {
		w |= wire.FlagFUA
	}
	if f&block.NoHole != 0 {
		w |= wire.FlagNoHole
	}
	if f&block.FastZero != 0 {
		w |= wire.FlagFastZero
	}
	return w
}

// Submit hands a request to the queue.
func (q *Queue) Submit(r *block.Request) bool {
	q.disarm() // another file descriptor woke the owner
	if q.failure != nil && !q.reconnect.over {
		q.pollReconnect() // the queue may have been idle since the target is back
	}
	i, o, ok := q.requests.add(r)
	if !ok {
		return false
	}
	q.payload.reportTimed()
	if r.Op == block.Flush && q.device.reconnector != nil {
		o.mark = q.device.flushCoverage()
	}
	switch {
	case q.failure != nil && !q.reconnect.waits():
		o.err = syscall.EIO
		q.requests.finish(i)
	case int(r.Op) >= len(opcodeOf) || r.Op == 0:
		o.err = syscall.EINVAL
		q.requests.finish(i)
	case !q.requests.overlaps.acquire(i, o):
	case q.failure != nil || !q.requests.waiting.Empty() || !q.cut(i):
		q.requests.waiting.Push(i)
	}
	return true
}

// admit cuts the requests that waited for their range and hold it now.
func (q *Queue) admit() {
	for {
		i, ok := q.requests.overlaps.pop()
		if !ok {
			return
		}
		o := &q.requests.ops[i]
		if q.failure != nil && !q.reconnect.waits() {
			o.err = syscall.EIO
		}
		if o.err != nil {
			q.requests.finish(i)
		} else {
			q.requests.waiting.Push(i)
		}
	}
}

// cut turns a request into commands as far as slots and memory suffice. It
// returns true when the whole request is cut.
func (q *Queue) cut(i uint16) bool {
	q.setActive(true)
	whole := q.cutCommands(i)
	if !whole {
		q.setActive(q.slots.busy())
	}
	return whole
}

func (q *Queue) cutCommands(i uint16) bool {
	o := &q.requests.ops[i]
	for !q.session.draining.Load() && !q.moving {
		at, sl, ok := q.slots.first()
		s := q.carrier.AcquireSend()
		if !ok || s == nil {
			if s != nil {
				q.carrier.FreeSend(s)
			}
			q.waitsForCredit++
			return false
		}
		*sl = slot{op: i, seq: sl.seq, off: o.cut, protection: sl.protection}
		n := q.payload.provide(o, &sl.mapping, q.requests.held == 1, q.requests.alone)
		if n == 0 && q.requests.othersWait(i) && !q.slots.busy() {
			n = q.payload.mapExtra(o, &sl.mapping)
		}
		if n == 0 {
			q.carrier.FreeSend(s)
			return false
		}
		q.slots.allocate()
		if err := q.command(o, sl, at, s, n); err != nil {
			q.fail(err)
			return true
		}
		if o.cut += n; o.request.Op == block.Status {
			o.cut, o.end = o.request.Length, o.request.Length // the beginning is enough
		}
		if o.cut >= o.end {
			return true
		}
		if sl.mapping.copied() && o.request.Op == block.Write {
			q.poster.kick() // the target fetches this part while the next is copied
		}
	}
	return false
}

// command stages the next n bytes of a request as a command.
func (q *Queue) command(o *op, sl *slot, at uint16, s *carrier.Send, n int64) error {
	r := o.request
	if r.Op == block.Flush {
		n = 0
	}
	sl.busy, sl.length = true, uint32(n)
	sl.seq++
	cmd := wire.Command{
		Opcode: opcodeOf[r.Op], Flags: wireFlags(r.Flags), Slot: q.slots.base + at, Export: q.export,
		Seq: sl.seq, PathEpoch: q.path.epoch, Offset: uint64(r.Offset + o.cut), Length: uint32(n),
	}
	var payload carrier.Span
	if r.Op == block.Status {
		cmd.Mode = wire.ModeInline
	}
	if r.Op == block.Read || r.Op == block.Write {
		payload = q.payload.expose(&cmd, o, &sl.mapping)
	}
	sl.mode = cmd.Mode
	if q.payload.limits.digest && cmd.Mode != wire.ModeNone {
		q.payload.digest(&cmd, o, &sl.mapping)
	}
	if cmd.NumSegments > 0 {
		sl.lastWrite = cmd.Segments[cmd.NumSegments-1].Length
	}
	o.pending++
	if q.carrier.Sealed() {
		return q.sealCommand(o, sl, s, &cmd)
	}
	return q.poster.command(s, &cmd, payload)
}
