package target

import (
	"fmt"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
)

// What the completion of a send means to its owner.
const (
	stepControl = iota // a control message or immediate: the send is free
	stepRequest        // a part of request User
)

// answer places a Read's data and answers the request. Success without inline
// data is four bytes of immediate; everything else is a reply capsule. It returns
// false while there are not enough sends.
func (c *conn) answer(r *request) bool {
	cmd := &r.command
	if r.status == wire.StatusOK && cmd.Mode == wire.ModeWindow {
		return c.answerWindow(r)
	}
	if c.carrier.FreeSends() < 1 {
		c.stats.WaitsForSends++
		return false
	}
	r.state = answering
	s := c.takeSend(r)
	data := cmd.Mode == wire.ModeInline && cmd.Opcode != wire.OpWrite // in the reply
	if r.status == wire.StatusOK && !data && c.features&wire.FeatureImmediate != 0 {
		c.staged(c.carrier.StageImmediate(s, uint32(wire.MakeImmediate(wire.ImmOK, c.epoch, r.seq, r.slot))))
		return true
	}
	c.reply(r, s)
	return true
}

// answerWindow writes a Read's data into the initiator's windows; the last write
// carries the answer, or a reply follows where immediates were not negotiated.
func (c *conn) answerWindow(r *request) bool {
	n := int(r.command.NumSegments)
	immediate := c.features&wire.FeatureImmediate != 0
	need := n
	if !immediate {
		need++
	}
	if c.carrier.FreeSends() < need {
		c.stats.WaitsForSends++
		return false
	}
	r.state = answering
	off := uint32(0)
	for i, w := range r.command.Segments[:n] {
		s := c.takeSend(r)
		local := r.span(off, w.Length)
		if immediate && i == n-1 {
			c.staged(c.carrier.StageWriteImmediate(s, local, w.Addr, w.Handle,
				uint32(wire.MakeImmediate(wire.ImmOKData, c.epoch, r.seq, r.slot))))
		} else {
			c.staged(c.carrier.StageWrite(s, local, w.Addr, w.Handle))
		}
		off += w.Length
	}
	if !immediate {
		c.reply(r, c.takeSend(r))
	}
	c.stats.BytesPlaced += uint64(r.command.Length)
	if r.command.Length >= promptBytes {
		c.carrier.Doorbell()
	}
	return true
}

// promptBytes is from which size on a Read is announced at once and not with the
// batch: its peer may copy this part of a request while the next is placed.
const promptBytes = 16 << 10

// reply stages a reply capsule, with a Read's data behind it if that goes inline, or
// the extents of a block-status.
func (c *conn) reply(r *request, s *carrier.Send) {
	reply := wire.Reply{Status: r.status, Slot: r.slot, Seq: r.seq, PathEpoch: c.epoch}
	if r.handle != nil {
		reply.Verifier = r.handle.opened.export.verifier
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
	n := reply.Encode(s.Head)
	c.staged(c.carrier.StageMessage(s, n, payload))
}

// takeSend takes a send for a part of the request's answer.
func (c *conn) takeSend(r *request) *carrier.Send {
	s := c.carrier.TakeSend()
	s.User, s.Step = uint32(r.slot-c.base), stepRequest
	r.pending++
	return s
}

func (c *conn) staged(err error) {
	if err != nil {
		c.fail(fmt.Errorf("stage answer: %w", err))
	}
}

// answerBeat answers a heartbeat, now or when a send is free. One that waits
// stands for all.
func (c *conn) answerBeat() {
	if !c.owesBeat {
		return
	}
	s := c.carrier.TakeSend()
	if s == nil {
		return
	}
	c.owesBeat = false
	s.Step = stepControl
	c.staged(c.carrier.StageImmediate(s, uint32(wire.MakeImmediate(wire.ImmHeartbeatAck, c.epoch, 0, 0))))
}

// sent handles the completion of a send: when the last part of a pull is there
// the request goes to the backend, when the last part of the answer is out the
// slot is free.
func (c *conn) sent(s *carrier.Send) {
	c.carrier.FreeSend(s)
	if s.Step != stepRequest {
		return
	}
	r := &c.requests[s.User]
	r.pending--
	if r.pending > 0 {
		return
	}
	if r.state == pulling {
		if r.holds {
			c.letGo(r)
			c.settle(r, wire.StatusOK)
		} else {
			c.submit(r)
		}
		return
	}
	c.answered(r)
	c.releaseMemory(r)
	r.state = free
	c.busy--
	if h := r.handle; h != nil {
		r.handle = nil
		if h.busy--; h.busy == 0 && h.opened.closed.Load() {
			c.drop(h)
		}
	}
	if r.stashed {
		r.stashed = false
		c.command(c.carrier.Receive(r.next), r.nextLen)
	}
}
