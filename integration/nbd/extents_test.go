package nbd

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

// part is what nbdinfo --map says of a part of an export.
type part struct {
	Offset int64 `json:"offset"`
	Length int64 `json:"length"`
	Type   int   `json:"type"`
}

// holeZero is how nbdinfo prints a hole that reads as zeroes.
const holeZero = 3

// mapOf asks nbdinfo for the extents of an export.
func mapOf(t testing.TB, uri string) (parts []part) {
	t.Helper()
	testbed.Must(t, json.Unmarshal([]byte(testbed.Run(t, "nbdinfo", "--map", "--json", uri)), &parts))
	return parts
}

// TestHolesOverEveryTransport writes, trims and zeroes, and asks what is left.
func TestHolesOverEveryTransport(t *testing.T) {
	const mib = 1 << 20
	for name, d := range map[string]func(testing.TB) testbed.Disk{
		"file": testbed.FileDisk(64 * mib), "memory": testbed.MemoryDisk("64MiB"),
	} {
		t.Run(name, func(t *testing.T) {
			testbed.EachWay(t, d, func(t *testing.T, s testbed.Service) {
				testbed.Run(t, "qemu-io", "-f", "raw", s.URI, "-c", "write -P 7 16M 16M", "-c", "discard 20M 2M", "-c", "write -z -u 24M 2M", "-c", "flush")
				want := []part{
					{0, 16 * mib, holeZero},
					{16 * mib, 4 * mib, 0},
					{20 * mib, 2 * mib, holeZero},
					{22 * mib, 2 * mib, 0},
					{24 * mib, 2 * mib, holeZero},
					{26 * mib, 6 * mib, 0},
					{32 * mib, 32 * mib, holeZero},
				}
				if got := mapOf(t, s.URI); !slices.Equal(got, want) {
					t.Errorf("nbdinfo sees %v, want %v", got, want)
				}
				var qemu []struct {
					Start, Length int64
					Zero, Data    bool
				}
				testbed.Must(t, json.Unmarshal([]byte(testbed.Run(t, "qemu-img", "map", "--output=json", "-f", "raw", s.URI)), &qemu))
				if len(qemu) != len(want) {
					t.Fatalf("qemu-img sees %v", qemu)
				}
				for i, p := range want {
					if q := qemu[i]; q.Start != p.Offset || q.Length != p.Length || q.Zero != (p.Type == holeZero) || q.Data == q.Zero {
						t.Errorf("qemu-img sees %v, want %v", q, p)
					}
				}
			})
		})
	}
}

// TestCopySkipsHoles copies a large disk with little in it.
func TestCopySkipsHoles(t *testing.T) {
	const size = 64 << 30
	testbed.EachWay(t, testbed.FileDisk(size), func(t *testing.T, s testbed.Service) {
		testbed.Run(t, "qemu-io", "-f", "raw", s.URI, "-c", "write -P 9 40G 1M", "-c", "flush")
		back := filepath.Join(t.TempDir(), "back")
		testbed.Must(t, os.WriteFile(back, nil, 0o600))
		testbed.Must(t, os.Truncate(back, size))
		testbed.Run(t, "nbdcopy", s.URI, back)
		var st syscall.Stat_t
		testbed.Must(t, syscall.Stat(back, &st))
		if allocated := st.Blocks * 512; allocated < 1<<20 || allocated > 2<<20 {
			t.Errorf("%d bytes are allocated of the copy", allocated)
		}
		testbed.Run(t, "qemu-io", "-f", "raw", back, "-c", fmt.Sprintf("read -P 9 %d 1M", 40<<30))
	})
}
