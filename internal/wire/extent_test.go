package wire

import (
	"errors"
	"testing"
)

func TestExtents(t *testing.T) {
	for name, row := range map[string]struct {
		list   []byte
		length uint32
		n      int // 0: refused
	}{
		"one":                  {extentList(Extent{512, 3}), 512, 1},
		"less than asked":      {extentList(Extent{512, 0}, Extent{1, 1}), 1024, 2},
		"unknown flags":        {extentList(Extent{512, 1 << 31}), 512, 1},
		"none":                 {nil, 512, 0},
		"half":                 {extentList(Extent{512, 0})[:4], 512, 0},
		"one and a half":       {extentList(Extent{8, 0}, Extent{8, 0})[:12], 512, 0},
		"empty extent":         {extentList(Extent{8, 0}, Extent{0, 1}), 512, 0},
		"more than asked":      {extentList(Extent{512, 0}, Extent{1, 0}), 512, 0},
		"more than 32 bits":    {extentList(Extent{1 << 31, 0}, Extent{1 << 31, 1}), 1<<32 - 1, 0},
		"as many as there may": {fullList(MaxExtentBytes), 1 << 20, MaxExtentBytes / ExtentSize},
		"too many":             {fullList(MaxExtentBytes + ExtentSize), 1 << 20, 0},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := CheckExtents(row.list, row.length)
			if n != row.n || (err == nil) != (row.n > 0) || err != nil && !errors.Is(err, ErrMalformed) {
				t.Errorf("%d extents, %v", n, err)
			}
		})
	}
	e := Extent{0x01020304, 0x05060708}
	if got := ExtentAt(extentList(Extent{9, 9}, e), 1); got != e {
		t.Errorf("got %+v", got)
	}
}

func fullList(bytes int) []byte {
	b := make([]byte, bytes)
	for i := 0; i < bytes; i += ExtentSize {
		Extent{1, uint32(i / ExtentSize & 1)}.Encode(b[i:])
	}
	return b
}

func FuzzExtents(f *testing.F) {
	f.Add(extentList(Extent{512, 3}, Extent{1 << 30, 0}), uint32(1<<31))
	f.Add(fullList(MaxExtentBytes), uint32(4096))
	f.Fuzz(func(t *testing.T, list []byte, length uint32) {
		n, err := CheckExtents(list, length)
		if err != nil {
			return
		}
		var sum uint64
		for i := range n {
			e := ExtentAt(list, i)
			if e.Length == 0 {
				t.Fatal("an empty extent")
			}
			sum += uint64(e.Length)
		}
		if n == 0 || n*ExtentSize != len(list) || sum > uint64(length) {
			t.Fatalf("accepted %d extents of %d bytes for a range of %d", n, sum, length)
		}
	})
}
