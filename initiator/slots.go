package initiator

import (
	"errors"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
)

// Protocol errors that end the connection.
var (
	errSlot   = errors.New("answer for a slot that has no command")
	errStale  = errors.New("answer for another command of its slot")
	errAnswer = errors.New("answer does not fit the command")

	errImmediate = errors.New("immediate on a connection without them")

	errDraining = errors.New("the target is going down")
	errCredits  = errors.New("change of credits, which are fixed at login")
)

// slot is a command slot: the command in flight, or the sequence number of the
// last one.
type slot struct {
	busy         bool // without an answer
	held         bool // answered; the receive holds data that is not released
	postDeferred bool // post the receive after the reconnect
	op           uint16
	seq          uint32
	length       uint32
	lastWrite    uint32 // bytes of a Read's last segment
	off          int64  // of the command in its request
	mode         wire.DataMode
	receive      uint32
	mapping      payloadMapping // of a command in memory of the caller's
	protection   *protection    // of a sealed session; else nil
}

// checkImmediate checks that an immediate answers the slot's command, which is
// of the given operation, on a path of the given epoch. placed is whether it
// came with an RDMA Write, of length bytes. The target writes each segment of a
// Read with one RDMA Write, in order, and the last one brings the immediate.
func (sl *slot) checkImmediate(i wire.Immediate, epoch uint32, op block.Op, placed bool, length uint32) error {
	if !i.Matches(epoch, sl.seq) {
		return errStale
	}
	place := sl.mode == wire.ModePlace
	if place != (i.Type() == wire.ImmOKData) || place != placed || placed && length != sl.lastWrite ||
		sl.mode == wire.ModeInline && op != block.Write {
		return errAnswer
	}
	return nil
}

// inline reports whether the data of the slot's Read comes inside the reply.
func (sl *slot) inline(op block.Op) bool { return op == block.Read && sl.mode == wire.ModeInline }

// checkReply checks that the reply of a success fits the slot's command. With
// immediates, no reply answers a Read in place: it does not show what was
// placed.
func (sl *slot) checkReply(reply *wire.Reply, op block.Op, l *limits) error {
	if l.immediates && sl.mode == wire.ModePlace {
		return errAnswer
	}
	if digest := l.digest && (op == block.Read || op == block.Status); digest != (reply.Flags&wire.ReplyDataDigest != 0) {
		return errAnswer
	}
	moved := uint32(0)
	if op == block.Read || op == block.Write {
		moved = sl.length
	}
	if op != block.Status && (reply.Length != moved || sl.inline(op) != (reply.InlineLength != 0)) {
		return errAnswer
	}
	return nil
}

// slotTable owns the command slots of a queue. A free slot stands for a credit.
type slotTable struct {
	slots   []slot
	free    []uint16
	pending int    // commands without an answer
	credits int    // slots that the target has
	base    uint16 // number of the first
}

// grant makes the slots free that a login granted. Slots that hold a receive
// keep it.
func (t *slotTable) grant(credits int, base uint16) {
	if t.slots == nil {
		t.slots = make([]slot, credits)
	}
	t.credits, t.base, t.free, t.pending = credits, base, t.free[:0], 0
	for i := len(t.slots) - 1; i >= 0; i-- {
		sl := &t.slots[i]
		*sl = slot{seq: sl.seq, held: sl.held, receive: sl.receive, protection: sl.protection}
		if !sl.held {
			t.release(uint16(i))
		}
	}
}

// first returns the slot that take takes, or false if none is free.
func (t *slotTable) first() (uint16, *slot, bool) {
	k := len(t.free)
	if k == 0 {
		return 0, nil, false
	}
	at := t.free[k-1]
	return at, &t.slots[at], true
}

// allocate marks the slot that first returned as in use.
func (t *slotTable) allocate() {
	t.free = t.free[:len(t.free)-1]
	t.pending++
}

// release frees a slot, unless the target grants fewer slots since a reconnect.
func (t *slotTable) release(at uint16) {
	if int(at) < t.credits {
		t.free = append(t.free, at)
	}
}

// answered returns the unanswered command of a slot and marks it answered.
func (t *slotTable) answered(number uint16) (*slot, uint16, error) {
	at := number - t.base
	if int(at) >= len(t.slots) || !t.slots[at].busy {
		return nil, 0, errSlot
	}
	t.slots[at].busy = false
	t.pending--
	return &t.slots[at], at, nil
}

// busy reports whether a command is unanswered.
func (t *slotTable) busy() bool { return t.pending > 0 }

// releaseHeld ends the use of the data in a slot's receive. It returns the
// receive to post, or false if the queue is disconnected and posts it later.
func (t *slotTable) releaseHeld(at uint16, connected bool) (receive uint32, ok bool) {
	sl := &t.slots[at]
	sl.held, sl.postDeferred = false, !connected
	return sl.receive, connected
}

// kept returns the receives that hold data.
func (t *slotTable) kept() (receives []uint32) {
	for i := range t.slots {
		if t.slots[i].held {
			receives = append(receives, t.slots[i].receive)
		}
	}
	return receives
}

// postDeferred posts the receives that were released while disconnected.
func (t *slotTable) postDeferred(c *carrier.Carrier) error {
	for i := range t.slots {
		sl := &t.slots[i]
		if !sl.postDeferred {
			continue
		}
		sl.postDeferred = false
		if err := c.Post(c.Receive(sl.receive)); err != nil {
			return err
		}
	}
	return nil
}
