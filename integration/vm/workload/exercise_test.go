package workload

import (
	"flag"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var seed = flag.Uint64("exerciser.seed", 0, "seed of what is done; 0 is another one each time")

// chosen returns the seed of a test.
func chosen(t *testing.T) uint64 {
	t.Helper()
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("replay with -exerciser.seed %d", s)
	return s
}

const fileSize = 256 << 10

func openFile(t *testing.T, folder string) *File {
	t.Helper()
	f, err := OpenFile(filepath.Join(folder, "file"), fileSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// The file systems of this machine pass, whatever they can do.
func TestFileOfThisMachine(t *testing.T) {
	s := chosen(t)
	shm, err := os.MkdirTemp("/dev/shm", "exerciser-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(shm) })
	for _, folder := range []string{t.TempDir(), shm} {
		f := openFile(t, folder)
		counts, err := Exercise(f, s, 3000)
		if err != nil {
			t.Error(err)
		}
		t.Log(folder, counts)
		for _, k := range f.Kinds() {
			if counts[k] == 0 {
				t.Errorf("%s: nothing of kind %v was done", folder, k)
			}
		}
	}
}

// The same seed does the same.
func TestReplay(t *testing.T) {
	s := chosen(t)
	var histories [2][]Op
	for i := range histories {
		spy := &faulty{Region: openFile(t, t.TempDir()), fault: func(o Op, p []byte, do doer) (int, error) {
			histories[i] = append(histories[i], o)
			return do(o, p)
		}}
		if _, err := Exercise(spy, s, 500); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(histories[0], histories[1]) {
		t.Error("two runs of a seed differ")
	}
}

type doer func(Op, []byte) (int, error)

// faulty is a region with a fault.
type faulty struct {
	Region
	fault func(o Op, p []byte, do doer) (int, error)
}

func (f *faulty) Do(o Op, p []byte) (int, error) { return f.fault(o, p, f.Region.Do) }

// Every fault that a file system or disk below it may have is found.
func TestFaultsAreFound(t *testing.T) {
	s := chosen(t)
	// some is true for a few of many operations.
	some := func() func() bool {
		n := 0
		return func() bool { n++; return n%10 == 0 }
	}
	for name, plant := range map[string]func() func(o Op, p []byte, do doer) (int, error){
		"a write is lost": func() func(Op, []byte, doer) (int, error) {
			some := some()
			return func(o Op, p []byte, do doer) (int, error) {
				if o.Kind == WriteDirect && some() {
					return len(p), nil
				}
				return do(o, p)
			}
		},
		"the second page of a write is lost": func() func(Op, []byte, doer) (int, error) {
			return func(o Op, p []byte, do doer) (int, error) {
				if o.Kind == Write && len(p) > 4096 {
					_, err := do(o, p[:4096])
					return len(p), err
				}
				return do(o, p)
			}
		},
		"a write goes elsewhere": func() func(Op, []byte, doer) (int, error) {
			some := some()
			return func(o Op, p []byte, do doer) (int, error) {
				if o.Kind == WriteDirect && o.Offset >= sector && some() {
					o.Offset -= sector
				}
				return do(o, p)
			}
		},
		"a read is stale": func() func(Op, []byte, doer) (int, error) {
			var old []byte
			return func(o Op, p []byte, do doer) (int, error) {
				n, err := do(o, p)
				if o.Kind == ReadDirect {
					old = append(old[:0], p[:n]...)
				} else if o.Kind == ReadMapped {
					copy(p, old)
				}
				return n, err
			}
		},
		"a hole is too long": func() func(Op, []byte, doer) (int, error) {
			return func(o Op, p []byte, do doer) (int, error) {
				if o.Kind == Punch && o.Length%4096 != 0 {
					o.Length += 4096 - o.Length%4096
				}
				return do(o, p)
			}
		},
		"zeroes are not written": func() func(Op, []byte, doer) (int, error) {
			return func(o Op, p []byte, do doer) (int, error) {
				if o.Kind == Zero || o.Kind == Punch { // tmpfs has holes alone
					return 0, nil
				}
				return do(o, p)
			}
		},
		"truncated data comes back": func() func(Op, []byte, doer) (int, error) {
			return func(o Op, p []byte, do doer) (int, error) {
				if o.Kind == Truncate {
					o.Offset = (o.Offset + 511) &^ 511
				}
				return do(o, p)
			}
		},
		"a read is short": func() func(Op, []byte, doer) (int, error) {
			return func(o Op, p []byte, do doer) (int, error) {
				n, err := do(o, p)
				if o.Kind == Read && n == len(p) {
					n--
				}
				return n, err
			}
		},
		"an error": func() func(Op, []byte, doer) (int, error) {
			return func(o Op, p []byte, do doer) (int, error) {
				if o.Kind == Sync {
					return 0, os.ErrInvalid
				}
				return do(o, p)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Exercise(&faulty{openFile(t, t.TempDir()), plant()}, s, 3000)
			if err == nil || !strings.Contains(err.Error(), "seed") || !strings.Contains(err.Error(), "\n***") && name != "an error" {
				t.Errorf("the fault is not told: %v", err)
			}
		})
	}
}

// loop makes a disk of this machine out of a file.
func loop(t *testing.T, size int64) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", file).CombinedOutput()
	if err != nil {
		t.Fatalf("losetup, of the package util-linux, which needs root: %v: %s", err, out)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
			t.Errorf("losetup: %v: %s", err, out)
		}
	})
	return device
}

// A disk of this machine passes in several zones.
func TestDiskOfThisMachine(t *testing.T) {
	counts, err := ExerciseDisk(loop(t, 8<<20), 3, 256<<10, chosen(t), 1000)
	if err != nil {
		t.Error(err)
	}
	for _, k := range (&Zone{}).Kinds() {
		if counts[k] == 0 {
			t.Errorf("nothing of kind %v was done", k)
		}
	}
}

// A disk whose zones are not apart, or that discards what it was not asked to,
// is found out.
func TestFaultsOfDisksAreFound(t *testing.T) {
	device, s := loop(t, 8<<20), chosen(t)
	for name, fault := range map[string]func(Op, []byte, doer) (int, error){
		"more is discarded": func(o Op, p []byte, do doer) (int, error) {
			if o.Kind == Discard && o.Offset > 0 {
				o.Offset, o.Length = o.Offset-4096, o.Length+4096
			}
			return do(o, p)
		},
		"garbage is discarded to": func(o Op, p []byte, do doer) (int, error) {
			if o.Kind == Discard {
				_, err := do(Op{Write, o.Offset, sector}, slices.Repeat([]byte{7}, sector))
				return 0, err
			}
			return do(o, p)
		},
		"zeroes are not written": func(o Op, p []byte, do doer) (int, error) {
			if o.Kind == ZeroOut {
				return 0, nil
			}
			return do(o, p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			z, err := OpenZone(device, 0, 256<<10)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Exercise(&faulty{z, fault}, s, 2000); err == nil || !strings.Contains(err.Error(), "***") {
				t.Errorf("the fault is not told: %v", err)
			}
			if err := z.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
