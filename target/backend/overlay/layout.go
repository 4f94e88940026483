package overlay

import "fmt"

const (
	// BlockSize is the unit of the map, in bytes.
	BlockSize  = 1 << blockShift
	blockShift = 12

	copySize = 4096 // bytes of a copy, of the header or a page of the map

	// pageBlocks are the blocks of a page of the map.
	pageBlocks = pageWords * 64
	pageWords  = (copySize - atBits) / 8

	// sizeLimit bounds a disk, in bytes: the map of a full one takes 4 GiB.
	sizeLimit = 1 << 46
)

// CheckSize returns an error if no overlay has disks of size bytes.
func CheckSize(size int64) error {
	if size <= 0 || size%512 != 0 || size > sizeLimit {
		return fmt.Errorf("a disk of %d bytes: overlays have multiples of 512 up to %d TiB", size, sizeLimit>>40)
	}
	return nil
}

// Layout is where the parts of an overlay are, in bytes.
type Layout struct {
	Blocks   int64 // of the disk
	Map      int64 // where the map begins
	Answered int64 // where the bytes of answered blocks begin
	End      int64 // size of the file
	header   int64
}

// LayoutOf returns the layout of the overlay of a disk of size bytes.
func LayoutOf(size int64) Layout {
	l := Layout{Blocks: (size + BlockSize - 1) / BlockSize}
	pages := (l.Blocks + pageBlocks - 1) / pageBlocks
	l.Map = l.Blocks * BlockSize
	l.Answered = l.Map + pages*2*copySize
	l.header = l.Answered + (l.Blocks+copySize-1)&^(copySize-1)
	l.End = l.header + 2*copySize
	return l
}

// Pages returns the part of the map for the blocks from first to last.
func (l *Layout) Pages(first, last int64) (off, length int64) {
	a, b := first/pageBlocks, last/pageBlocks
	return l.Map + a*2*copySize, (b - a + 1) * 2 * copySize
}

// BlocksOf returns the blocks of n > 0 bytes at off.
func BlocksOf(off, n int64) (first, last int64) {
	return off >> blockShift, (off + n - 1) >> blockShift
}
