package target

import (
	"crypto/rand"
	"encoding/binary"
	"io"

	"github.com/viablk/viablk/internal/block"
)

// An initiator that reconnects to a disk checks two values: the UUID shows
// whether it is the same disk, and the write verifier whether unflushed writes
// are still there.

// lifetime is different in every process.
var lifetime = func() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}()

// newLifetime returns what is different in every process, of which a
// simulation has several.
func newLifetime(random io.Reader) (uint64, error) {
	if random == rand.Reader {
		return lifetime, nil
	}
	var b [8]byte
	_, err := io.ReadFull(random, b[:])
	return binary.LittleEndian.Uint64(b[:]), err
}

// lifeOf returns what a disk adds to the write verifier of its identity: that
// of a disk whose answered writes end with the process ends with it too. The
// identity of a volatile disk ends with its data.
func lifeOf(d block.Device, lifetime uint64) uint64 {
	if block.DurabilityOf(d) == block.FlushedOnly {
		return lifetime
	}
	return 0
}

// verifier returns the write verifier of the disk.
func (x *exported) verifier() uint64 { return x.identity.Verifier() ^ x.life }
