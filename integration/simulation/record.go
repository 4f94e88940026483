package simulation

import (
	"math"
	"time"
)

// never is the end of a write without an answer.
const never = time.Duration(math.MaxInt64)

// access is a read or a write of one block.
type access struct {
	tag      Tag // that was read or written
	write    bool
	trim     bool // the content is undefined: a disk may forget it
	promised bool // durable by an answered flush, or by FUA
	durable  bool // the disk has flushed it
	dropped  bool // no flush will make it durable
	lost     bool // has no answer: it took effect before its end, or never
	device   *deviceRecord
	began    time.Duration
	ended    time.Duration
}

// blockRecord is what happened to a block since the last reboot, and before it
// what may still take effect.
type blockRecord struct {
	initial  Tag
	accesses []*access
}

// before reports whether an access ended before another began.
func (a *access) before(b *access) bool { return a.ended < b.began }
