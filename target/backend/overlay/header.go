package overlay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"
)

// Header says whose overlay a file is.
type Header struct {
	ID   [16]byte // of this file, random
	Size int64    // of the disk, in bytes

	Base   Base
	Parent Parent // the snapshot under the overlay; zero if there is none

	Created time.Time
	Frozen  time.Time // when the overlay became a snapshot; zero if it is none

	Opens uint64 // times it was opened for writing
	Clean bool   // closed since it was opened for writing

	// Boot is the start of the machine for which the bytes of answered blocks
	// hold.
	Boot [16]byte

	sequence uint64 // advances with each stored header
}

// Base is the disk under all overlays of a disk. It never changes.
type Base struct {
	Path     string   // where it was, for messages
	UUID     [16]byte // its identity, read-only
	Modified int64    // ns since 1970; 0 of a block device
}

// Parent is a snapshot as it was when it became one.
type Parent struct {
	Name  string // of the file, in the folder of the overlay
	ID    [16]byte
	Opens uint64
}

// Errors of files that cannot be used as overlays. Nothing overwrites them.
var (
	ErrNone    = errors.New("it is no overlay, or was truncated")
	ErrDamaged = errors.New("the overlay is damaged")
	ErrVersion = errors.New("a newer viablk made the overlay")
)

// The encoding, little-endian: fixed fields, two strings, zeroes, and CRC-32C
// of all before it.
const (
	magic   = "viablkcw"
	version = 1

	atVersion  = 8
	atFlags    = 12
	atSequence = 16
	atID       = 24
	atSize     = 40
	atOpens    = 48
	atBoot     = 56
	atCreated  = 72
	atFrozen   = 80
	atBaseUUID = 88
	atBaseTime = 104
	atParentID = 112
	atParent   = 128 // Opens
	atStrings  = 136 // two lengths of 2 bytes, then the bytes
	atSum      = copySize - 4

	flagClean = 1

	stringLimit = 2048 // bytes of a path
)

// NameLimit bounds the name of a snapshot's file, in bytes.
const NameLimit = 255

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode returns the bytes of a header.
func (h *Header) encode() []byte {
	b := make([]byte, copySize)
	le := binary.LittleEndian
	copy(b, magic)
	le.PutUint16(b[atVersion:], version)
	if h.Clean {
		le.PutUint32(b[atFlags:], flagClean)
	}
	le.PutUint64(b[atSequence:], h.sequence)
	copy(b[atID:], h.ID[:])
	le.PutUint64(b[atSize:], uint64(h.Size))
	le.PutUint64(b[atOpens:], h.Opens)
	copy(b[atBoot:], h.Boot[:])
	le.PutUint64(b[atCreated:], nanoseconds(h.Created))
	le.PutUint64(b[atFrozen:], nanoseconds(h.Frozen))
	copy(b[atBaseUUID:], h.Base.UUID[:])
	le.PutUint64(b[atBaseTime:], uint64(h.Base.Modified))
	copy(b[atParentID:], h.Parent.ID[:])
	le.PutUint64(b[atParent:], h.Parent.Opens)
	path := h.Base.Path[:min(len(h.Base.Path), stringLimit)]
	le.PutUint16(b[atStrings:], uint16(len(path)))
	le.PutUint16(b[atStrings+2:], uint16(len(h.Parent.Name)))
	copy(b[atStrings+4:], path)
	copy(b[atStrings+4+len(path):], h.Parent.Name)
	le.PutUint32(b[atSum:], crc32.Checksum(b[:atSum], castagnoli))
	return b
}

// nanoseconds returns a time in ns since 1970, 0 for none.
func nanoseconds(t time.Time) uint64 {
	if t.IsZero() {
		return 0
	}
	return uint64(t.UnixNano())
}

// timeOf is the reverse of nanoseconds.
func timeOf(ns uint64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(ns))
}

// decode returns the header in one of its copies.
func decode(b []byte) (h Header, err error) {
	le := binary.LittleEndian
	switch {
	case string(b[:atVersion]) != magic:
		return h, ErrNone
	case le.Uint16(b[atVersion:]) > version:
		return h, fmt.Errorf("%w: its format is version %d, and this viablk knows %d", ErrVersion, le.Uint16(b[atVersion:]), version)
	case le.Uint32(b[atSum:]) != crc32.Checksum(b[:atSum], castagnoli):
		return h, fmt.Errorf("%w: the checksum of its header is wrong", ErrDamaged)
	}
	path, name := int(le.Uint16(b[atStrings:])), int(le.Uint16(b[atStrings+2:]))
	h = Header{
		ID: [16]byte(b[atID:]), Size: int64(le.Uint64(b[atSize:])),
		Base:    Base{UUID: [16]byte(b[atBaseUUID:]), Modified: int64(le.Uint64(b[atBaseTime:]))},
		Parent:  Parent{ID: [16]byte(b[atParentID:]), Opens: le.Uint64(b[atParent:])},
		Created: timeOf(le.Uint64(b[atCreated:])), Frozen: timeOf(le.Uint64(b[atFrozen:])),
		Opens: le.Uint64(b[atOpens:]), Clean: le.Uint32(b[atFlags:])&flagClean != 0, Boot: [16]byte(b[atBoot:]),
		sequence: le.Uint64(b[atSequence:]),
	}
	switch {
	case le.Uint16(b[atVersion:]) == 0, le.Uint32(b[atFlags:])&^flagClean != 0, path > stringLimit, name > NameLimit:
		return h, fmt.Errorf("%w: its header has values that no viablk writes", ErrDamaged)
	case CheckSize(h.Size) != nil:
		return h, fmt.Errorf("%w: %w", ErrDamaged, CheckSize(h.Size))
	}
	h.Base.Path = string(b[atStrings+4:][:path])
	h.Parent.Name = string(b[atStrings+4+path:][:name])
	return h, nil
}

// File is an overlay, or a part of it, that is open.
type File interface {
	// ReadAt fills p from off, WriteAt stores p there. Neither makes anything
	// durable.
	ReadAt(p []byte, off int64) error
	WriteAt(p []byte, off int64) error

	// NextData returns off, or where the next data behind it begins; the end of
	// the file if there is none.
	NextData(off int64) (int64, error)
}

// ReadHeader returns the header of a file of length bytes: the newest of its
// copies, of which a crash damages one at most.
func ReadHeader(f File, length int64) (*Header, error) {
	if length < 2*copySize {
		return nil, ErrNone
	}
	b := make([]byte, 2*copySize)
	if err := f.ReadAt(b, length-2*copySize); err != nil {
		return nil, fmt.Errorf("read the header: %w", err)
	}
	h, err := decode(b[:copySize])
	other, e := decode(b[copySize:])
	switch {
	case errors.Is(err, ErrVersion) || errors.Is(e, ErrVersion):
		return nil, errors.Join(err, e)
	case e == nil && (err != nil || other.sequence > h.sequence):
		h, err = other, nil
	case err != nil && errors.Is(err, ErrNone):
		err = e // of a file that is no overlay both say so
	}
	if err != nil {
		return nil, err
	}
	if end := LayoutOf(h.Size).End; end != length {
		return nil, fmt.Errorf("%w: the file has %d bytes instead of %d", ErrDamaged, length, end)
	}
	return &h, nil
}

// Store writes the header over the older copy.
func (h *Header) Store(f File) error {
	h.sequence++
	if err := f.WriteAt(h.encode(), LayoutOf(h.Size).header+int64(h.sequence%2)*copySize); err != nil {
		return fmt.Errorf("write the header: %w", err)
	}
	return nil
}
