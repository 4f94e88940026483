package nbdclient

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// bench is a decoder with three requests: a read, a write and a status, which
// were sent.
type bench struct {
	decoder  *decoder
	slots    []slot
	memory   []byte // of the read, between two guards
	finished []uint16
	buffered int // bytes received into the decoder's own memory
}

const (
	readOffset = 1 << 20
	half       = largeData
	readLength = 2 * half
	guard      = 512 // bytes on either side of the memory of the read
	context7   = 7
)

func newBench(mode replyMode) *bench {
	b := &bench{slots: make([]slot, 4), memory: bytes.Repeat([]byte{0xA5}, guard+readLength+guard)}
	requests := []*block.Request{
		{Op: block.Read, Offset: readOffset, Length: readLength, Data: b.memory[guard : guard+readLength : guard+readLength]},
		{Op: block.Write, Offset: 4096, Length: 4096, Data: make([]byte, 4096)},
		{Op: block.Status, Offset: 0, Length: 1 << 20, Extents: make([]block.Extent, 0, 8)},
	}
	for i, r := range requests {
		b.slots[i] = slot{r: r, end: r.Length, state: slotSent, cookie: cookieOf(i)}
	}
	b.decoder = newDecoder(mode, b.slots, func(i uint16) { b.finished = append(b.finished, i) })
	b.decoder.context, b.decoder.hasContext = context7, mode != simpleReplies
	return b
}

// cookieOf is the cookie of a request of a bench.
func cookieOf(i int) uint64 { return 5<<slotBits | uint64(i) }

// feed has the decoder receive p, in parts of at most step bytes.
func (b *bench) feed(p []byte, step int) error {
	for len(p) > 0 {
		first, rest := b.decoder.room()
		direct := len(b.decoder.dest)
		n := copy(first, p[:min(len(p), step)])
		if n == len(first) && len(rest) > 0 {
			n += copy(rest, p[n:min(len(p), step)])
		}
		if n == 0 {
			return errors.New("the decoder has no room")
		}
		p = p[n:]
		b.buffered += max(0, n-direct)
		if err := b.decoder.received(n); err != nil {
			return err
		}
	}
	return nil
}

// intact reports whether nothing was written around the memory of the read.
func (b *bench) intact() bool {
	want := bytes.Repeat([]byte{0xA5}, guard)
	return bytes.Equal(b.memory[:guard], want) && bytes.Equal(b.memory[guard+readLength:], want)
}

// be is big-endian numbers and bytes, one after another.
func be(parts ...any) []byte {
	var p []byte
	for _, x := range parts {
		p, _ = binary.Append(p, binary.BigEndian, x) // of fixed sizes: never fails
	}
	return p
}

// simpleReply is a reply without chunks.
func simpleReply(number uint32, i int, data ...byte) []byte {
	return be(magicSimpleReply, number, cookieOf(i), data)
}

// chunkOf is a chunk of a reply.
func chunkOf(flags, kind uint16, i int, payload ...any) []byte {
	p := be(payload...)
	return be(magicChunk, flags, kind, cookieOf(i), uint32(len(p)), p)
}

// extendedOf is a chunk with an extended header.
func extendedOf(flags, kind uint16, i int, offset uint64, payload ...any) []byte {
	p := be(payload...)
	return be(magicExtendedReply, flags, kind, cookieOf(i), offset, uint64(len(p)), p)
}

// content is what the read returns.
func content(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*7 + i>>8)
	}
	return p
}

