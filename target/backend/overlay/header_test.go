package overlay

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"hash/crc32"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files anew")

// memoryFile is a file in memory, without the data of the disk.
type memoryFile struct {
	b    []byte
	skip int64 // bytes of the file before b
}

// newMemoryFile returns the file of an overlay for a disk of size bytes.
func newMemoryFile(size int64) *memoryFile {
	l := LayoutOf(size)
	return &memoryFile{make([]byte, l.End-l.Map), l.Map}
}

// at returns the bytes of the file from off.
func (m *memoryFile) at(off int64) []byte { return m.b[off-m.skip:] }

func (m *memoryFile) ReadAt(p []byte, off int64) error {
	if off < m.skip || off+int64(len(p)) > m.skip+int64(len(m.b)) {
		return errors.New("read outside of the file")
	}
	copy(p, m.at(off))
	return nil
}

func (m *memoryFile) WriteAt(p []byte, off int64) error {
	if off < m.skip || off+int64(len(p)) > m.skip+int64(len(m.b)) {
		return errors.New("write outside of the file")
	}
	copy(m.at(off), p)
	return nil
}

// NextData finds data in steps of 512 bytes.
func (m *memoryFile) NextData(off int64) (int64, error) {
	end := m.skip + int64(len(m.b))
	for off < end {
		next := min(off&^511+512, end)
		if slices.Max(m.at(off)[:next-off]) != 0 {
			return off, nil
		}
		off = next
	}
	return end, nil
}

func testHeader() *Header {
	h := &Header{
		Size: 300 << 20, Created: time.Unix(0, 1800000000123456789), Frozen: time.Unix(1800000001, 0), Opens: 7, Clean: true,
		Base:   Base{Path: "/srv/golden.img", Modified: -5},
		Parent: Parent{Name: "disk.cow@monday", Opens: 6},
	}
	for i := range 16 {
		h.ID[i], h.Boot[i], h.Base.UUID[i], h.Parent.ID[i] = byte(i), byte(i+16), byte(i+32), byte(i+48)
	}
	return h
}

// newOverlayFile returns an overlay in memory.
func newOverlayFile(t testing.TB, h *Header) *memoryFile {
	t.Helper()
	f := newMemoryFile(h.Size)
	if err := h.Store(f); err != nil {
		t.Fatal(err)
	}
	return f
}

// golden compares the beginning of bytes with a file of hexadecimal lines.
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

func TestHeaderIsGolden(t *testing.T) {
	h := testHeader()
	h.sequence = 9
	b := h.encode()
	golden(t, "header", append(bytes.Clone(b[:192]), b[atSum:]...))
	got, err := decode(b)
	if err != nil || got != *h {
		t.Errorf("decoded: %+v, %v", got, err)
	}
}

// A crash leaves one of two headers; anything else is refused with the reason.
func TestDamagedHeaders(t *testing.T) {
	resum := func(b []byte) {
		binary.LittleEndian.PutUint32(b[atSum:], crc32.Checksum(b[:atSum], castagnoli))
	}
	for name, c := range map[string]struct {
		damage func(copies []byte) // the first is the newer
		want   error
		opens  uint64 // of the header that is found
	}{
		"whole":       {func([]byte) {}, nil, 2},
		"torn newer":  {func(b []byte) { b[600] ^= 1 }, nil, 1},
		"torn older":  {func(b []byte) { b[copySize+600] ^= 1 }, nil, 2},
		"empty newer": {func(b []byte) { clear(b[:copySize]) }, nil, 1},
		"torn both":   {func(b []byte) { b[600] ^= 1; b[copySize+600] ^= 1 }, ErrDamaged, 0},
		"no overlay":  {func(b []byte) { clear(b) }, ErrNone, 0},
		"later":       {func(b []byte) { b[atVersion] = 2; resum(b) }, ErrVersion, 0},
		"flags": {func(b []byte) {
			b[atFlags] = 2
			resum(b)
			copy(b[copySize:], b[:copySize])
		}, ErrDamaged, 0},
		"size": {func(b []byte) {
			b[atSize] = 1
			resum(b)
			copy(b[copySize:], b[:copySize])
		}, ErrDamaged, 0},
		"strings": {func(b []byte) {
			b[atStrings+1] = 0xff
			resum(b)
			copy(b[copySize:], b[:copySize])
		}, ErrDamaged, 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := testHeader()
			h.Opens = 1
			f := newOverlayFile(t, h)
			h.Opens = 2
			if err := h.Store(f); err != nil {
				t.Fatal(err)
			}
			c.damage(f.b[len(f.b)-2*copySize:])
			got, err := ReadHeader(f, LayoutOf(h.Size).End)
			if !errors.Is(err, c.want) || err == nil && (c.want != nil || got.Opens != c.opens) {
				t.Errorf("read: %+v, %v", got, err)
			}
		})
	}
	f := newOverlayFile(t, testHeader())
	end := LayoutOf(testHeader().Size).End
	for _, less := range []int64{512, 4096, 8192, int64(len(f.b))} {
		if h, err := ReadHeader(&memoryFile{f.b[:int64(len(f.b))-less], f.skip}, end-less); err == nil {
			t.Errorf("cut by %d bytes: %+v", less, h)
		}
	}
	if _, err := ReadHeader(&memoryFile{f.b, f.skip - 4096}, end-4096); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "instead of") {
		t.Errorf("without its beginning: %v", err)
	}
}

// A header of any content is refused or describes the file.
func FuzzHeader(f *testing.F) {
	h := testHeader()
	f.Add(h.encode(), make([]byte, copySize), false)
	h.sequence, h.Parent = 1, Parent{}
	f.Add(make([]byte, copySize), h.encode(), true)
	f.Fuzz(func(t *testing.T, one, two []byte, repair bool) {
		var copies [2][]byte
		for i, b := range [][]byte{one, two} {
			copies[i] = make([]byte, copySize)
			copy(copies[i], b)
			if repair {
				binary.LittleEndian.PutUint32(copies[i][atSum:], crc32.Checksum(copies[i][:atSum], castagnoli))
			}
		}
		// Of a file of the length that a header wants.
		for _, b := range copies {
			d, err := decode(b)
			if err != nil {
				continue
			}
			end := LayoutOf(d.Size).End
			got, err := ReadHeader(tail{append(bytes.Clone(copies[0]), copies[1]...), end}, end)
			if err == nil && (got.Size <= 0 || got.Size > sizeLimit || LayoutOf(got.Size).End != end || len(got.Parent.Name) > NameLimit) {
				t.Errorf("accepted: %+v", got)
			}
		}
	})
}

// tail is the end of a file.
type tail struct {
	b   []byte
	end int64
}

func (s tail) ReadAt(p []byte, off int64) error {
	copy(p, s.b[off-s.end+int64(len(s.b)):])
	return nil
}
func (s tail) WriteAt([]byte, int64) error       { return errors.ErrUnsupported }
func (s tail) NextData(off int64) (int64, error) { return off, nil }
