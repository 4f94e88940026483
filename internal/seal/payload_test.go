package seal_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/viablk/viablk/internal/seal"
)

// A whole payload is the records that it is sealed as one by one, it opens, and
// not with a tag that is wrong.
func TestWholePayloads(t *testing.T) {
	const size = seal.RecordSize
	header := pattern(64, 9)
	for _, n := range []int{1, size - 1, size, size + 1, 3*size - 100} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			session, plain := newSession(t, seal.Limits{}), pattern(n, 3)
			pair := func() (p, q *seal.Payload) {
				i, target := connect(t, session, 1)
				return command(t, i, target, n)
			}
			one, _ := pair()
			var want, tags []byte
			for k := 0; k*size < n; k++ {
				r := sealRecord(t, one, plain[k*size:min(n, (k+1)*size)], k, string(header))
				want, tags = append(want, r.b...), append(tags, r.tag[:]...)
			}
			if len(tags) != seal.TagsSize(uint32(n)) || seal.CheckTags(tags, uint32(n)) != nil {
				t.Fatalf("%d bytes of tags", len(tags))
			}
			for _, wrong := range [][]byte{nil, tags[1:], append(tags[:len(tags):len(tags)], 0)} {
				if seal.CheckTags(wrong, uint32(n)) == nil {
					t.Errorf("%d bytes of tags pass", len(wrong))
				}
			}

			p, q := pair()
			const beyond = 7
			dst, room := bytes.Repeat([]byte{0xee}, n+beyond), bytes.Repeat([]byte{0xee}, len(tags)+beyond)
			if err := p.SealAll(dst, plain, header, room); err != nil {
				t.Fatal(err)
			}
			rest := bytes.Repeat([]byte{0xee}, beyond)
			if !bytes.Equal(dst, append(want, rest...)) || !bytes.Equal(room, append(tags, rest...)) {
				t.Error("other records, or something beyond them")
			}
			if err := p.SealAll(dst, plain, header, room); !errors.Is(err, seal.ErrReused) {
				t.Errorf("the second time: %v", err)
			}
			for k := range seal.Records(n) {
				room[k*seal.TagSize] ^= 1
				if err := q.OpenAll(dst, dst[:n], header, room); !errors.Is(err, seal.ErrForged) {
					t.Errorf("tag %d is wrong: %v", k, err)
				}
				room[k*seal.TagSize] ^= 1
				copy(dst, want)
			}
			if err := q.OpenAll(dst, dst[:n], header, room); err != nil || !bytes.Equal(dst, append(plain, rest...)) {
				t.Errorf("open: %v", err)
			}
			for what, err := range map[string]error{
				"short of tags":   q.OpenAll(dst, want, header, tags[1:]),
				"short of memory": q.OpenAll(dst[:n-1], want, header, tags),
			} {
				if err == nil || errors.Is(err, seal.ErrForged) {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
	for n, want := range map[uint32]int{0: 0, 1: 16, size: 16, size + 1: 32, seal.MaxPayload: 4096, 1<<32 - 1: 512 << 10} {
		if got := seal.TagsSize(n); got != want {
			t.Errorf("%d bytes of tags for %d", got, n)
		}
	}
	if seal.CheckTags(nil, 0) != nil || seal.CheckTags(make([]byte, 16), 0) == nil {
		t.Error("the tags of no payload")
	}
}
