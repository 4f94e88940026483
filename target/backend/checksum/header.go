package checksum

import (
	"errors"
	"fmt"
	"hash/crc32"
)

// Header says whose checksums a file has.
type Header struct {
	ID   [16]byte // of this file, random
	Size int64    // of the disk, in bytes

	// Disk is the identity of the disk, zero if it has none that lasts, and
	// Generation that of its last writer who wrote with these sums.
	Disk       [16]byte
	Generation uint64

	Opens uint64 // times it was opened for writing

	// Scrubbed is when the last scrub of the whole disk ended, in seconds since
	// 1970, 0 if there was none. It found Corrupt blocks that are not what was
	// written, and Unreadable ones.
	Scrubbed            int64
	Corrupt, Unreadable uint64

	sequence uint64 // advances with each stored header
}

// Errors of files that cannot be used. Nothing overwrites them.
var (
	ErrNone    = errors.New("it has no checksums of viablk, or was truncated")
	ErrDamaged = errors.New("the checksums are damaged")
	ErrVersion = errors.New("a newer viablk made the checksums")
)

// The encoding, little-endian: fixed fields, zeroes, and CRC-32C of all before
// it.
const (
	magic   = "viablkcs"
	version = 1

	atVersion    = 8
	atBlockSize  = 12
	atRegion     = 16 // blocks of a region
	atSequence   = 24
	atID         = 32
	atDisk       = 48
	atSize       = 64
	atGeneration = 72
	atOpens      = 80
	atScrubbed   = 88
	atCorrupt    = 96
	atUnreadable = 104
	atFieldsEnd  = 112
	atSum        = copySize - 4
)

// encode returns the bytes of a header.
func (h *Header) encode() []byte {
	b := make([]byte, copySize)
	copy(b, magic)
	le.PutUint32(b[atVersion:], version)
	le.PutUint32(b[atBlockSize:], BlockSize)
	le.PutUint32(b[atRegion:], RegionBlocks)
	le.PutUint64(b[atSequence:], h.sequence)
	copy(b[atID:], h.ID[:])
	copy(b[atDisk:], h.Disk[:])
	le.PutUint64(b[atSize:], uint64(h.Size))
	le.PutUint64(b[atGeneration:], h.Generation)
	le.PutUint64(b[atOpens:], h.Opens)
	le.PutUint64(b[atScrubbed:], uint64(h.Scrubbed))
	le.PutUint64(b[atCorrupt:], h.Corrupt)
	le.PutUint64(b[atUnreadable:], h.Unreadable)
	le.PutUint32(b[atSum:], crc32.Checksum(b[:atSum], castagnoli))
	return b
}

// decode returns the header in one of its copies.
func decode(b []byte) (h Header, err error) {
	switch {
	case string(b[:atVersion]) != magic:
		return h, ErrNone
	case le.Uint32(b[atVersion:]) > version:
		return h, fmt.Errorf("%w: its format is version %d, and this viablk knows %d", ErrVersion, le.Uint32(b[atVersion:]), version)
	case le.Uint32(b[atSum:]) != crc32.Checksum(b[:atSum], castagnoli):
		return h, fmt.Errorf("%w: the checksum of its header is wrong", ErrDamaged)
	}
	h = Header{
		ID: [16]byte(b[atID:]), Disk: [16]byte(b[atDisk:]), Size: int64(le.Uint64(b[atSize:])),
		Generation: le.Uint64(b[atGeneration:]), Opens: le.Uint64(b[atOpens:]), sequence: le.Uint64(b[atSequence:]),
		Scrubbed: int64(le.Uint64(b[atScrubbed:])), Corrupt: le.Uint64(b[atCorrupt:]), Unreadable: le.Uint64(b[atUnreadable:]),
	}
	if le.Uint32(b[atVersion:]) == 0 || le.Uint32(b[atBlockSize:]) != BlockSize || le.Uint32(b[atRegion:]) != RegionBlocks {
		return h, fmt.Errorf("%w: its header has values that no viablk writes", ErrDamaged)
	}
	if err := CheckSize(h.Size); err != nil {
		return h, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return h, nil
}

// ReadHeader returns the header of a file of length bytes: the newest of its
// copies, of which a crash damages one at most.
func ReadHeader(f File, length int64) (*Header, error) {
	if length < 2*copySize {
		return nil, ErrNone
	}
	b := make([]byte, 2*copySize)
	if err := f.ReadAt(b, 0); err != nil {
		return nil, fmt.Errorf("read the header: %w", err)
	}
	h, err := decode(b[:copySize])
	other, e := decode(b[copySize:])
	switch {
	case errors.Is(err, ErrVersion) || errors.Is(e, ErrVersion):
		return nil, errors.Join(err, e)
	case e == nil && (err != nil || other.sequence > h.sequence):
		h, err = other, nil
	case errors.Is(err, ErrNone):
		err = e // of a file without checksums both say so
	}
	if err != nil {
		return nil, err
	}
	if end := End(h.Size); length < end {
		return nil, fmt.Errorf("%w: the file has %d bytes instead of %d", ErrDamaged, length, end)
	}
	return &h, nil
}

// Store writes the header over the older copy. The caller makes one durable
// before it stores the next.
func (h *Header) Store(f File) error {
	h.sequence++
	if err := f.WriteAt(h.encode(), int64(h.sequence%2)*copySize); err != nil {
		h.sequence--
		return fmt.Errorf("write the header: %w", err)
	}
	return nil
}