// TestReplies decodes what servers send, cut in every way.
func TestReplies(t *testing.T) {
	data := content(readLength)
	holed := slices.Concat(data[:half], make([]byte, half))
	for _, c := range []struct {
		name    string
		mode    replyMode
		reply   []byte
		ends    []uint16
		data    []byte
		extents []block.Extent
		err     error
	}{
		{name: "simple", reply: slices.Concat(simpleReply(0, 1), simpleReply(0, 0, data...)), ends: []uint16{1, 0}, data: data},
		{name: "simple error", reply: simpleReply(28, 0), ends: []uint16{0}, err: unix.ENOSPC},
		{name: "unknown error", reply: simpleReply(4711, 0), ends: []uint16{0}, err: unix.EIO},
		{
			name: "chunks", mode: chunkedReplies, ends: []uint16{1, 0}, data: data,
			reply: slices.Concat(
				chunkOf(0, chunkData, 0, uint64(readOffset+half), data[half:]),
				chunkOf(chunkDone, chunkNone, 1),
				chunkOf(0, chunkData, 0, uint64(readOffset), data[:half]),
				chunkOf(chunkDone, chunkNone, 0)),
		},
		{
			name: "hole", mode: chunkedReplies, ends: []uint16{0}, data: holed,
			reply: slices.Concat(
				chunkOf(0, chunkData, 0, uint64(readOffset), data[:half]),
				chunkOf(chunkDone, chunkHole, 0, uint64(readOffset+half), uint32(half))),
		},
		{
			name: "error with text behind data", mode: chunkedReplies, ends: []uint16{0}, err: unix.EIO,
			reply: slices.Concat(
				chunkOf(0, chunkData, 0, uint64(readOffset), data[:half]),
				chunkOf(chunkDone, chunkErrorBit|2, 0, uint32(5), uint16(4), []byte("disk"), uint64(readOffset+half))),
		},
		{
			name: "unknown kind of error", mode: chunkedReplies, ends: []uint16{1}, err: unix.EPERM,
			reply: chunkOf(chunkDone, chunkErrorBit|99, 1, uint32(1), uint16(0), uint16(3)),
		},
		{
			name: "status", mode: chunkedReplies, ends: []uint16{2},
			extents: []block.Extent{{Length: 65536, Flags: 0}, {Length: 1<<20 - 65536, Flags: block.Hole | block.Zero}},
			reply:   chunkOf(chunkDone, chunkStatus, 2, uint32(context7), uint32(65536), uint32(0), uint32(1<<31), uint32(3|1<<30)),
		},
		{
			name: "extended", mode: extendedReplies, ends: []uint16{0, 2}, data: data,
			extents: []block.Extent{{Length: 1 << 20, Flags: block.Zero}},
			reply: slices.Concat(
				extendedOf(chunkDone, chunkData, 0, readOffset, uint64(readOffset), data),
				extendedOf(chunkDone, chunkStatusExt, 2, 0, uint32(context7), uint32(1), uint64(1<<40), uint64(2))),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, step := range []int{1, 3, 28, 4096, 1 << 20} {
				b := newBench(c.mode)
				if err := b.feed(c.reply, step); err != nil {
					t.Fatalf("in parts of %d: %v", step, err)
				}
				if !slices.Equal(b.finished, c.ends) {
					t.Fatalf("in parts of %d: finished %v, want %v", step, b.finished, c.ends)
				}
				if got := b.slots[c.ends[0]].err; !errors.Is(got, c.err) || (got == nil) != (c.err == nil) {
					t.Errorf("in parts of %d: error %v, want %v", step, got, c.err)
				}
				if c.data != nil && !bytes.Equal(b.memory[guard:guard+readLength], c.data) {
					t.Errorf("in parts of %d: other data", step)
				}
				if !slices.Equal(b.slots[2].r.Extents, c.extents) {
					t.Errorf("in parts of %d: extents %v, want %v", step, b.slots[2].r.Extents, c.extents)
				}
				if !b.intact() {
					t.Errorf("in parts of %d: memory around the read has changed", step)
				}
			}
		})
	}
}

