package nbdclient

import (
	"encoding/binary"

	"github.com/viablk/viablk/internal/block"
)

// slotState is how far a slot's piece has got.
type slotState uint8

const (
	slotFree    slotState = iota
	slotWaiting           // for its range
	slotPending           // to be sent
	slotSending           // its message has begun to leave
	slotSent              // its message has left
)

// slot is a request in flight. It travels in pieces, one after another, of what
// the server takes at a time; the fields behind r are those of the piece. A
// piece of a request that touches data holds its range until it is answered:
// servers need not keep requests apart that overlap, and a read that a
// reconnect resends counts once.
type slot struct {
	r         *block.Request
	base, end int64 // of the request's bytes
	state     slotState
	answered  bool // before its message had left
	slowZero  bool // FAST_ZERO was refused when bytes before these were zeroed

	cookie  uint64
	chunks  int   // of the reply so far
	err     error // of an error chunk
	cover   coverage
	covered uint64 // flush: writes answered before it was sent
}

// offset returns where the piece is on the disk.
func (s *slot) offset() int64 { return s.r.Offset + s.base }

// length returns the bytes of the piece.
func (s *slot) length() int64 { return s.end - s.base }

// data returns the memory of the piece.
func (s *slot) data() []byte { return s.r.Data[s.base:s.end] }

// changes reports whether the slot has a request that changes what is stored.
func (s *slot) changes() bool {
	return s.r != nil && (s.r.Op == block.Write || s.r.Op == block.Trim || s.r.Op == block.WriteZeroes)
}

// unanswered forgets what the reply brought so far.
func (s *slot) unanswered() {
	s.answered, s.chunks, s.err = false, 0, nil
	s.cover.reset()
	if s.r.Op == block.Status {
		s.r.Extents = s.r.Extents[:0]
	}
}

// command returns the command of the slot, and its flags.
func (s *slot) command(extended bool) (command, flags uint16) {
	if s.changes() && s.r.Flags&block.FUA != 0 {
		flags = flagFUA
	}
	switch s.r.Op {
	case block.Write:
		if extended {
			flags |= flagPayloadLen
		}
		return cmdWrite, flags
	case block.Flush:
		return cmdFlush, 0
	case block.Trim:
		return cmdTrim, flags
	case block.WriteZeroes:
		if s.r.Flags&block.NoHole != 0 {
			flags |= flagNoHole
		}
		if s.r.Flags&block.FastZero != 0 && !s.slowZero {
			flags |= flagFastZero
		}
		return cmdWriteZeroes, flags
	case block.Status:
		return cmdBlockStatus, 0
	case block.Prefetch:
		return cmdCache, 0
	}
	return cmdRead, 0
}

// appendRequest appends the header of the slot's message.
func (s *slot) appendRequest(b []byte, extended bool) []byte {
	command, flags := s.command(extended)
	return appendHeader(b, extended, flags, command, s.cookie, uint64(s.offset()), uint64(s.length()))
}

// appendHeader appends the header of a message.
func appendHeader(b []byte, extended bool, flags, command uint16, cookie, offset, length uint64) []byte {
	if extended {
		b = binary.BigEndian.AppendUint32(b, magicExtendedRequest)
	} else {
		b = binary.BigEndian.AppendUint32(b, magicRequest)
	}
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint16(b, command)
	b = binary.BigEndian.AppendUint64(b, cookie)
	b = binary.BigEndian.AppendUint64(b, offset)
	if extended {
		return binary.BigEndian.AppendUint64(b, length)
	}
	return binary.BigEndian.AppendUint32(b, uint32(length))
}
