package nbd

import (
	"encoding/binary"

	"github.com/viablk/viablk/internal/block"
)

// Bounds of what one connection has under way of BLOCK_STATUS. A reply may stop
// before the end of the range: clients ask on from there.
const (
	statusesAtOnce = 8
	extentsAtOnce  = 1024
)

// status is the memory of one BLOCK_STATUS.
type status struct {
	extents [extentsAtOnce]block.Extent
	aligned [extentsAtOnce]block.Extent
	body    [8 + 16*extentsAtOnce]byte // of the reply
}

// statuses is the memory of a connection for BLOCK_STATUS. It is allocated when it
// is first needed, and then kept.
type statuses struct {
	free []*status
	made int
}

// lend gives a BLOCK_STATUS its memory, or reports that all is in use.
func (x *statuses) lend(s *slot) bool {
	if s.status == nil {
		last := len(x.free) - 1
		switch {
		case last >= 0:
			s.status = x.free[last]
			x.free = x.free[:last]
		case x.made < statusesAtOnce:
			x.made++
			s.status = new(status)
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

// takeBack undoes lend, if there was one.
func (x *statuses) takeBack(s *slot) {
	if s.status != nil {
		x.free = append(x.free, s.status)
		s.status = nil
		s.req.Extents = nil
	}
}

// replyStatus builds the reply to a BLOCK_STATUS: one chunk for the one context.
func (t *transmission) replyStatus(s *slot) {
	extents := s.req.Extents
	if least := int64(t.info.MinimumBlock); least > 1 {
		extents = block.AlignExtents(s.status.aligned[:0], extents, least)
	}
	b := s.status.body[:]
	binary.BigEndian.PutUint32(b, contextID)
	kind, n := chunkBlockStatus, 4
	if t.terms.dialect == extended {
		kind = chunkBlockStatusExt
		binary.BigEndian.PutUint32(b[n:], uint32(len(extents)))
		n += 4
	}
	for _, e := range extents {
		if t.terms.dialect == extended {
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
	head := t.terms.dialect.putChunk(s.reply[:], chunkFlagDone, kind, &s.header, n)
	t.out.push(s.reply[:head], nil)
	t.out.push(b[:n], s)
}
