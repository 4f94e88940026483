package backendtest

import (
	"bytes"
	"math/rand/v2"

	"github.com/viablk/viablk/internal/block"
)

// status checks what the disk tells of its own parts: of every range something,
// without gap and not beyond it, as much as the caller has memory for, and
// nothing that is not so.
func (k *kit) status() {
	d := k.device()
	o := k.owner(d, 4)
	info := d.Info()
	if info.Features&block.CanStatus == 0 {
		k.Skip("the disk does not tell")
	}
	g := max(grain(info), 4096)
	random := rand.New(rand.NewPCG(3, 3))
	for range 60 {
		off, n := random.Int64N(region/g)*g, (1+random.Int64N(64))*g
		n = min(n, region-off)
		switch choice := random.IntN(4); {
		case info.Features&block.ReadOnly != 0:
		case choice < 2:
			k.write(o, pattern(make([]byte, n), random.Uint64()), off, 0)
		case choice == 2 && info.Features&block.CanTrim != 0:
			k.must(o, &block.Request{Op: block.Trim, Offset: off, Length: n})
		case info.Features&block.CanWriteZeroes != 0:
			k.must(o, &block.Request{Op: block.WriteZeroes, Offset: off, Length: n})
		}
		k.truthful(o, off, n, 1+random.IntN(64))
	}
	for _, capacity := range []int{1, 2, 1024} {
		at, least := k.walk(o, capacity, 0, info.Size), grain(info)
		if at != info.Size {
			k.Errorf("with memory for %d extents, status stops at %d of %d bytes", capacity, at, info.Size)
		}
		k.walk(o, capacity, info.Size-least, info.Size)
	}
}

// walk asks for the extents from off to end, and returns where it got.
func (k *kit) walk(o *owner, capacity int, off, end int64) int64 {
	k.Helper()
	for off < end {
		off += k.askStatus(o, off, end-off, capacity).Covered()
	}
	return off
}

// truthful compares what status says of a range with what is read there.
func (k *kit) truthful(o *owner, off, n int64, capacity int) {
	k.Helper()
	data := k.read(o, off, int(n))
	r := k.askStatus(o, off, n, capacity)
	at := int64(0)
	for _, e := range r.Extents {
		part := data[at : at+e.Length]
		if e.Flags&block.Zero != 0 && !zero(part) {
			k.Errorf("%d bytes at %d are said to be zero, and are not", e.Length, off+at)
		}
		at += e.Length
	}
}

// askStatus asks about a range and checks the shape of the answer.
func (k *kit) askStatus(o *owner, off, n int64, capacity int) *block.Request {
	k.Helper()
	r := &block.Request{Op: block.Status, Offset: off, Length: n, Extents: make([]block.Extent, 0, capacity)}
	k.must(o, r)
	covered := r.Covered()
	if len(r.Extents) == 0 || len(r.Extents) > capacity || covered > n {
		k.Fatalf("status of %d bytes with memory for %d extents: %d extents of %d bytes", n, capacity, len(r.Extents), covered)
	}
	for i, e := range r.Extents {
		if e.Length <= 0 || e.Flags&^block.KnownExtentFlags != 0 {
			k.Fatalf("status of %d bytes at %d: extent %d is %+v", n, off, i, e)
		}
	}
	return r
}

// prefetch checks that reading ahead succeeds and changes nothing.
func (k *kit) prefetch() {
	d := k.device()
	o := k.owner(d, 1)
	info := d.Info()
	if info.Features&block.CanPrefetch == 0 {
		k.Skip("the disk does not read ahead")
	}
	n := max(grain(info), 4096)
	before := k.read(o, n, int(n))
	k.must(o, &block.Request{Op: block.Prefetch, Offset: n, Length: n})
	k.must(o, &block.Request{Op: block.Prefetch, Length: info.Size})
	if !bytes.Equal(k.read(o, n, int(n)), before) {
		k.Error("prefetch changes what is read")
	}
}
