package transfer

import (
	"fmt"
	"strings"

	"github.com/viablk/viablk/internal/block"
)

// Error is a request that failed.
type Error struct {
	Side   string // name of the disk
	Op     block.Op
	Offset int64
	Length int64
	Err    error
}

// Error names the side, the operation and the offset once: some devices name
// them, too.
func (e *Error) Error() string {
	text := e.Err.Error()
	if strings.Contains(text, fmt.Sprintf("%v of %d bytes at %d", e.Op, e.Length, e.Offset)) {
		if strings.Contains(text, e.Side) {
			return text
		}
		return e.Side + ": " + text
	}
	if e.Op == block.Flush {
		return fmt.Sprintf("%s: flush: %s", e.Side, text)
	}
	return fmt.Sprintf("%s: %v of %d bytes at %d: %s", e.Side, e.Op, e.Length, e.Offset, text)
}

// Unwrap returns the error of the device.
func (e *Error) Unwrap() error { return e.Err }

// failed returns the error of a request of a side.
func failed(s Side, r *block.Request) error {
	return &Error{s.Name, r.Op, r.Offset, r.Length, r.Err}
}
