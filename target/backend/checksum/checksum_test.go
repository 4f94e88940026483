package checksum

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"hash/crc32"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

// memoryFile is a file in memory, with its pages by number.
type memoryFile map[int64]*[copySize]byte

func (m memoryFile) ReadAt(p []byte, off int64) error {
	for len(p) > 0 {
		n := int(min(copySize-off%copySize, int64(len(p))))
		if page := m[off/copySize]; page != nil {
			copy(p[:n], page[off%copySize:])
		} else {
			clear(p[:n])
		}
		off, p = off+int64(n), p[n:]
	}
	return nil
}

func (m memoryFile) WriteAt(p []byte, off int64) error {
	if off%copySize != 0 || len(p) != copySize {
		return errors.New("write of no page")
	}
	page := [copySize]byte(p)
	m[off/copySize] = &page
	return nil
}

func testHeader() *Header {
	h := &Header{Size: 300 << 30, Generation: 5, Opens: 7, Scrubbed: 1700000000, Corrupt: 3, Unreadable: 4}
	for i := range 16 {
		h.ID[i], h.Disk[i] = byte(i), byte(i+32)
	}
	return h
}

// golden compares bytes with a file of hexadecimal lines.
func golden(t *testing.T, name string, b []byte) {
	t.Helper()
	path := "testdata/" + name
	text := hex.Dump(b)
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || string(want) != text {
		t.Errorf("%s differs, %v:\n%s", path, err, text)
	}
}

// The file of a disk: header, marks and sums, each at its place.
func TestFormatIsGolden(t *testing.T) {
	h, f := testHeader(), memoryFile{}
	h.sequence = 8
	if err := h.Store(f); err != nil {
		t.Fatal(err)
	}
	got, err := ReadHeader(f, End(h.Size))
	if err != nil || *got != *h {
		t.Errorf("header: %+v, %v", got, err)
	}
	b := f[1]
	golden(t, "header", append(bytes.Clone(b[:atFieldsEnd+8]), b[atSum:]...))

	marks, err := OpenIntent(f, h)
	if err != nil {
		t.Fatal(err)
	}
	marks.Mark(3, true)
	marks.Mark(groupRegions+64, true)
	if failed, err := marks.Store(func() error { return nil }); failed || err != nil {
		t.Fatal(err)
	}
	golden(t, "intent", f[3][:atBits+16])
	golden(t, "intent-of-second-group", f[2+groupPages+1][:atBits+16])

	sums := new(Sums)
	sums[0].Store(OfZeroes(BlockSize))
	sums[RegionBlocks-1].Store(Of([]byte("123456789")))
	if err := sums.Save(f, h, groupRegions+1); err != nil {
		t.Fatal(err)
	}
	b = f[2+groupPages+2+1]
	golden(t, "sums", append(bytes.Clone(b[:16]), b[copySize-8:]...))
	again := new(Sums)
	if err := again.Load(f, h, groupRegions+1); err != nil || again[0].Load() != sums[0].Load() || again[RegionBlocks-1].Load() != 0xe3069283 {
		t.Errorf("sums: %v", err)
	}
	if err := again.Load(f, h, 5); err != nil {
		t.Errorf("a region without a page: %v", err)
	}
}

// A page of sums that is another region's, another file's, or not whole, is
// refused.
func TestDamagedSums(t *testing.T) {
	h, f := testHeader(), memoryFile{}
	sums := new(Sums)
	sums[9].Store(7)
	if err := sums.Save(f, h, 3); err != nil {
		t.Fatal(err)
	}
	page := SumsAt(3) / copySize
	other := testHeader()
	other.ID[0]++
	if err := new(Sums).Load(f, other, 3); !errors.Is(err, ErrDamaged) {
		t.Errorf("another file: %v", err)
	}
	f[page+1] = f[page]
	if err := new(Sums).Load(f, h, 4); !errors.Is(err, ErrDamaged) {
		t.Errorf("another region: %v", err)
	}
	for _, at := range []int{0, atSumsMagic, atSums, copySize - 1} {
		f[page][at] ^= 1
		if err := new(Sums).Load(f, h, 3); !errors.Is(err, ErrDamaged) {
			t.Errorf("a bit at %d: %v", at, err)
		}
		f[page][at] ^= 1
	}
}

