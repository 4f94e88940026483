package checksum

import (
	"encoding/binary"
	"fmt"
)

const (
	// BlockSize is the unit of the sums, in bytes.
	BlockSize = 4096

	// RegionBlocks are the blocks whose sums are in one page.
	RegionBlocks = (copySize - atSums) / 4

	// RegionSize is the unit of the intent, in bytes.
	RegionSize = RegionBlocks * BlockSize

	copySize = 4096 // bytes of a page, and of a copy of the header

	// groupRegions are the regions of a page of the intent.
	groupRegions = groupWords * 64
	groupWords   = (copySize - atBits) / 8
	groupPages   = 2 + groupRegions

	sizeLimit = 1 << 46 // bytes of a disk
)

// CheckSize returns an error if there are no sums for disks of size bytes.
func CheckSize(size int64) error {
	if size <= 0 || size%512 != 0 || size > sizeLimit {
		return fmt.Errorf("a disk of %d bytes: checksums are for multiples of 512 up to %d TiB", size, sizeLimit>>40)
	}
	return nil
}

// Regions returns how many regions a disk of size bytes has.
func Regions(size int64) int64 { return (size + RegionSize - 1) / RegionSize }

// End returns the size of the file for a disk of size bytes.
func End(size int64) int64 { return SumsAt(Regions(size)-1) + copySize }

// SumsAt returns where the sums of a region are in the file.
func SumsAt(region int64) int64 {
	group := region / groupRegions
	return intentAt(group) + (2+region%groupRegions)*copySize
}

// intentAt returns where the first copy of the intent of a group is.
func intentAt(group int64) int64 { return 2*copySize + group*groupPages*copySize }

// Pages calls visit with the parts of the file that a mark of a region and its
// sums need.
func Pages(region int64, visit func(off, length int64) error) error {
	if err := visit(intentAt(region/groupRegions), 2*copySize); err != nil {
		return err
	}
	return visit(SumsAt(region), copySize)
}

// File is an open file of checksums.
type File interface {
	// ReadAt fills p from off, WriteAt stores p there. Neither makes anything
	// durable.
	ReadAt(p []byte, off int64) error
	WriteAt(p []byte, off int64) error
}

var le = binary.LittleEndian