// TestLargeDataIsNotCopied: in a row of replies with much data, only headers go
// through the memory of the decoder.
func TestLargeDataIsNotCopied(t *testing.T) {
	data := content(readLength)
	replies := [...]func(i int) []byte{
		simpleReplies:   func(i int) []byte { return simpleReply(0, i, data...) },
		chunkedReplies:  func(i int) []byte { return chunkOf(chunkDone, chunkData, i, uint64(readOffset), data) },
		extendedReplies: func(i int) []byte { return extendedOf(chunkDone, chunkData, i, readOffset, uint64(readOffset), data) },
	}
	for mode, reply := range replies {
		b := newBench(replyMode(mode))
		for i := range b.slots {
			r := &block.Request{Op: block.Read, Offset: readOffset, Length: readLength, Data: make([]byte, readLength)}
			b.slots[i] = slot{r: r, end: r.Length, state: slotSent, cookie: cookieOf(i)}
		}
		if err := b.feed(reply(0), 1<<20); err != nil {
			t.Fatal(err)
		}
		b.buffered = 0
		if err := b.feed(slices.Concat(reply(1), reply(2), reply(3)), 1<<20); err != nil {
			t.Fatal(err)
		}
		if want := 3 * headers[mode]; b.buffered != want || len(b.finished) != 4 {
			t.Errorf("mode %d: %d bytes were buffered of %d replies, want %d of 4", mode, b.buffered, len(b.finished), want)
		}
	}
}

