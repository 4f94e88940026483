package identity

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Record is what is kept with a disk.
type Record struct {
	UUID [16]byte // random, RFC 9562 version 4

	// Losses is how often answered writes may have been lost; LossBoot is the
	// boot of the machine in which that happened last. The write verifier is
	// made of both.
	Losses   uint64
	LossBoot [16]byte

	// Generation advances whenever another writer takes over. Writer is the
	// last one, or zero.
	Generation uint64
	Writer     [16]byte

	Opens   uint64   // times the disk was opened for writing
	Unclean bool     // opened for writing and not closed since
	Failed  bool     // a flush failed, and no person has accepted that
	Boot    [16]byte // of the machine when the disk was opened last

	// Binding tells this file or device from every other, and Modified is the
	// time of its last change, in ns since 1970, when it was closed; 0 on a
	// device.
	Binding  [16]byte
	Modified int64
}

// The encoding, little-endian: fixed fields, and CRC-32C of all before it.
const (
	magic         = "viablkid"
	recordVersion = 1

	atVersion    = 8
	atSize       = 10
	atFlags      = 12
	atUUID       = 16
	atLosses     = 32
	atLossBoot   = 40
	atGeneration = 56
	atWriter     = 64
	atOpens      = 80
	atBoot       = 88
	atBinding    = 104
	atModified   = 120
	atSum        = 128
	recordSize   = 132

	flagUnclean = 1
	flagFailed  = 2
)

// Errors of a record that is not there or cannot be used. Nothing overwrites a
// bad one but a renewal.
var (
	// ErrNoRecord means that nothing is kept with the disk.
	ErrNoRecord = errors.New("the disk has no identity record")

	// ErrDamaged means that the record is not whole, or not one of viablk.
	ErrDamaged = errors.New("the identity record is damaged")

	// ErrVersion means that a newer viablk wrote the record.
	ErrVersion = errors.New("the identity record is of a newer version")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode returns the bytes of a record.
func (r *Record) encode() []byte {
	b := make([]byte, recordSize)
	le := binary.LittleEndian
	copy(b, magic)
	le.PutUint16(b[atVersion:], recordVersion)
	le.PutUint16(b[atSize:], recordSize)
	var flags uint32
	if r.Unclean {
		flags |= flagUnclean
	}
	if r.Failed {
		flags |= flagFailed
	}
	le.PutUint32(b[atFlags:], flags)
	copy(b[atUUID:], r.UUID[:])
	le.PutUint64(b[atLosses:], r.Losses)
	copy(b[atLossBoot:], r.LossBoot[:])
	le.PutUint64(b[atGeneration:], r.Generation)
	copy(b[atWriter:], r.Writer[:])
	le.PutUint64(b[atOpens:], r.Opens)
	copy(b[atBoot:], r.Boot[:])
	copy(b[atBinding:], r.Binding[:])
	le.PutUint64(b[atModified:], uint64(r.Modified))
	le.PutUint32(b[atSum:], crc32.Checksum(b[:atSum], castagnoli))
	return b
}

// decode returns the record in b. The error is [ErrDamaged] or [ErrVersion].
func decode(b []byte) (Record, error) {
	le := binary.LittleEndian
	switch {
	case len(b) < atFlags || string(b[:atVersion]) != magic:
		return Record{}, fmt.Errorf("%w: %d bytes without the mark of viablk", ErrDamaged, len(b))
	case le.Uint16(b[atVersion:]) > recordVersion:
		return Record{}, fmt.Errorf("%w: version %d, and this viablk knows %d", ErrVersion, le.Uint16(b[atVersion:]), recordVersion)
	case len(b) != recordSize || le.Uint16(b[atSize:]) != recordSize || le.Uint16(b[atVersion:]) == 0:
		return Record{}, fmt.Errorf("%w: %d bytes instead of %d", ErrDamaged, len(b), recordSize)
	case le.Uint32(b[atSum:]) != crc32.Checksum(b[:atSum], castagnoli):
		return Record{}, fmt.Errorf("%w: its checksum is wrong", ErrDamaged)
	case le.Uint32(b[atFlags:])&^(flagUnclean|flagFailed) != 0:
		return Record{}, fmt.Errorf("%w: unknown flags %#x", ErrDamaged, le.Uint32(b[atFlags:]))
	}
	return Record{
		UUID:       [16]byte(b[atUUID:]),
		Losses:     le.Uint64(b[atLosses:]),
		LossBoot:   [16]byte(b[atLossBoot:]),
		Generation: le.Uint64(b[atGeneration:]),
		Writer:     [16]byte(b[atWriter:]),
		Opens:      le.Uint64(b[atOpens:]),
		Unclean:    le.Uint32(b[atFlags:])&flagUnclean != 0,
		Failed:     le.Uint32(b[atFlags:])&flagFailed != 0,
		Boot:       [16]byte(b[atBoot:]),
		Binding:    [16]byte(b[atBinding:]),
		Modified:   int64(le.Uint64(b[atModified:])),
	}, nil
}
