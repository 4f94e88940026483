package target

import (
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
)

// extentBytes returns how long the answer to a block-status may be.
func (c *conn) extentBytes() uint32 {
	return min(c.inline, c.maxIO, wire.MaxExtentBytes) &^ (wire.ExtentSize - 1)
}

// prepareStatus gives the backend memory for as many extents as fit the answer.
func (c *conn) prepareStatus(r *request) {
	if r.extents == nil {
		r.extents = make([]block.Extent, 0, c.extentBytes()/wire.ExtentSize)
	}
	r.block.Extents = r.extents[:0]
}

// encodeExtents puts what the backend told into the request's memory.
func (r *request) encodeExtents() wire.Status {
	if len(r.block.Extents) == 0 {
		return wire.StatusIO // a broken backend: no answer says nothing
	}
	for i, e := range r.block.Extents {
		// The flags have the same numbers, and a length is at most the command's.
		x := wire.Extent{Length: uint32(e.Length), Flags: uint32(e.Flags)}
		x.Encode(r.memory.Data[i*wire.ExtentSize:])
	}
	r.extentBytes = uint32(len(r.block.Extents) * wire.ExtentSize)
	return wire.StatusOK
}
