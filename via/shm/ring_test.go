package shm

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/viablk/viablk/via"
)

// ringBytes returns a ring in the Go heap, where the race detector sees it; it
// is 8-byte aligned, as a large allocation is.
func ringBytes(n int) []byte { return make([]byte, n) }

// piece is a record with its payload, of the model.
type piece struct {
	r       record
	b       []byte
	damaged bool
}

// TestRingAgainstQueue writes and reads records in random sizes and order and
// compares with a plain queue of them.
func TestRingAgainstQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := 1 << rapid.IntRange(7, 12).Draw(t, "ring")
		mem := ringBytes(size)
		start := rapid.SampledFrom([]uint64{0, uint64(size) - 16, 1<<32 - 16, 1<<63 - 32}).Draw(t, "position")
		w := writer{ring: mem, tail: start, published: start, head: start}
		r := reader{ring: mem, head: start, tail: start, pub: start}
		var model []piece
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				n := rapid.IntRange(0, size).Draw(t, "bytes")
				if w.free() < recordHeader+(n+sumBytes+recordAlign-1)&^(recordAlign-1) {
					return
				}
				p := piece{r: record{
					length: uint32(n), tag: tag{kind: rapid.Byte().Draw(t, "kind"), flags: rapid.Byte().Draw(t, "flags") & flagsKnown},
					immediate: rapid.Uint32().Draw(t, "immediate"), total: rapid.Uint32().Draw(t, "total"),
				}, b: rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "payload")}
				p.r.seq = uint16(w.seq)
				start := w.tail
				w.begin(p.r)
				cut := rapid.IntRange(0, n).Draw(t, "cut")
				w.put(p.b[:cut])
				w.put(p.b[cut:])
				w.end()
				if p.r.flags&flagSum != 0 {
					w.seal(start, p.r)
					p.damaged = rapid.Bool().Draw(t, "damaged")
				}
				if p.damaged {
					bit := rapid.IntRange(0, 8*(recordHeader-8+n)-1).Draw(t, "bit")
					b, _ := span(mem, start-w.start+8+uint64(bit/8), 1) // behind what the reader needs to find the end
					b[0] ^= 1 << (bit % 8)
				}
				model = append(model, p)
			},
			"publish": func(t *rapid.T) {
				w.published = w.tail
				if err := r.setWord(w.word()); err != nil {
					t.Fatal(err)
				}
			},
			"begin again": func(*rapid.T) {
				if w.head == w.tail && w.start != w.tail {
					w.rewind()
				}
			},
			"read": func(t *rapid.T) {
				rec, ok, err := r.next()
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					if r.head != r.tail {
						t.Fatal("no record, but bytes")
					}
					return
				}
				p := model[0]
				model = model[1:]
				if p.r.flags&flagSum != 0 && r.intact(rec) == p.damaged {
					t.Fatalf("the checksum of %+v says %v", rec, !p.damaged)
				}
				if p.damaged {
					r.skip(rec)
					return
				}
				if rec != p.r {
					t.Fatalf("read %+v, wrote %+v", rec, p.r)
				}
				got := make([]byte, rec.length)
				cut := rapid.IntRange(0, len(got)).Draw(t, "cut")
				r.payload(cut, got[cut:])
				r.payload(0, got[:cut])
				if !bytes.Equal(got, p.b) {
					t.Fatal("read other bytes")
				}
				r.skip(rec)
			},
			"consume": func(t *rapid.T) {
				if err := w.setHead(r.head); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				if f := w.free(); f < 0 || f > size || f%recordAlign != 0 {
					t.Fatalf("%d bytes free of %d", f, size)
				}
			},
		})
	})
}

