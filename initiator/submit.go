package initiator

import (
	"fmt"
	"syscall"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
)

// op is a request under way. A request longer than the target takes in one
// command is cut into several.
type op struct {
	request *block.Request
	cut     int64  // bytes of the request that are in commands
	pending int    // commands without an answer
	err     error  // the first
	mark    uint64 // of a Flush: writes that it covers

	// Of a request in memory of the caller's.
	piece  int64 // up to where choice holds
	choice regcache.Choice
	began  time.Time // when choice was made, if the whole is timed
}

// slot is a command under way, or the sequence number of the last one.
type slot struct {
	busy    bool // without an answer
	held    bool // answered; its receive holds data that is not released
	owed    bool // its receive is to be posted when the queue has a connection
	op      uint16
	seq     uint32
	length  uint32
	off     int64 // of the command in its request
	mode    wire.DataMode
	receive uint32
	own     ownMemory // of a command in memory of the caller's
}

// opcodes and flags on the wire.
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
	if q.held == q.depth {
		return false
	}
	q.held++
	k := len(q.freeOps) // > 0: an op is free again before its request is reaped
	i := q.freeOps[k-1]
	q.freeOps = q.freeOps[:k-1]
	o := &q.ops[i]
	*o = op{request: r}
	q.alone = q.held == 1
	if q.timed.took != 0 {
		q.conclude()
	}
	r.Token, r.Err = uint64(i), nil
	q.stats.Count(r.Op, uint64(r.Length))
	if r.Op == block.Flush && q.device.keeper != nil {
		o.mark = q.device.covered()
	}
	switch {
	case q.failure != nil && !q.waits():
		o.err = syscall.EIO
		q.finish(i)
	case int(r.Op) >= len(opcodeOf) || r.Op == 0:
		o.err = syscall.EINVAL
		q.finish(i)
	case q.failure != nil || !q.waiting.empty() || !q.cut(i):
		q.waiting.push(i)
	}
	return true
}

// cut turns as much of a request into commands as there are slots and memory. It
// returns true when nothing is left to cut.
func (q *Queue) cut(i uint16) bool {
	o := &q.ops[i]
	for {
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
		sl := &q.slots[at]
		*sl = slot{op: i, seq: sl.seq, off: o.cut}
		n := q.provide(o, sl)
		if n == 0 {
			q.carrier.FreeSend(s)
			q.stats.WaitsForMemory++
			return false
		}
		q.freeSlots = q.freeSlots[:k-1]
		if err := q.command(i, at, s, n); err != nil {
			q.fail(err)
			return true
		}
		if o.cut += n; o.cut >= o.request.Length || o.request.Op == block.Status {
			o.cut = o.request.Length // of a Status the beginning is enough
			return true
		}
		if sl.own.copied() && o.request.Op == block.Write {
			// The target fetches this part while the next is copied.
			q.staged = false
			q.carrier.Doorbell()
		}
	}
}

// cutAt returns how many of the first n bytes of what is left of a request one
// command is for. If it is not the last, it ends between two blocks of the disk, as
// blocks are to the disk and to [block.AtomicUnit]: no block is in two commands,
// which the target executes in any order. n is a block at least.
func (q *Queue) cutAt(o *op, n int64) int64 {
	at := o.request.Offset + o.cut
	if n >= o.request.Length-o.cut {
		return o.request.Length - o.cut
	}
	return (at+n)&^(q.block-1) - at
}

// maxRange is the longest range of one command without payload: a multiple of any
// block size that fits 32 bits.
const maxRange = 1 << 31

// provide returns how much of a request the next command is for, and gets memory
// for it that the target may touch, if the request brought its own. It returns 0
// while there is none.
func (q *Queue) provide(o *op, sl *slot) int64 {
	r := o.request
	switch {
	case r.Op != block.Read && r.Op != block.Write:
		return max(1, q.cutAt(o, maxRange)) // a Flush has no length
	case r.Memory != 0 || r.Op == block.Read && q.fitsInline(r.Length):
		return q.cutAt(o, int64(q.maxIO))
	default:
		return q.own(o, &sl.own)
	}
}

func (q *Queue) fitsInline(n int64) bool { return n <= int64(q.inline) }

// command stages the next n bytes of a request as a command.
func (q *Queue) command(i, at uint16, s *carrier.Send, n int64) error {
	o := &q.ops[i]
	r := o.request
	sl := &q.slots[at]
	if r.Op == block.Flush {
		n = 0
	}
	sl.busy, sl.length = true, uint32(n)
	sl.seq++
	cmd := wire.Command{
		Opcode: opcodeOf[r.Op], Flags: wireFlags(r.Flags), Slot: q.base + at, Export: q.export,
		Seq: sl.seq, PathEpoch: pathEpoch, Offset: uint64(r.Offset + o.cut), Length: uint32(n),
	}
	var payload carrier.Span
	if r.Op == block.Status {
		cmd.Mode = wire.ModeInline
	}
	if r.Op == block.Read || r.Op == block.Write {
		payload = q.expose(&cmd, o, sl)
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
// small, else by the target's RDMA from or to memory of this end. It returns what
// goes inside the message.
func (q *Queue) expose(cmd *wire.Command, o *op, sl *slot) carrier.Span {
	r := o.request
	if cmd.Length <= q.inline && r.Length <= int64(q.inline) {
		cmd.Mode = wire.ModeInline
		if r.Op == block.Read {
			return carrier.Span{}
		}
		cmd.InlineLength = cmd.Length
		q.segments(cmd, o, sl)
		s := cmd.Segments[0]
		cmd.NumSegments, cmd.Segments[0] = 0, wire.Segment{}
		return carrier.Span{Addr: s.Addr, Handle: s.Handle, Length: s.Length}
	}
	cmd.Mode = wire.ModePull
	if r.Op == block.Read {
		cmd.Mode = wire.ModeWindow
	}
	q.segments(cmd, o, sl)
	return carrier.Span{}
}

// segments names the memory of a command: reserved, leased, or a part of the pool.
func (q *Queue) segments(cmd *wire.Command, o *op, sl *slot) {
	if r := o.request; r.Memory&reservedPool != 0 {
		m := &q.reserved[r.Memory&reservedIndex]
		cmd.NumSegments = 1
		cmd.Segments[0] = wire.Segment{Addr: m.Addr + uint64(o.cut), Handle: m.Handle, Length: cmd.Length}
		return
	}
	cmd.NumSegments = sl.own.segments(&cmd.Segments, cmd.Length)
}
