package seal_test

import (
	"bytes"
	"flag"
	"math/rand/v2"
	"testing"

	"github.com/viablk/viablk/internal/seal"
)

var forgeries = flag.Int("seal.forgeries", 200_000, "capsules that an attacker makes of recorded ones")

// forge changes b in one of the ways of an attacker who has recorded others.
func forge(r *rand.Rand, b []byte, recorded [][]byte) {
	tag := b[len(b)-seal.TagSize:]
	switch r.IntN(6) {
	case 0: // bits anywhere
		for range 1 + r.IntN(3) {
			b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		}
	case 1: // a guessed tag, of changed text
		b[seal.PrefixSize+r.IntN(len(b)-seal.Overhead)]++
		for i := range tag {
			tag[i] = byte(r.Uint32())
		}
	case 2: // the tag of another
		other := recorded[r.IntN(len(recorded))]
		copy(tag, other[len(other)-seal.TagSize:])
		b[seal.PrefixSize] ^= 1
	case 3: // the text of another
		other := recorded[r.IntN(len(recorded))]
		copy(b[seal.PrefixSize:], other[seal.PrefixSize:len(other)-seal.TagSize])
		b[len(b)-1] ^= byte(r.IntN(2))
	case 4: // another generation
		b[1] += byte(1 + r.IntN(255))
	case 5: // text and tag by the same difference
		at, d := r.IntN(seal.TagSize), byte(1+r.IntN(255))
		b[seal.PrefixSize+at] ^= d
		tag[at] ^= d
	}
}

// None of so many forged capsules is accepted.
func TestForgeries(t *testing.T) {
	session := newSession(t, seal.Limits{})
	i, target := connect(t, session, 1)
	const size = 64
	var recorded [][]byte
	for k := range 64 {
		recorded = append(recorded, i.capsule(t, pattern(size, byte(k))))
		target.expect(t, recorded[k], pattern(size, byte(k)))
	}
	next := i.capsule(t, pattern(size, 200))
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, len(next))
	for n := range *forgeries {
		for copy(b, next); bytes.Equal(b, next); { // bits may be flipped back
			forge(r, b, recorded)
		}
		opener := *target.Opener // as it was before
		if message, _, err := opener.Capsule(b); err == nil {
			t.Fatalf("forgery %d is accepted as %x", n, message)
		}
	}
	target.expect(t, next, pattern(size, 200))
	t.Logf("0 of %d are accepted", *forgeries)
}
