package seal_test

import (
	"bytes"
	"testing"

	"github.com/viablk/viablk/internal/seal"
)

func TestAllocsOfCapsulesAndRecords(t *testing.T) {
	i, target := connect(t, newSession(t, seal.Limits{}), 1)
	b, opened := make([]byte, 4096+seal.Overhead), make([]byte, 4096+seal.Overhead)
	data, private, header := make([]byte, seal.RecordSize), make([]byte, seal.RecordSize), make([]byte, 64)
	var p, q seal.Payload
	var tag [seal.TagSize]byte
	var bad error
	must := func(err error) {
		if err != nil {
			bad = err
		}
	}
	n := testing.AllocsPerRun(200, func() {
		must(i.Sealer.Payload(&p, len(data)))
		must(p.Seal(data, private, 0, header, &tag))
		_, _, err := i.Sealer.Capsule(b, 4096)
		must(err)
		copy(opened, b)
		_, _, err = target.Opener.Capsule(opened)
		must(err)
		must(target.Opener.Payload(&q))
		must(q.Open(private, data, 0, header, &tag))
		must(q.Seal(data, private, 1, header, &tag))
		must(p.Open(private, data, 1, header, &tag))
		_, _, err = target.Sealer.Capsule(b, 64)
		must(err)
		_, _, err = i.Opener.Capsule(b[:64+seal.Overhead])
		must(err)
	})
	if n != 0 || bad != nil {
		t.Errorf("%v allocations, %v", n, bad)
	}
}

// FuzzCapsule gives an opener anything at all in place of its second capsule.
func FuzzCapsule(f *testing.F) {
	session := newSession(f, seal.Limits{})
	i, _ := connect(f, session, 1)
	first, second := i.capsule(f, []byte("first")), i.capsule(f, []byte("second"))
	f.Add(first)
	f.Add(second)
	f.Add([]byte{seal.Opcode, 1, 0, 0, 1, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, target := connect(t, session, 1)
		target.expect(t, first, []byte("first"))
		if bytes.Equal(b, second) {
			target.expect(t, b, []byte("second"))
			return
		}
		target.refuse(t, b, second)
	})
}

func BenchmarkCapsule(b *testing.B) {
	for name, n := range map[string]int{"64B": 64, "4KiB": 4096, "128KiB": 128 << 10} {
		b.Run(name, func(b *testing.B) {
			i, target := connect(b, newSession(b, seal.Limits{}), 1)
			buf := make([]byte, n+seal.Overhead)
			b.SetBytes(int64(n))
			for b.Loop() {
				if _, _, err := i.Sealer.Capsule(buf, n); err != nil {
					b.Fatal(err)
				}
				if _, _, err := target.Opener.Capsule(buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkRecord(b *testing.B) {
	for name, n := range map[string]int{"4KiB": 4096, "128KiB": 128 << 10} {
		i, target := connect(b, newSession(b, seal.Limits{}), 1)
		data, sealed, header := make([]byte, n), make([]byte, n), make([]byte, 64)
		var tag [seal.TagSize]byte
		p, q := command(b, i, target, n)
		record := -1
		b.Run("seal/"+name, func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				if record++; p.Seal(sealed, data, record, header, &tag) != nil {
					b.Fatal()
				}
			}
		})
		b.Run("open/"+name, func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				if q.Open(data, sealed, record, header, &tag) != nil {
					b.Fatal()
				}
			}
		})
	}
}

func BenchmarkRatchet(b *testing.B) {
	i, _ := connect(b, newSession(b, seal.Limits{Capsules: 1}), 1)
	buf := make([]byte, 64+seal.Overhead)
	for b.Loop() {
		if _, _, err := i.Sealer.Capsule(buf, 64); err != nil {
			b.Fatal(err)
		}
	}
}