// TestLies has servers break the protocol: the decoder says so, and touches no
// memory outside of the request.
func TestLies(t *testing.T) {
	at := uint64(readOffset)
	part := content(half)
	for _, c := range []struct {
		name  string
		mode  replyMode
		reply []byte
		want  string
	}{
		{"magic", simpleReplies, be(uint64(0), uint64(0)), "begins with"},
		{"chunk without agreement", simpleReplies, chunkOf(chunkDone, chunkNone, 1), "begins with"},
		{"compact chunk", extendedReplies, chunkOf(chunkDone, chunkNone, 1), "begins with"},
		{"simple reply to extended headers", extendedReplies, simpleReply(0, 1), "begins with"},
		{"cookie of another piece", simpleReplies, be(magicSimpleReply, uint32(0), uint64(6<<slotBits|1)), "cookie"},
		{"cookie of a free slot", simpleReplies, simpleReply(0, 3), "cookie"},
		{"cookie without slot", simpleReplies, simpleReply(0, 4), "cookie"},
		{"cookie of no slot", simpleReplies, be(magicSimpleReply, uint32(0), ^uint64(0)), "cookie"},
		{"reply twice", simpleReplies, slices.Concat(simpleReply(0, 1), simpleReply(0, 1)), "cookie"},
		{"status without chunks", simpleReplies, simpleReply(0, 2), "without chunks"},
		{"read without chunks", chunkedReplies, simpleReply(0, 0), "without chunks"},
		{"chunks, then none", chunkedReplies, slices.Concat(chunkOf(0, chunkHole, 0, at, uint32(1)), simpleReply(5, 0)), "ends without"},
		{"data before the read", chunkedReplies, chunkOf(0, chunkData, 0, at-1, part), "answered by"},
		{"data behind the read", chunkedReplies, chunkOf(0, chunkData, 0, at+readLength-4095, part), "answered by"},
		{"data far behind", chunkedReplies, chunkOf(0, chunkData, 0, ^uint64(0)-4095, part), "answered by"},
		{"more data than was read", chunkedReplies, be(magicChunk, uint16(0), chunkData, cookieOf(0), uint32(8+readLength+1), at), "type 1"},
		{"4 GiB of data", chunkedReplies, be(magicChunk, uint16(0), chunkData, cookieOf(0), ^uint32(0), at), "type 1"},
		{"2⁶⁴ bytes of data", extendedReplies, be(magicExtendedReply, uint16(0), chunkData, cookieOf(0), at, ^uint64(0), at), "type 1"},
		{"no data", chunkedReplies, chunkOf(0, chunkData, 0, at), "type 1"},
		{"data for a write", chunkedReplies, chunkOf(0, chunkData, 1, uint64(4096), part), "type 1"},
		{"same data twice", chunkedReplies, slices.Concat(chunkOf(0, chunkData, 0, at, part), chunkOf(0, chunkData, 0, at+4095, part)), "twice"},
		{"hole over data", chunkedReplies, slices.Concat(chunkOf(0, chunkData, 0, at, part), chunkOf(0, chunkHole, 0, at, uint32(8192))), "twice"},
		{"empty hole", chunkedReplies, chunkOf(0, chunkHole, 0, at, uint32(0)), "answered by"},
		{"huge hole", chunkedReplies, chunkOf(0, chunkHole, 0, at, ^uint32(0)), "answered by"},
		{"long hole chunk", chunkedReplies, chunkOf(0, chunkHole, 0, at, uint32(1), uint32(1)), "type 2"},
		{"half the data", chunkedReplies, chunkOf(chunkDone, chunkData, 0, at, part), "in whole"},
		{"no data at all", chunkedReplies, chunkOf(chunkDone, chunkNone, 0), "in whole"},
		{"none in the middle", chunkedReplies, chunkOf(0, chunkNone, 1), "type 0"},
		{"none with payload", chunkedReplies, chunkOf(chunkDone, chunkNone, 1, uint8(0)), "type 0"},
		{"unknown chunk", chunkedReplies, chunkOf(chunkDone, 77, 1), "type 77"},
		{"error without error", chunkedReplies, chunkOf(chunkDone, chunkErrorBit|1, 1, uint32(0), uint16(0)), "error chunk"},
		{"error with less text", chunkedReplies, chunkOf(chunkDone, chunkErrorBit|1, 1, uint32(5), uint16(9), []byte("short")), "error chunk"},
		{"short error", chunkedReplies, chunkOf(chunkDone, chunkErrorBit|1, 1, uint32(5)), "type 32769"},
		{"long error", chunkedReplies, be(magicChunk, chunkDone, chunkErrorBit|1, cookieOf(1), uint32(1<<30)), "type 32769"},
		{"status of another context", chunkedReplies, chunkOf(chunkDone, chunkStatus, 2, uint32(8), uint32(1), uint32(0)), "context 8"},
		{"status without extents", chunkedReplies, chunkOf(chunkDone, chunkNone, 2), "without extents"},
		{"status of nothing", chunkedReplies, chunkOf(chunkDone, chunkStatus, 2, uint32(context7), uint32(0), uint32(0)), "0 bytes"},
		{"status twice", chunkedReplies, slices.Concat(
			chunkOf(0, chunkStatus, 2, uint32(context7), uint32(1), uint32(0)),
			chunkOf(0, chunkStatus, 2, uint32(context7), uint32(1), uint32(0))), "type 5"},
		{"status of a read", chunkedReplies, chunkOf(chunkDone, chunkStatus, 0, uint32(context7), uint32(1), uint32(0)), "type 5"},
		{"half an extent", chunkedReplies, chunkOf(chunkDone, chunkStatus, 2, uint32(context7), uint32(1), uint32(0), uint32(1)), "type 5"},
		{"too many extents", chunkedReplies, be(magicChunk, chunkDone, chunkStatus, cookieOf(2), uint32(4+8*(maximumExtents+1))), "type 5"},
		{"long extended status", chunkedReplies, chunkOf(chunkDone, chunkStatusExt, 2, uint32(context7), uint32(1), uint64(1), uint64(0)), "type 6"},
		{"compact extended status", extendedReplies, extendedOf(chunkDone, chunkStatus, 2, 0, uint32(context7), uint32(1), uint32(0)), "type 5"},
		{"other count of extents", extendedReplies, extendedOf(chunkDone, chunkStatusExt, 2, 0, uint32(context7), uint32(2), uint64(1), uint64(0)), "says that"},
		{"negative extent", extendedReplies, extendedOf(chunkDone, chunkStatusExt, 2, 0, uint32(context7), uint32(1), ^uint64(0), uint64(0)), "extent of"},
		{"other offset", extendedReplies, extendedOf(chunkDone, chunkNone, 1, 0), "offset"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, step := range []int{1, 1 << 20} {
				b := newBench(c.mode)
				err := b.feed(c.reply, step)
				var lie *errProtocol
				if !errors.As(err, &lie) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("in parts of %d: %v, want an error with %q", step, err, c.want)
				}
				if !b.intact() {
					t.Errorf("in parts of %d: memory around the read has changed", step)
				}
				if slices.Contains(b.finished, 0) || slices.Contains(b.finished, 2) {
					t.Errorf("in parts of %d: %v finished", step, b.finished)
				}
			}
		})
	}
}

