package target

import (
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
)

// prepareStatus gives the backend memory for as many extents as fit the answer.
func (x *executor) prepareStatus(r *request) {
	if r.extents == nil {
		r.extents = make([]block.Extent, 0, x.extentBytes/wire.ExtentSize)
	}
	r.block.Extents = r.extents[:0]
}

// encodeExtents encodes the backend's extents into the request's memory.
func (r *request) encodeExtents() wire.Status {
	if len(r.block.Extents) == 0 {
		return wire.StatusIO // a broken backend: a success has an extent
	}
	for i, e := range r.block.Extents {
		// The flags have the same numbers, and a length is at most the
		// command's.
		x := wire.Extent{Length: uint32(e.Length), Flags: uint32(e.Flags)}
		x.Encode(r.memory.Data[i*wire.ExtentSize:])
	}
	r.extentBytes = uint32(len(r.block.Extents) * wire.ExtentSize)
	return wire.StatusOK
}
