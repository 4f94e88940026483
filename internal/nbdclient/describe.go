package nbdclient

import (
	"fmt"
	"math/bits"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd"
)

// pieces are how much of a request the server gets at a time, in bytes: a
// multiple of its blocks and of the units that stay whole.
type pieces struct {
	unit    int64
	payload int64 // of reads and writes
}

// Bounds of pieces, in bytes.
const (
	// commonPayload is what every server takes that does not say how much.
	commonPayload = 32 << 20

	// longestRange bounds a piece without payload, which holds its range.
	longestRange = 256 << 20

	// longestStatus bounds what a status asks about: compact requests have
	// lengths of 32 bits.
	longestStatus = 1 << 30
)

// length returns how much of a request the piece has that begins after base
// bytes.
func (p *pieces) length(r *block.Request, base int64) int64 {
	limit := p.payload
	switch r.Op {
	case block.Flush:
		return 0
	case block.Trim, block.WriteZeroes:
		limit = longestRange
	case block.Status:
		limit = longestStatus
	}
	rest := r.Length - base
	if rest <= limit {
		return rest
	}
	off := r.Offset + base
	return (off+limit)&^(p.unit-1) - off
}

// describe returns what the device is like that an export is, or an error if no
// disk is like that.
func describe(o *nbd.Opened, readOnly bool) (block.Info, pieces, error) {
	least, most := int64(o.BlockMinimum), int64(o.BlockMaximum)
	if least == 0 { // not told
		least, most = 512, commonPayload
		if o.Size%least != 0 {
			least = 1
		}
	}
	p := pieces{unit: max(least, block.AtomicUnit)}
	p.payload = min(most, block.PayloadLimit) &^ (p.unit - 1)
	switch {
	case o.Size == 0:
		return block.Info{}, p, fmt.Errorf("the export is empty")
	case least&(least-1) != 0 || least > 64<<10:
		return block.Info{}, p, fmt.Errorf("the server has blocks of %d bytes, which is not a power of two up to 65536", least)
	case o.Size%least != 0:
		return block.Info{}, p, fmt.Errorf("the export has %d bytes, which are not whole blocks of %d", o.Size, least)
	case p.payload == 0:
		return block.Info{}, p, fmt.Errorf("the server takes %d bytes at a time, and a disk has units of %d", most, p.unit)
	}
	i := block.Info{
		Size: o.Size, MinimumBlock: uint32(least), PreferredBlock: preferred(o.BlockPreferred, uint32(p.unit)),
		MaximumPayload: block.PayloadLimit,
	}
	for _, f := range []struct {
		has     bool
		feature block.Features
	}{
		{o.CanFlush, block.CanFlush},
		{o.CanFUA, block.CanFUA},
		{o.CanTrim, block.CanTrim},
		{o.CanZero, block.CanWriteZeroes},
		{o.CanZero && o.CanFastZero, block.CanFastZero},
		{true, block.CanMultiConn}, // of the server, or by a connection that all queues share
		{o.ReadOnly || readOnly, block.ReadOnly},
		{o.Rotational, block.Rotational},
		{o.HasContext, block.CanStatus},
		{o.CanCache, block.CanPrefetch},
	} {
		if f.has {
			i.Features |= f.feature
		}
	}
	if i.Features&block.ReadOnly != 0 {
		i.Features &^= block.CanTrim | block.CanWriteZeroes | block.CanFastZero
	}
	return i, p, nil
}

// preferred returns the block size that a device prefers whose server says so,
// and has units of unit bytes.
func preferred(told, unit uint32) uint32 {
	if bits.OnesCount32(told) != 1 || told < max(unit, 512) || told > block.PayloadLimit {
		return unit
	}
	return told
}
