package nbd

import (
	"encoding/binary"

	"github.com/viablk/viablk/internal/block"
)

// Bounds of what one connection has in flight of BLOCK_STATUS. A reply may stop
// before the end of the range: clients ask on from there.
const (
	maximumStatuses = 8
	maximumExtents  = 1024
)

// statusBuffer is the memory of one BLOCK_STATUS.
type statusBuffer struct {
	extents [maximumExtents]block.Extent
	aligned [maximumExtents]block.Extent
	body    [8 + 16*maximumExtents]byte // of the reply
}

// statusPool is the memory of a connection for BLOCK_STATUS. It is allocated
// when it is first needed, and then kept.
type statusPool struct {
	free []*statusBuffer
	made int
}

// acquire gives a BLOCK_STATUS its memory, or reports that all is in use.
func (x *statusPool) acquire(s *entry) bool {
	if s.status == nil {
		last := len(x.free) - 1
		switch {
		case last >= 0:
			s.status = x.free[last]
			x.free = x.free[:last]
		case x.made < maximumStatuses:
			x.made++
			s.status = new(statusBuffer)
		default:
			return false
		}
	}
	s.req.Extents = s.status.extents[:0]
	if s.header.flags&cmdFlagReqOne != 0 {
		s.req.Extents = s.status.extents[:0:1]
	}
	return true
}

// release undoes acquire, if there was one.
func (x *statusPool) release(s *entry) {
	if s.status != nil {
		x.free = append(x.free, s.status)
		s.status = nil
		s.req.Extents = nil
	}
}

// replyStatus builds the reply to a BLOCK_STATUS: one chunk for the one
// context.
func (t *transmission) replyStatus(s *entry) {
	extents := s.req.Extents
	if least := int64(t.info.MinimumBlock); least > 1 {
		extents = block.AlignExtents(s.status.aligned[:0], extents, least)
	}
	b := s.status.body[:]
	binary.BigEndian.PutUint32(b, contextID)
	kind, n := chunkBlockStatus, 4
	if t.terms.replyMode == extended {
		kind = chunkBlockStatusExt
		binary.BigEndian.PutUint32(b[n:], uint32(len(extents)))
		n += 4
	}
	for _, e := range extents {
		if t.terms.replyMode == extended {
			binary.BigEndian.PutUint64(b[n:], uint64(e.Length))
			binary.BigEndian.PutUint64(b[n+8:], uint64(e.Flags))
			n += 16
			continue
		}
		// The range has a length of 32 bits, so its extents have.
		binary.BigEndian.PutUint32(b[n:], uint32(e.Length))
		binary.BigEndian.PutUint32(b[n+4:], uint32(e.Flags))
		n += 8
	}
	head := t.terms.replyMode.putChunk(s.reply[:], chunkFlagDone, kind, &s.header, n)
	t.out.push(s.reply[:head], nil)
	t.out.push(b[:n], s)
}
