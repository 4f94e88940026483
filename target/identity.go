package target

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"os"

	"github.com/viablk/viablk/internal/block"
)

// Who attached a disk and finds it again, after its target was away, asks two things:
// whether it is the same disk, which its UUID says, and whether what was written and
// not flushed is still there, which its write verifier says (as in NFS, RFC 8881
// section 18.32.3).

// lifetime is different in every process.
var lifetime = func() (id [16]byte) {
	_, _ = rand.Read(id[:])
	return id
}()

// diskUUID derives a UUID (version 8) from an export's name: the same disk keeps it
// over restarts of the target. A disk that does not outlive the process is another
// one in every process.
func diskUUID(e *Export) [16]byte {
	text := []byte("viablk export " + e.Name)
	if block.SurvivalOf(e.Device) == block.NothingSurvives {
		text = append(text, lifetime[:]...)
	}
	h := sha256.Sum256(text)
	u := [16]byte(h[:16])
	u[6] = u[6]&0x0f | 0x80
	u[8] = u[8]&0x3f | 0x80
	return u
}

// verifierOf returns a number that changes when a disk may have lost what was answered
// and not flushed: with the process, or with the start of the machine where its page
// cache keeps such writes.
func verifierOf(d block.Device) uint64 {
	life := lifetime[:]
	if block.SurvivalOf(d) == block.WrittenSurvives {
		if boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
			life = boot
		}
	}
	h := sha256.Sum256(life)
	return binary.LittleEndian.Uint64(h[:])
}
