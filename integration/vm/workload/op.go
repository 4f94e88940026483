package workload

import (
	"fmt"
	"strings"
)

// Kind is what an operation does.
type Kind uint8

// The operations. A region need not have all of them.
const (
	Read        Kind = iota // through the page cache
	ReadDirect              // past it
	ReadMapped              // as memory
	Write                   // to the page cache
	WriteDirect             // past it
	WriteMapped             // as memory
	Truncate                // to the size Offset
	Punch                   // make a hole, keeping the size
	Zero                    // make zeroes, keeping the size
	Collapse                // take a range out; what is behind moves up
	Insert                  // move what is behind Offset away by Length, with a hole between
	Allocate                // reserve, growing the file
	Discard                 // the content is as it was, or zeroes, sector by sector
	ZeroOut                 // BLKZEROOUT
	Sync                    // fsync
	DataSync                // fdatasync
	Reopen                  // close and open
	Forget                  // make durable and drop what is cached
	kinds
)

var kindNames = [kinds]string{
	"read", "read-direct", "read-mapped", "write", "write-direct", "write-mapped", "truncate", "punch", "zero",
	"collapse", "insert", "allocate", "discard", "zero-out", "sync", "data-sync", "reopen", "forget",
}

func (k Kind) String() string { return kindNames[k] }

// weights are how often kinds are chosen, in relation to each other.
var weights = [kinds]int{
	Read: 12, ReadDirect: 8, ReadMapped: 8, Write: 16, WriteDirect: 12, WriteMapped: 8, Truncate: 4, Punch: 4, Zero: 4,
	Collapse: 2, Insert: 2, Allocate: 2, Discard: 3, ZeroOut: 4, Sync: 2, DataSync: 2, Reopen: 1, Forget: 2,
}

// Op is an operation on a region. Offset and Length are in bytes.
type Op struct {
	Kind           Kind
	Offset, Length int64
}

func (o Op) String() string {
	switch o.Kind {
	case Sync, DataSync, Reopen, Forget:
		return o.Kind.String()
	case Truncate:
		return fmt.Sprintf("truncate to %#x", o.Offset)
	}
	return fmt.Sprintf("%s %#x to %#x (%#x)", o.Kind, o.Offset, o.Offset+o.Length, o.Length)
}

// touches reports whether an operation has to do with a byte, or may have moved
// it.
func (o Op) touches(at int64) bool {
	switch o.Kind {
	case Sync, DataSync, Reopen, Forget:
		return false
	case Truncate, Collapse, Insert:
		return at >= o.Offset
	}
	return at >= o.Offset && at < o.Offset+o.Length
}

// history is what was done.
type history []Op

// historyLimit is how much of the end is told.
const historyLimit = 400

// tell returns the end of the history. Operations that may explain a byte are
// marked.
func (h history) tell(at int64) string {
	var b strings.Builder
	for i := max(0, len(h)-historyLimit); i < len(h); i++ {
		mark := "   "
		if h[i].touches(at) {
			mark = "***"
		}
		fmt.Fprintf(&b, "%s %5d %v\n", mark, i, h[i])
	}
	return b.String()
}
