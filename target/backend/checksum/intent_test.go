package checksum

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

// losing is a file whose writes since the last sync a crash loses in part.
type losing struct {
	memoryFile
	durable memoryFile
	fails   int // the write that fails, and tears what it writes; 0 for none
}

func (l *losing) WriteAt(p []byte, off int64) error {
	if err := l.memoryFile.WriteAt(p, off); err != nil || l.fails == 0 {
		return err
	}
	if l.fails--; l.fails > 0 {
		return nil
	}
	clear(l.memoryFile[off/copySize][512:])
	return errors.New("no space")
}

func (l *losing) sync() error {
	l.durable = memoryFile{}
	for number, page := range l.memoryFile {
		l.durable[number] = page
	}
	return nil
}

// crash tears what is not durable.
func (l *losing) crash(random *rand.Rand) memoryFile {
	after := memoryFile{}
	for number, page := range l.memoryFile {
		torn := *page
		for s := 0; s < copySize; s += 512 {
			switch old := l.durable[number]; {
			case random.IntN(2) == 0:
			case old == nil:
				clear(torn[s : s+512])
			default:
				copy(torn[s:s+512], old[s:s+512])
			}
		}
		after[number] = &torn
	}
	return after
}

// Marks against a model: after a crash amid a Store each region has a mark that
// it had since the last one that succeeded.
func TestMarksOutliveCrashes(t *testing.T) {
	h := testHeader()
	regions := []int64{0, 63, 64, groupRegions - 1, groupRegions, groupRegions + 700}
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 3))
		f := &losing{memoryFile: memoryFile{}, durable: memoryFile{}}
		marks, err := OpenIntent(f, h)
		if err != nil {
			t.Fatal(err)
		}
		may := map[int64][]bool{}
		for _, r := range regions {
			may[r] = []bool{false}
		}
		for range 8 {
			for range 2 {
				r, marked := regions[random.IntN(len(regions))], random.IntN(2) == 0
				marks.Mark(r, marked)
				may[r] = append(may[r], marked)
			}
			f.fails = random.IntN(4)
			synced := false
			_, err := marks.Store(func() error {
				synced = true
				checkMarks(t, f.crash(random), h, may)
				return f.sync()
			})
			f.fails = 0
			if err == nil && !synced {
				t.Fatal("marks are stored without a sync")
			}
			if err == nil {
				for _, r := range regions {
					may[r] = may[r][len(may[r])-1:]
				}
			}
			checkMarks(t, f.crash(random), h, may)
		}
	}
}

// checkMarks wants each region to have a mark that it may have.
func checkMarks(t *testing.T, f memoryFile, h *Header, may map[int64][]bool) {
	t.Helper()
	marks, err := OpenIntent(f, h)
	if err != nil {
		t.Fatal(err)
	}
	for r, may := range may {
		if got := marks.Marked(r); !slices.Contains(may, got) {
			t.Fatalf("region %d: marked %v, may be %v", r, got, may)
		}
	}
}

// Marks of which both copies are damaged, or another file's, are refused.
func TestDamagedMarks(t *testing.T) {
	h, f := testHeader(), memoryFile{}
	marks, err := OpenIntent(f, h)
	if err != nil {
		t.Fatal(err)
	}
	for _, on := range []bool{true, false} {
		marks.Mark(5, on)
		if _, err := marks.Store(func() error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	f[2][100] ^= 1 // the newer copy
	if marks, err = OpenIntent(f, h); err != nil || !marks.Marked(5) {
		t.Errorf("the newer copy is damaged: %v", err)
	}
	other := testHeader()
	other.ID[3]++
	if _, err := OpenIntent(f, other); !errors.Is(err, ErrDamaged) {
		t.Errorf("another file: %v", err)
	}
	f[3][100] ^= 1
	if _, err := OpenIntent(f, h); !errors.Is(err, ErrDamaged) {
		t.Errorf("both copies are damaged: %v", err)
	}
}

// Marks that a process finds are written again: the one before may have failed
// to make them durable, and a sync alone would not.
func TestRenewedMarksAreWritten(t *testing.T) {
	h, f := testHeader(), memoryFile{}
	marks, err := OpenIntent(f, h)
	if err != nil {
		t.Fatal(err)
	}
	store := func() {
		t.Helper()
		if _, err := marks.Store(func() error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	marks.Mark(5, true)
	store()
	if marks, err = OpenIntent(f, h); err != nil {
		t.Fatal(err)
	}
	marks.Renew()
	store()
	delete(f, 3) // the copy of before
	if marks, err = OpenIntent(f, h); err != nil || !marks.Marked(5) {
		t.Errorf("the mark is not written again: %v", err)
	}
}
