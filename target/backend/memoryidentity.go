package backend

import (
	"encoding/binary"
	"os"

	"github.com/viablk/viablk/internal/block"
)

// format writes the header of a new disk.
func (f *memoryFile) format(size int64, id block.Identity) {
	f.uuid, f.verifier = id.UUID(), id.Verifier()
	f.mu.Lock()
	defer f.mu.Unlock()
	copy(f.header, memoryMagic)
	binary.LittleEndian.PutUint64(f.header[memoryAtSize:], uint64(size))
	copy(f.header[memoryAtUUID:], f.uuid[:])
	binary.LittleEndian.PutUint64(f.header[memoryAtVerifier:], f.verifier)
}

// identify reads the header of a disk.
func (f *memoryFile) identify() {
	f.mu.Lock()
	defer f.mu.Unlock()
	copy(f.uuid[:], f.header[memoryAtUUID:])
	f.verifier = binary.LittleEndian.Uint64(f.header[memoryAtVerifier:])
	copy(f.writer.ID[:], f.header[memoryAtWriter:])
	f.writer.Generation = binary.LittleEndian.Uint64(f.header[memoryAtGeneration:])
	copy(f.sums[:], f.header[memoryAtSums:])
	f.unkept.Store(f.sums != [16]byte{})
}

// UUID implements [block.Identity].
func (f *memoryFile) UUID() [16]byte { return f.uuid }

// Verifier implements [block.Identity]: what was written is lost with the
// identity, and never else.
func (f *memoryFile) Verifier() uint64 { return f.verifier }

// Persistent implements [block.Identity].
func (f *memoryFile) Persistent() bool { return false }

// Writer implements [block.Identity].
func (f *memoryFile) Writer() block.Writer {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writer
}

// SetWriter implements [block.Identity].
func (f *memoryFile) SetWriter(id [16]byte) (block.Writer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.header == nil {
		return block.Writer{}, os.ErrClosed
	}
	f.writer = block.Writer{ID: id, Generation: f.writer.Generation + 1}
	copy(f.header[memoryAtWriter:], id[:])
	binary.LittleEndian.PutUint64(f.header[memoryAtGeneration:], f.writer.Generation)
	return f.writer, nil
}

// keptBy returns the ID of the file of checksums that every change of the disk
// is in, zero if there is none. The disk takes it along to another process.
func (f *memoryFile) keptBy() [16]byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sums
}

// keep notes, before a change, that a file of checksums has that one and every
// other, and has all that were before. Zero is no file.
func (f *memoryFile) keep(sums [16]byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.header == nil:
		return os.ErrClosed
	case f.sums != sums:
		f.sums = sums
		copy(f.header[memoryAtSums:], sums[:])
	}
	return nil
}

// changes says that the disk may be changed without checksums from now on.
func (m *memory) changes() {
	if m.file.unkept.Load() && m.info.Features&block.ReadOnly == 0 {
		_ = m.file.keep([16]byte{}) // a closed disk has no changes
		m.file.unkept.Store(false)
	}
}

// memoryBelow returns the memory of a disk whose requests reach it as they are,
// or nil.
func memoryBelow(d block.Device) *memoryFile {
	for {
		switch inside := d.(type) {
		case *wrapper:
			d = inside.inner
		case *memory:
			return inside.file
		default:
			return nil
		}
	}
}