// TestCoverage compares a coverage with a table of bytes.
func TestCoverage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 64
		var c coverage
		var table [size]bool
		for range rapid.IntRange(1, 40).Draw(t, "chunks") {
			off := rapid.IntRange(0, size-1).Draw(t, "off")
			n := rapid.IntRange(1, size-off).Draw(t, "n")
			free := !slices.Contains(table[off:off+n], true)
			if got := c.add(int64(off), int64(n)); got != free {
				t.Fatalf("add %d bytes at %d: %v, want %v", n, off, got, free)
			}
			for i := off; free && i < off+n; i++ {
				table[i] = true
			}
			if whole := !slices.Contains(table[:], false); c.whole(size) != whole {
				t.Fatalf("whole is %v, want %v", !whole, whole)
			}
		}
	})
}

// TestFragmentsAreBounded: a server cannot make the client keep any number of
// pieces.
func TestFragmentsAreBounded(t *testing.T) {
	var c coverage
	for i := range int64(maximumRuns) {
		if !c.add(2*i, 1) {
			t.Fatalf("fragment %d is refused", i)
		}
	}
	if c.add(2*maximumRuns, 1) {
		t.Error("the coverage grows without end")
	}
	if !c.add(1, 1) {
		t.Error("a fragment that closes a gap is refused")
	}
}

// FuzzReplies decodes any bytes: whatever they are, memory around a request
// stays as it was, the same request is not finished twice, and how the bytes
// are cut makes no difference.
func FuzzReplies(f *testing.F) {
	f.Add(uint8(0), simpleReply(0, 1))
	f.Add(uint8(0), simpleReply(0, 0, content(readLength)...))
	f.Add(uint8(1), chunkOf(chunkDone, chunkData, 0, uint64(readOffset), content(readLength)))
	f.Add(uint8(1), chunkOf(chunkDone, chunkHole, 0, uint64(readOffset), uint32(readLength)))
	f.Add(uint8(1), chunkOf(chunkDone, chunkErrorBit|1, 1, uint32(5), uint16(2), []byte("no")))
	f.Add(uint8(1), chunkOf(chunkDone, chunkStatus, 2, uint32(context7), uint32(4096), uint32(3)))
	f.Add(uint8(2), extendedOf(chunkDone, chunkStatusExt, 2, 0, uint32(context7), uint32(1), uint64(4096), uint64(3)))
	f.Fuzz(func(t *testing.T, mode uint8, p []byte) {
		m := replyMode(mode % 3)
		var outcome string
		for _, step := range []int{1 << 20, 7, 1} {
			b := newBench(m)
			err := b.feed(p, step)
			if !b.intact() {
				t.Fatal("memory around the read has changed")
			}
			finished := slices.Clone(b.finished)
			slices.Sort(finished)
			if len(slices.Compact(finished)) != len(b.finished) {
				t.Fatalf("a request is finished twice: %v", b.finished)
			}
			if slices.Contains(b.finished, 2) && b.slots[2].err == nil && b.slots[2].r.Covered() == 0 {
				t.Fatal("a status is finished without extents")
			}
			got := fmt.Sprintf("%v %v %v %x", err, b.finished, b.slots[2].r.Extents, b.memory)
			if outcome == "" {
				outcome = got
			}
			if got != outcome {
				t.Fatalf("in parts of %d: %.200s, and as a whole %.200s", step, got, outcome)
			}
		}
	})
}
