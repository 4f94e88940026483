package via

import (
	"testing"
	"unsafe"
)

// cacheLine is what most processors of 64 bits fetch at once, in bytes.
const cacheLine = 64

// The end of a work touches one line of its queue, the consumer that looks up
// its context another, and the work with one segment two. Posts in a row take
// less than a line each.
func TestHotFieldsShareCacheLines(t *testing.T) {
	var vi VI
	var q workQueue
	var w Work
	// Safety: sizes and offsets only.
	if unsafe.Sizeof(uintptr(0)) != 8 {
		t.Skip("the layout is made for 64 bits")
	}
	for _, x := range []struct {
		name       string
		begin, end uintptr
		lines      uintptr
	}{
		{"VI before its queues", unsafe.Offsetof(vi.Context), unsafe.Offsetof(vi.send), 1},
		{"send queue, end of a work", unsafe.Offsetof(vi.send), unsafe.Offsetof(vi.send) + unsafe.Offsetof(q.works), 1},
		{"receive queue, end of a work", unsafe.Offsetof(vi.recv), unsafe.Offsetof(vi.recv) + unsafe.Offsetof(q.works), 1},
		{"work", 0, unsafe.Sizeof(w), 2},
		{"work but for its segments", 0, unsafe.Offsetof(w.inline), 1},
		{"eight posts", 0, 8 * unsafe.Sizeof(post{}), 3},
	} {
		if first, last := x.begin/cacheLine, (x.end-1)/cacheLine; x.begin%cacheLine != 0 || last-first+1 != x.lines {
			t.Errorf("%s: bytes [%d, %d) are not %d whole lines", x.name, x.begin, x.end, x.lines)
		}
	}
}

// A VI begins where a line does, wherever the allocator puts it, so that
// offsets say which line a field is in.
func TestVIBeginsAtCacheLine(t *testing.T) {
	p := newScripted()
	p.limits.MaxVI, p.limits.MaxCQ = 64, 64
	b := p.bench(t, ReliableDelivery)
	for range 50 {
		vi, err := b.nic.CreateVi(b.vi.Attributes(), ViConfig{SendCQ: b.cq, RecvCQ: b.cq, SendDepth: 1, RecvDepth: 1})
		b.must(err)
		// Safety: the address is only looked at.
		if at := uintptr(unsafe.Pointer(vi)) % cacheLine; at != 0 {
			t.Fatalf("a VI begins %d bytes behind the beginning of a line", at)
		}
	}
}
