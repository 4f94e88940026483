package nbd

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// TestAgainstModel pipelines random batches of requests to distinct blocks, cut
// into pieces anywhere, and compares every reply and the disk with a byte
// slice.
func TestAgainstModel(t *testing.T) {
	const blockSize, blocks = 64 << 10, 32
	shapes(t, Limits{Depth: 8, InFlight: 256 << 10}, func(t *testing.T, f *fixture, m *memory, p *peer) {
		model := m.fill(1)
		rapid.Check(t, func(rt *rapid.T) {
			type sent struct {
				command uint16
				want    []byte
			}
			batch := map[uint64]sent{}
			var stream []byte
			for _, i := range rapid.Permutation(numbers(blocks)).Draw(rt, "blocks")[:rapid.IntRange(1, blocks).Draw(rt, "n")] {
				offset := i*blockSize + rapid.Uint64Range(0, 100).Draw(rt, "offset")
				length := rapid.OneOf(rapid.Uint32Range(1, 600), rapid.Uint32Range(1, blockSize-100)).Draw(rt, "length")
				command := rapid.SampledFrom([]uint16{cmdRead, cmdRead, cmdWrite, cmdWrite, cmdWriteZeroes, cmdTrim}).Draw(rt, "command")
				stream = append(stream, p.request(0, command, i, offset, length)...)
				here := model[offset : offset+uint64(length)]
				switch command {
				case cmdRead:
					batch[i] = sent{command, bytes.Clone(here)}
					continue
				case cmdWrite:
					fill(here, rapid.Byte().Draw(rt, "seed"))
					stream = append(stream, here...)
				default:
					clear(here)
				}
				batch[i] = sent{command: command}
			}
			cuts := rapid.SliceOfN(rapid.IntRange(0, len(stream)), 0, 5).Draw(rt, "cuts")
			go func() {
				for _, cut := range cuts {
					if cut < len(stream) {
						p.Write(stream[:cut])
						stream = stream[cut:]
					}
				}
				p.Write(stream)
			}()
			for len(batch) > 0 {
				a := p.answer(func(cookie uint64) int { return len(batch[cookie].want) })
				s, ok := batch[a.cookie]
				if !ok || a.errno != 0 || !bytes.Equal(a.data, s.want) {
					rt.Fatalf("cookie %d command %d: errno %d, %d bytes, want %d", a.cookie, s.command, a.errno, len(a.data), len(s.want))
				}
				delete(batch, a.cookie)
			}
		})
		if !bytes.Equal(m.snapshot(), model) {
			t.Fatal("the disk is not the model")
		}
	})
}

// numbers returns 0 … n-1.
func numbers(n int) []uint64 {
	s := make([]uint64, n)
	for i := range s {
		s[i] = uint64(i)
	}
	return s
}