// TestRingPositions checks which positions of the other end each end accepts.
func TestRingPositions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 1 << 10
		base := rapid.SampledFrom([]uint64{0, 1 << 40, ^uint64(0) - size/2&^15}).Draw(t, "base")
		step := func(name string, limit uint64) uint64 {
			return rapid.Uint64Range(0, limit/recordAlign).Draw(t, name) * recordAlign
		}
		known := step("known", size)
		v := rapid.Uint64().Draw(t, "anywhere")
		if rapid.Bool().Draw(t, "near") {
			v = base + uint64(rapid.IntRange(-2*size, 2*size).Draw(t, "offset"))
		}
		if rapid.Bool().Draw(t, "aligned") {
			v &^= recordAlign - 1
		}
		r := reader{ring: ringBytes(size), head: base, tail: base + known}
		legal := v%recordAlign == 0 && v-base <= size && v-base >= known
		if err := r.setTail(v); (err == nil) != legal {
			t.Fatalf("tail %#x with %#x consumed and %#x known: %v", v, base, base+known, err)
		}
		w := writer{ring: ringBytes(size), head: base, tail: base + known, published: base + known}
		legal = v%recordAlign == 0 && v-base <= known
		if err := w.setHead(v); (err == nil) != legal {
			t.Fatalf("head %#x of %#x up to %#x: %v", v, base, base+known, err)
		}
	})
}

// FuzzRing reads arbitrary bytes of a hostile peer: the result is an error or
// records inside the published bytes.
func FuzzRing(f *testing.F) {
	const size = 1 << 10
	w := writer{ring: ringBytes(size)}
	for _, n := range []int{0, 5, 64, 200} {
		w.begin(record{length: uint32(n), tag: tag{kind: recordMessage, flags: flagFirst | flagLast}, total: uint32(n)})
		w.put(make([]byte, n))
		w.end()
	}
	start := w.tail
	w.begin(record{length: 7, tag: tag{kind: recordMessage, flags: flagFirst}, total: 9})
	w.seal(start, record{length: 7, tag: tag{kind: recordMessage, flags: flagFirst}, total: 9})
	f.Add(w.ring, w.tail, uint64(0))
	f.Add(w.ring, uint64(size), uint64(0))
	f.Add(bytes.Repeat([]byte{0xff}, size), uint64(64), uint64(1<<40))
	f.Add([]byte{}, uint64(1<<63), ^uint64(15))
	f.Fuzz(func(t *testing.T, b []byte, tail, head uint64) {
		mem := ringBytes(3 * size) // guards on both sides
		ring := mem[size : 2*size : 2*size]
		copy(ring, b)
		r := reader{ring: ring, head: head &^ 15, tail: head &^ 15}
		if r.setTail(tail) != nil {
			return
		}
		dst := make([]byte, maxFragment)
		for records := 0; ; records++ {
			before := r.head
			rec, ok, err := r.next()
			if err != nil || !ok {
				break
			}
			r.payload(0, dst[:rec.length])
			if rec.flags&flagSum != 0 {
				r.intact(rec)
			}
			r.skip(rec)
			if r.head-before > size || r.tail-r.head > size || records > size/recordHeader {
				t.Fatalf("record %d of %d bytes leads from %d to %d of %d", records, rec.length, before, r.head, r.tail)
			}
		}
	})
}

// TestLaps: a writer may begin its ring again only where its reader has read
// everything.
func TestLaps(t *testing.T) {
	const size = 1 << 10
	for name, c := range map[string]struct {
		unread uint64 // bytes before the ring begins again
		laps   uint64 // as published
		legal  bool
	}{
		"same":            {64, 3, true},
		"next":            {0, 4, true},
		"next, unread":    {64, 4, false},
		"one too many":    {0, 5, false},
		"former":          {0, 2, false},
		"next of sixteen": {0, 4 + 16, true}, // only four bits count
	} {
		r := reader{ring: ringBytes(size), head: 512, tail: 512 + c.unread, laps: 3, start: 256}
		err := r.setWord((512 + c.unread + 128) | c.laps&lapMask)
		if (err == nil) != c.legal {
			t.Errorf("%s: %v", name, err)
		}
		if start := r.start; err == nil && c.unread == 0 && start != 512 {
			t.Errorf("%s: the ring starts at %d", name, start)
		}
	}
}

// TestRingStaysSmall: a ring whose reader keeps up is used at its start only.
func TestRingStaysSmall(t *testing.T) {
	d := newDuo(t)
	out := &d.a.onlyLink().sender.out
	recv, send := d.b.descriptor(0, via.OpRecv, 0, 0), d.a.descriptor(0, via.OpSend, 0, 0)
	for range 1000 {
		d.message(recv, send, 100)
		if at := out.tail - out.start; at > 4096-(offRecords-offHot) {
			t.Fatalf("%d bytes into the ring", at)
		}
	}
	if out.laps == 0 {
		t.Error("the ring never begins again")
	}
}
