package session

import (
	"path/filepath"
	"testing"

	"github.com/viablk/viablk/integration/nemesis"
	"github.com/viablk/viablk/integration/testbed"
)

// TestExactlyOnce: a disk over shared memory is linearizable whatever happens
// to the processes behind it, also with data digests.
func TestExactlyOnce(t *testing.T) {
	t.Run("file", func(t *testing.T) {
		t.Parallel()
		overMemory(t, testbed.FileDisk(1<<20)(t), false, false)
	})
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		overMemory(t, testbed.MemoryDisk("1MiB")(t), true, false)
	})
	t.Run("digest", func(t *testing.T) {
		t.Parallel()
		overMemory(t, testbed.FileDisk(1<<20)(t), false, true)
	})
}

func overMemory(t *testing.T, d testbed.Disk, memory, digest bool) {
	t.Helper()
	nemesis.Setup{
		Listen: "via+shm:///?socket=" + filepath.Join(testbed.Folder(t), "v"), Scheme: "via+shm",
		Disk: d, Memory: memory, Digest: digest,
	}.Run(t)
}
