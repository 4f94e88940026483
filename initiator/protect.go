package initiator

import (
	"fmt"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
)

// In a sealed session a capsule covers inline payload. RDMA transfers other
// payload in records that the keys of its command seal: the tags are in the
// sealed command or reply, and the command's header is authenticated with each.
// The target reaches the bounce pool alone, which holds ciphertext: a Write is
// sealed into it and a Read opened from it, in place of the copy. The plaintext
// stays where it is, for a reconnect seals it again with other keys.

// protection is how the payload of a slot's command is sealed.
type protection struct {
	payload seal.Payload
	header  [wire.HeaderSize]byte // of the command
}

// provideSealed returns how many bytes of a transfer the next command covers,
// and gets pool memory for the ciphertext, or returns 0 while that is
// exhausted.
func (p *payload) provideSealed(o *op, m *payloadMapping, only bool) int64 {
	r := o.request
	n := p.limits.cutAt(o, int64(p.limits.maxIO))
	if p.limits.fitsInline(r.Length) {
		return n
	}
	if r.Memory == reservedAny && !p.reserve(r) {
		return 0 // reserved when the target took more inside a message
	}
	if (only || n > p.poolBytes) && n > p.chunk {
		n = p.limits.cutAt(o, p.chunk)
	}
	buffer, ok := p.get(int(n))
	if !ok {
		p.waits++
		return 0
	}
	m.buffer = buffer
	return n
}

// exposeSealed decides how the payload of a command moves.
func (p *payload) exposeSealed(cmd *wire.Command, r *block.Request, m *payloadMapping) {
	switch {
	case p.limits.fitsInline(r.Length):
		cmd.Mode = wire.ModeInline
		if r.Op == block.Write {
			cmd.InlineLength = cmd.Length
		}
		return
	case r.Op == block.Read:
		cmd.Mode = wire.ModePlace
	default:
		cmd.Mode = wire.ModePull
	}
	cmd.NumSegments = m.segments(&cmd.Segments, cmd.Length)
}

// sealCommand encodes a command with its payload or tags, and stages it.
func (q *Queue) sealCommand(o *op, sl *slot, s *carrier.Send, cmd *wire.Command) error {
	n := cmd.Encode(s.Head)
	r := o.request
	switch {
	case cmd.InlineLength > 0:
		n += copy(s.Head[n:], r.Data[sl.off:][:cmd.InlineLength])
	case cmd.NumSegments > 0:
		p := sl.protection
		if err := q.carrier.Sealer().Payload(&p.payload, int(cmd.Length)); err != nil {
			return fmt.Errorf("seal payload: %w", err)
		}
		copy(p.header[:], s.Head)
		if cmd.Mode == wire.ModePlace {
			break
		}
		if err := p.payload.SealAll(sl.mapping.buffer.Data, r.Data[sl.off:][:cmd.Length], p.header[:], s.Head[n:]); err != nil {
			return fmt.Errorf("seal payload: %w", err)
		}
		n += seal.TagsSize(cmd.Length)
		q.carrier.CountSealed(int(cmd.Length))
	}
	q.poster.staged = true
	if err := q.carrier.StageMessage(s, n, carrier.Span{}); err != nil {
		return fmt.Errorf("stage command: %w", err)
	}
	return nil
}

// openReply opens the payload of a Read, if RDMA brought it.
func (q *Queue) openReply(r *block.Request, sl *slot, tags []byte) error {
	n := uint32(0)
	if r.Op == block.Read && sl.mode == wire.ModePlace {
		n = sl.length
	}
	if err := seal.CheckTags(tags, n); err != nil || n == 0 {
		return err
	}
	p := sl.protection
	if err := p.payload.OpenAll(r.Data[sl.off:][:n], sl.mapping.buffer.Data[:n], p.header[:], tags); err != nil {
		q.carrier.CountForged()
		return fmt.Errorf("open payload of a read: %w", err)
	}
	q.carrier.CountSealed(int(n))
	return nil
}
