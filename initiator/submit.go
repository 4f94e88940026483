package initiator

import (
	"fmt"
	"syscall"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
)

// op is a request under way. A request longer than the target takes in one
// command is cut into several.
type op struct {
	request *block.Request
	cut     int64 // bytes of the request that are in commands
	pending int   // commands without an answer
	err     error // the first
	memory  regcache.Slot
	bounce  bool // memory is ours alone: the request's data is the caller's own
}

// slot is a command under way, or the sequence number of the last one.
type slot struct {
	busy    bool // without an answer
	held    bool // answered; its receive holds data that is not released
	op      uint16
	seq     uint32
	length  uint32
	off     int64 // of the command in its request
	mode    wire.DataMode
	receive uint32
}

// opcodes and flags on the wire.
var opcodeOf = [...]wire.Opcode{
	block.Read: wire.OpRead, block.Write: wire.OpWrite, block.Flush: wire.OpFlush,
	block.Trim: wire.OpTrim, block.WriteZeroes: wire.OpWriteZeroes,
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
	if q.held == q.depth {
		return false
	}
	q.held++
	k := len(q.freeOps) // > 0: an op is free again before its request is reaped
	i := q.freeOps[k-1]
	q.freeOps = q.freeOps[:k-1]
	o := &q.ops[i]
	*o = op{request: r}
	r.Token, r.Err = uint64(i), nil
	q.stats.Count(r.Op, uint64(r.Length))
	switch {
	case q.failure != nil:
		o.err = syscall.EIO
		q.finish(i)
	case int(r.Op) >= len(opcodeOf) || r.Op == 0:
		o.err = syscall.EINVAL
		q.finish(i)
	case !q.waiting.empty() || !q.cut(i):
		q.waiting.push(i)
	}
	return true
}

// cut turns as much of a request into commands as there are slots. It returns
// true when nothing is left to cut.
func (q *Queue) cut(i uint16) bool {
	o := &q.ops[i]
	r := o.request
	if !q.prepare(o) {
		return false
	}
	for {
		n := int64(r.Length) - o.cut
		if r.Op == block.Read || r.Op == block.Write {
			n = min(n, int64(q.maxIO))
		} else {
			n = min(n, maxRange)
		}
		k := len(q.freeSlots)
		s := q.carrier.TakeSend()
		if k == 0 || s == nil {
			if s != nil {
				q.carrier.FreeSend(s)
			}
			q.stats.WaitsForCredit++
			return false
		}
		at := q.freeSlots[k-1]
		q.freeSlots = q.freeSlots[:k-1]
		if err := q.command(i, at, s, n); err != nil {
			q.fail(err)
			return true
		}
		if o.cut += n; o.cut >= r.Length {
			return true
		}
	}
}

// maxRange is the longest Trim or WriteZeroes of one command: a multiple of any
// block size that fits 32 bits.
const maxRange = 1 << 31

// prepare gets memory for a request that brought its own: the pool's, which the
// target may touch. Data that goes inside a message needs none, if it is a read.
func (q *Queue) prepare(o *op) bool {
	r := o.request
	if r.Op != block.Read && r.Op != block.Write || r.Memory != 0 || o.bounce {
		return true
	}
	if r.Op == block.Read && q.fitsInline(r.Length) {
		return true
	}
	m, ok := q.pool.Get(int(r.Length))
	if !ok {
		q.stats.WaitsForMemory++
		return false
	}
	o.memory, o.bounce = m, true
	if r.Op == block.Write {
		q.stats.BytesBounced += uint64(copy(m.Data, r.Data))
	}
	return true
}

func (q *Queue) fitsInline(n int64) bool { return n <= int64(q.inline) }

// command stages the next n bytes of a request as a command.
func (q *Queue) command(i, at uint16, s *carrier.Send, n int64) error {
	o := &q.ops[i]
	r := o.request
	sl := &q.slots[at]
	*sl = slot{busy: true, op: i, seq: sl.seq + 1, length: uint32(n), off: o.cut}
	cmd := wire.Command{
		Opcode: opcodeOf[r.Op], Flags: wireFlags(r.Flags), Slot: q.base + at, Export: q.export,
		Seq: sl.seq, PathEpoch: pathEpoch, Offset: uint64(r.Offset + o.cut), Length: uint32(n),
	}
	var payload carrier.Span
	if r.Op == block.Read || r.Op == block.Write {
		payload = q.expose(&cmd, o, r)
	}
	sl.mode = cmd.Mode
	o.pending++
	h := cmd.Encode(s.Head)
	q.staged = true
	if err := q.carrier.StageMessage(s, h, payload); err != nil {
		return fmt.Errorf("stage command: %w", err)
	}
	return nil
}

// expose decides how the payload of a command moves: inside the message if it is
// small, else by the target's RDMA from or to the pool. It returns what goes
// inside the message.
func (q *Queue) expose(cmd *wire.Command, o *op, r *block.Request) carrier.Span {
	memory := q.memory(o, r)
	if cmd.Length <= q.inline && r.Length <= int64(q.inline) {
		cmd.Mode = wire.ModeInline
		if r.Op == block.Read {
			return carrier.Span{}
		}
		cmd.InlineLength = cmd.Length
		return carrier.Span{Addr: memory.Addr + uint64(o.cut), Handle: memory.Handle, Length: cmd.Length}
	}
	cmd.Mode = wire.ModePull
	if r.Op == block.Read {
		cmd.Mode = wire.ModeWindow
	}
	cmd.NumSegments = 1
	cmd.Segments[0] = wire.Segment{Addr: memory.Addr + uint64(o.cut), Handle: memory.Handle, Length: cmd.Length}
	return carrier.Span{}
}

// memory returns the pool memory of a request; it is empty for a read that comes
// inside the message.
func (q *Queue) memory(o *op, r *block.Request) *regcache.Slot {
	if r.Memory&reservedPool != 0 {
		return &q.reserved[r.Memory&reservedIndex]
	}
	return &o.memory
}
