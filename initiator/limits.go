package initiator

import (
	"errors"
	"fmt"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
)

// limits are what the target takes in one command, and how a request is cut.
type limits struct {
	inline uint32 // bytes of payload that go inside a message
	maxIO  uint32 // bytes of one command
	block  int64  // commands of one request end on multiples of it

	immediates bool // answer commands that succeed without data in the message
	digest     bool // travels with payload
}

// newLimits takes the limits from a login response, for a disk with blocks of
// minimum bytes.
func newLimits(a *wire.LoginResponse, minimum uint32) (limits, error) {
	// A command ends on a block; an inline payload is one command.
	l := limits{maxIO: a.MaxIO &^ (max(minimum, 1) - 1), block: max(int64(minimum), block.AtomicUnit)}
	l.immediates, l.digest = a.Features&wire.FeatureImmediate != 0, a.Digest != wire.DigestNone
	l.inline = min(a.InlineMax, l.maxIO)
	if l.maxIO < 4096 {
		return l, fmt.Errorf("the target takes %d bytes a command, for blocks of %d", a.MaxIO, minimum)
	}
	if a.DataModes&wire.ModesPull == 0 {
		return l, errors.New("the target can not read by rdma; writes above the inline maximum need it")
	}
	return l, nil
}

func (l *limits) fitsInline(n int64) bool { return n <= int64(l.inline) }

// cutAt returns how many of the next n bytes of a request one command covers. A
// command that is not the last ends between two blocks of the disk and of
// [block.AtomicUnit]: no block is in two commands, which the target executes in
// any order. n is at least one block.
func (l *limits) cutAt(o *op, n int64) int64 {
	at := o.request.Offset + o.cut
	if n >= o.end-o.cut {
		return o.end - o.cut
	}
	return (at+n)&^(l.block-1) - at
}
