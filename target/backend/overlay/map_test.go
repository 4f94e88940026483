package overlay

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
)

func openMap(t testing.TB, f *memoryFile, answered bool) *Map {
	t.Helper()
	h, err := ReadHeader(f, f.skip+int64(len(f.b)))
	if err != nil {
		t.Fatal(err)
	}
	m, err := OpenMap(f, h, answered)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func noSync() error { return nil }

// Maps against a slice, saved and opened again now and then.
func TestMapAgainstModel(t *testing.T) {
	h := testHeader()
	h.Clean = false
	f := newOverlayFile(t, h)
	l := LayoutOf(h.Size)
	model := make([]bool, l.Blocks)
	random := rand.New(rand.NewPCG(1, 1))
	m := openMap(t, f, true)
	for round := range 300 {
		first := random.Int64N(l.Blocks)
		last := min(first+random.Int64N(1<<random.IntN(17)), l.Blocks-1)
		m.Add(first, last)
		for i := first; i <= last; i++ {
			model[i] = true
		}
		for range 20 {
			first := random.Int64N(l.Blocks)
			last := min(first+random.Int64N(1<<random.IntN(17)), l.Blocks-1)
			n := int64(0)
			for first+n <= last && model[first+n] == model[first] {
				n++
			}
			if got, has := m.Run(first, last); got != n || has != model[first] {
				t.Fatalf("Run of %d to %d: %d, %v instead of %d, %v", first, last, got, has, n, model[first])
			}
			if has := m.Has(first, last); has != (model[first] && n == last-first+1) {
				t.Fatalf("Has of %d to %d: %v", first, last, has)
			}
		}
		switch round % 8 {
		case 0:
			if err := m.Save(noSync); err != nil || !m.Saved() {
				t.Fatalf("save: %v, saved: %v", err, m.Saved())
			}
		case 1: // what was answered is all that another process finds
			if err := m.Save(noSync); err != nil {
				t.Fatal(err)
			}
			first := random.Int64N(l.Blocks)
			had := model[first]
			f.at(l.Answered + first)[0], model[first] = 1, true
			m = openMap(t, f, true)
			if m.Saved() != had {
				t.Errorf("block %d, which was saved: %v, has to be saved: %v", first, had, !m.Saved())
			}
		}
	}
}

// A copy that is torn leaves the map of the last save, unless the overlay was
// closed: then the disk has forgotten something.
func TestTornMap(t *testing.T) {
	h := testHeader()
	h.Clean = false
	f := newOverlayFile(t, h)
	l := LayoutOf(h.Size)
	m := openMap(t, f, false)
	for first := range int64(2) { // copies 1 and 0
		m.Add(first, first)
		if err := m.Save(noSync); err != nil {
			t.Fatal(err)
		}
	}
	whole := bytes.Clone(f.b)
	f.at(l.Map)[100] ^= 1
	m = openMap(t, f, false)
	if !m.Has(0, 0) || m.Has(1, 1) {
		t.Error("a map whose newer copy is torn is not that of the older")
	}
	if m.Saved() {
		t.Error("the torn copy would stay")
	}
	if err := m.Save(noSync); err != nil {
		t.Fatal(err)
	}
	h.Clean = true
	if _, err := OpenMap(f, h, false); err != nil {
		t.Errorf("a repaired map of a closed overlay: %v", err)
	}
	for name, damage := range map[string]func([]byte){
		"both":   func(b []byte) { b[100] ^= 1; b[copySize+100] ^= 1 },
		"closed": func(b []byte) { b[100] ^= 1 },
	} {
		f.b = bytes.Clone(whole)
		damage(f.at(l.Map))
		h.Clean = name == "closed"
		if _, err := OpenMap(f, h, false); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A page that is another's, or has blocks behind the end.
	f.b = bytes.Clone(whole)
	copy(f.at(l.Map + 2*copySize)[:2*copySize], f.at(l.Map))
	h.Clean = true
	if _, err := OpenMap(f, h, false); !errors.Is(err, ErrDamaged) {
		t.Errorf("a page at the place of another: %v", err)
	}
	golden(t, "page", whole[:80])
}

// Blocks are added while the map is saved: what Saved promises holds.
func TestConcurrentSaves(t *testing.T) {
	h := testHeader()
	h.Clean, h.Size = false, 2*pageBlocks*BlockSize
	f := newOverlayFile(t, h)
	m := openMap(t, f, false)
	var mu sync.Mutex // of the file, for the race detector
	m.file = lockedFile{f, &mu}
	var all sync.WaitGroup
	for w := range int64(4) {
		all.Go(func() {
			for i := range int64(200) {
				block := (i*4 + w) * 7 * 11 % m.layout.Blocks
				m.Add(block, block)
				if i%8 == 0 {
					if err := m.Save(noSync); err != nil {
						t.Error(err)
					}
					mu.Lock()
					saved, err := OpenMap(f, h, false)
					mu.Unlock()
					if err != nil || !saved.Has(block, block) {
						t.Errorf("block %d was saved and is not there, %v", block, err)
					}
				}
			}
		})
	}
	all.Wait()
}

// lockedFile is a file whose accesses are one at a time.
type lockedFile struct {
	*memoryFile
	mu *sync.Mutex
}

func (l lockedFile) WriteAt(p []byte, off int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.memoryFile.WriteAt(p, off)
}

// A page of any content is refused or has blocks of the disk alone.
func FuzzPage(f *testing.F) {
	h := testHeader()
	h.Size = 8 << 20 // one page
	l := LayoutOf(h.Size)
	file := newMemoryFile(h.Size)
	m, err := OpenMap(file, h, false)
	if err != nil {
		f.Fatal(err)
	}
	m.Add(5, 700)
	if err := m.Save(noSync); err != nil {
		f.Fatal(err)
	}
	f.Add(bytes.Clone(file.at(l.Map)[:l.Answered-l.Map]))
	f.Fuzz(func(t *testing.T, copies []byte) {
		file := newMemoryFile(h.Size)
		copy(file.at(l.Map)[:l.Answered-l.Map], copies)
		m, err := OpenMap(file, h, false)
		if err != nil {
			return
		}
		n := int64(0)
		for block := int64(0); block < l.Blocks; block += n {
			if n, _ = m.Run(block, l.Blocks-1); n <= 0 || block+n > l.Blocks {
				t.Fatalf("a run of %d blocks from %d", n, block)
			}
		}
	})
}
