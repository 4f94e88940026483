package initiator

import (
	"errors"
	"fmt"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
)

// In a sealed session payload inside messages is sealed with them. Payload that
// RDMA moves is sealed by itself, in records, with keys of its command: the
// tags are in the sealed command or reply, and what is authenticated besides is
// the command's header. The target reaches the bounce pool alone, which holds
// ciphertext: a Write is sealed into it and a Read opened from it, in place of
// the copy. The plaintext stays where it is, for a reconnect seals it again
// with other keys.

// protection is how the payload of a slot's command is sealed.
type protection struct {
	payload seal.Payload
	header  [wire.HeaderSize]byte // of the command
}

// maxSealedIO bounds the commands of sealed sessions, in bytes: their tags go
// in a message.
const maxSealedIO = 32 << 20

var errTags = errors.New("other tags than the payload has records")

// tagBytes returns how long the tags of n bytes are.
func tagBytes(n uint32) int { return seal.Records(int(n)) * seal.TagSize }

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
		if err := p.seal(sl.mapping.buffer.Data, r.Data[sl.off:][:cmd.Length], s.Head[n:]); err != nil {
			return fmt.Errorf("seal payload: %w", err)
		}
		n += tagBytes(cmd.Length)
		q.carrier.CountSealed(int(cmd.Length))
	}
	q.poster.staged = true
	if err := q.carrier.StageMessage(s, n, carrier.Span{}); err != nil {
		return fmt.Errorf("stage command: %w", err)
	}
	return nil
}

// seal seals src into dst, which the target can reach.
func (p *protection) seal(dst, src, tags []byte) error {
	for i := 0; len(src) > 0; i++ {
		n := min(len(src), seal.RecordSize)
		if err := p.payload.Seal(dst[:n], src[:n], i, p.header[:], (*[seal.TagSize]byte)(tags)); err != nil {
			return err
		}
		dst, src, tags = dst[n:], src[n:], tags[seal.TagSize:]
	}
	return nil
}

// open opens src, which the target can reach, into dst.
func (p *protection) open(dst, src, tags []byte) error {
	for i := 0; len(dst) > 0; i++ {
		n := min(len(dst), seal.RecordSize)
		if err := p.payload.Open(dst[:n], src[:n], i, p.header[:], (*[seal.TagSize]byte)(tags)); err != nil {
			return err
		}
		dst, src, tags = dst[n:], src[n:], tags[seal.TagSize:]
	}
	return nil
}

// openReply opens the payload of a Read, if RDMA brought it.
func (q *Queue) openReply(r *block.Request, sl *slot, tags []byte) error {
	if r.Op != block.Read || sl.mode != wire.ModePlace {
		if len(tags) != 0 {
			return errTags
		}
		return nil
	}
	if len(tags) != tagBytes(sl.length) {
		return errTags
	}
	if err := sl.protection.open(r.Data[sl.off:][:sl.length], sl.mapping.buffer.Data, tags); err != nil {
		q.carrier.CountForged()
		return fmt.Errorf("open payload of a read: %w", err)
	}
	q.carrier.CountSealed(int(sl.length))
	return nil
}
