package wire

import (
	"hash/crc32"
	"testing"

	"pgregory.net/rapid"
)

// The checksum equals that of hash/crc32, from any initial value, at any length
// and alignment, and reads no other bytes.
func TestCRC(t *testing.T) {
	room := make([]byte, MaxPacket+256)
	rapid.Check(t, func(t *rapid.T) {
		before := rapid.Uint32().Draw(t, "before")
		n := rapid.IntRange(0, MaxPacket).Draw(t, "bytes")
		at := 64 + rapid.IntRange(0, 63).Draw(t, "at")
		fill(room, rapid.Uint64().Draw(t, "seed"))
		b := room[at : at+n]
		want := crc32.Update(before, crc32.IEEETable, b)
		if got := extend(before, b); got != want {
			t.Fatalf("extend: %#x, want %#x", got, want)
		}
		first := [maskedSize]byte(room[:64])
		want = crc32.Update(crc32.Update(before, crc32.IEEETable, first[:]), crc32.IEEETable, b)
		if got := resume(before, &first, b); got != want {
			t.Fatalf("resume: %#x, want %#x", got, want)
		}
		fill(room[:at], 1)
		fill(room[at+n:], 2)
		if got := resume(before, &first, b); got != want {
			t.Fatal("it depends on what is around")
		}
	})
}

// fill writes pseudo-random bytes.
func fill(b []byte, seed uint64) {
	for i := range b {
		seed = seed*6364136223846793005 + 1442695040888963407
		b[i] = byte(seed >> 56)
	}
}

// Each length takes another path through the vectors, so all are tested.
func TestCRCLengths(t *testing.T) {
	b := count(MaxPacket)
	for n := range len(b) {
		if got, want := extend(7, b[:n]), crc32.Update(7, crc32.IEEETable, b[:n]); got != want {
			t.Fatalf("%d bytes: %#x, want %#x", n, got, want)
		}
	}
}