// A crash leaves one of two headers; anything else is refused with the reason.
func TestDamagedHeaders(t *testing.T) {
	resum := func(b *[copySize]byte) { le.PutUint32(b[atSum:], crc32.Checksum(b[:atSum], castagnoli)) }
	both := func(f memoryFile, edit func(*[copySize]byte)) {
		for i := range int64(2) {
			edit(f[i])
			resum(f[i])
		}
	}
	for name, c := range map[string]struct {
		damage func(f memoryFile) // the first copy is the newer
		want   error
		opens  uint64 // of the header that is found
	}{
		"whole":       {func(memoryFile) {}, nil, 2},
		"torn newer":  {func(f memoryFile) { f[0][600] ^= 1 }, nil, 1},
		"torn older":  {func(f memoryFile) { f[1][600] ^= 1 }, nil, 2},
		"empty newer": {func(f memoryFile) { clear(f[0][:]) }, nil, 1},
		"torn both":   {func(f memoryFile) { f[0][600] ^= 1; f[1][600] ^= 1 }, ErrDamaged, 0},
		"none":        {func(f memoryFile) { clear(f[0][:]); clear(f[1][:]) }, ErrNone, 0},
		"later":       {func(f memoryFile) { f[0][atVersion] = 2; resum(f[0]) }, ErrVersion, 0},
		"version 0":   {func(f memoryFile) { both(f, func(b *[copySize]byte) { b[atVersion] = 0 }) }, ErrDamaged, 0},
		"block size":  {func(f memoryFile) { both(f, func(b *[copySize]byte) { b[atBlockSize]++ }) }, ErrDamaged, 0},
		"region":      {func(f memoryFile) { both(f, func(b *[copySize]byte) { b[atRegion]++ }) }, ErrDamaged, 0},
		"size":        {func(f memoryFile) { both(f, func(b *[copySize]byte) { b[atSize] = 1 }) }, ErrDamaged, 0},
	} {
		t.Run(name, func(t *testing.T) {
			h, f := testHeader(), memoryFile{}
			for h.Opens = 1; h.Opens < 3; h.Opens++ {
				if err := h.Store(f); err != nil {
					t.Fatal(err)
				}
			}
			c.damage(f)
			got, err := ReadHeader(f, End(h.Size))
			if !errors.Is(err, c.want) || err == nil && (c.want != nil || got.Opens != c.opens) {
				t.Errorf("read: %+v, %v", got, err)
			}
		})
	}
	h, f := testHeader(), memoryFile{}
	if err := h.Store(f); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadHeader(f, End(h.Size)-copySize); !errors.Is(err, ErrDamaged) {
		t.Errorf("a file that was truncated: %v", err)
	}
	if _, err := ReadHeader(f, 4096); !errors.Is(err, ErrNone) {
		t.Errorf("a file without two copies: %v", err)
	}
}

// A header of any content is refused or describes a disk.
func FuzzHeader(f *testing.F) {
	h := testHeader()
	f.Add(h.encode(), make([]byte, copySize), false)
	h.sequence, h.Size = 1, 512
	f.Add(make([]byte, copySize), h.encode(), true)
	f.Fuzz(func(t *testing.T, one, two []byte, repair bool) {
		file := memoryFile{}
		for i, b := range [][]byte{one, two} {
			page := new([copySize]byte)
			copy(page[:], b)
			if repair {
				le.PutUint32(page[atSum:], crc32.Checksum(page[:atSum], castagnoli))
			}
			file[int64(i)] = page
		}
		h, err := ReadHeader(file, End(sizeLimit))
		if err == nil && (CheckSize(h.Size) != nil || Regions(h.Size) <= 0 || End(h.Size) <= 0) {
			t.Errorf("accepted: %+v", h)
		}
	})
}
