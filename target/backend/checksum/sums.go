package checksum

import (
	"fmt"
	"hash/crc32"
	"sync/atomic"
)

// None is the sum of a block of which nothing is known: any content is right.
const None = 0

// Sums are those of the blocks of a region, [None] at first. An element belongs
// to the holder of the range of its block.
type Sums [RegionBlocks]atomic.Uint32

// The encoding, little-endian: CRC-32C of the rest, of the ID of the file and
// of the number of the region, then a mark, then the sums. A page of zeroes
// stands for a region without sums.
const (
	sumsMagic = 'v' | 's'<<8 | 'u'<<16 | 'm'<<24

	atSumsMagic = 4
	atSums      = 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Of returns the sum of a block.
func Of(p []byte) uint32 {
	if sum := crc32.Checksum(p, castagnoli); sum != None {
		return sum
	}
	return 1
}

var zeroBlock [BlockSize]byte

// zeroSum is the sum of a whole block of zeroes.
var zeroSum = Of(zeroBlock[:])

// OfZeroes returns the sum of a block of n zeroes.
func OfZeroes(n int64) uint32 {
	if n == BlockSize {
		return zeroSum
	}
	return Of(zeroBlock[:n])
}

// pageSum returns the checksum of a page of sums.
func pageSum(b []byte, id [16]byte, region int64) uint32 {
	var place [24]byte
	copy(place[:], id[:])
	le.PutUint64(place[16:], uint64(region))
	return crc32.Update(crc32.Checksum(b[atSumsMagic:], castagnoli), castagnoli, place[:])
}

// Save writes the sums of a region to a file.
func (s *Sums) Save(f File, h *Header, region int64) error {
	var b [copySize]byte
	le.PutUint32(b[atSumsMagic:], sumsMagic)
	for i := range s {
		le.PutUint32(b[atSums+4*i:], s[i].Load())
	}
	le.PutUint32(b[:], pageSum(b[:], h.ID, region))
	if err := f.WriteAt(b[:], SumsAt(region)); err != nil {
		return fmt.Errorf("write checksums: %w", err)
	}
	return nil
}

// Load fills the sums of a region from a file. The error is [ErrDamaged] if the
// page is not whole; the sums are as they were then.
func (s *Sums) Load(f File, h *Header, region int64) error {
	var b [copySize]byte
	if err := f.ReadAt(b[:], SumsAt(region)); err != nil {
		return fmt.Errorf("read checksums: %w", err)
	}
	if b == [copySize]byte{} {
		return nil
	}
	if le.Uint32(b[atSumsMagic:]) != sumsMagic || le.Uint32(b[:]) != pageSum(b[:], h.ID, region) {
		return fmt.Errorf("%w: the checksum of a page of checksums is wrong", ErrDamaged)
	}
	for i := range s {
		s[i].Store(le.Uint32(b[atSums+4*i:]))
	}
	return nil
}
