package nbd

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd/nbdtest"
)

// inChunks runs a test with both shapes of a queue and the dialects that have
// chunks.
func inChunks(t *testing.T, test func(t *testing.T, f *fixture, m *memory, p *peer)) {
	shapes(t, Limits{}, func(t *testing.T, f *fixture, m *memory, p *peer) {
		if p.replyMode != simple {
			test(t, f, m, p)
		}
	})
}

// S-3 the chunks of a READ cover it exactly, holes read as zeroes, and a READ
// with DF is one chunk.
func TestHoles(t *testing.T) {
	inChunks(t, func(t *testing.T, f *fixture, m *memory, p *peer) {
		disk := make([]byte, 8<<20)
		put := func(offset, length int, seed byte) {
			fill(disk[offset:offset+length], seed)
			p.want(0, 0, cmdWrite, uint64(offset), uint32(length), disk[offset:offset+length])
		}
		put(1<<20, 64<<10, 1)
		put(1<<20+128<<10, 1, 1)
		put(3<<20, 100<<10, 1)
		for i := range 32 { // every second block
			put(4<<20+i*(128<<10), 512, 3)
		}
		for _, row := range []struct {
			offset, length int
			pieces, holes  int
		}{
			{0, 512, 1, 1},
			{0, 511, 1, 0}, // not worth a hole
			{0, 1 << 20, 1, 1},
			{1 << 20, 64 << 10, 1, 0},
			{1<<20 - 64<<10, 256 << 10, 4, 2},
			{2 << 20, 2 << 20, 3, 2},
			{2<<20 + 4096, 1 << 20, 2, 1},
			{4 << 20, 4 << 20, mostPieces, mostPieces/2 - 1}, // of 64
		} {
			for _, df := range []bool{false, true} {
				flags, want := uint16(0), row.pieces
				if df {
					flags, want = cmdFlagDF, 1
				}
				a := p.do(flags, cmdRead, uint64(row.offset), uint32(row.length))
				if a.errno != 0 || !bytes.Equal(a.data, disk[row.offset:row.offset+row.length]) {
					t.Fatalf("READ of %d at %d: errno %d, wrong data", row.length, row.offset, a.errno)
				}
				if a.pieces != want {
					t.Errorf("READ of %d at %d, DF %v: %d chunks, want %d", row.length, row.offset, df, a.pieces, want)
				}
				if !df && a.holes != row.holes {
					t.Errorf("READ of %d at %d: %d holes, want %d", row.length, row.offset, a.holes, row.holes)
				}
			}
		}
	})
}

// Chunks describe any content of the disk.
func TestPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var data []byte
		for _, n := range rapid.SliceOfN(rapid.IntRange(-200_000, 200_000), 1, 6).Draw(t, "runs") {
			if n < 0 {
				data = append(data, make([]byte, -n)...)
			} else {
				data = append(data, bytes.Repeat([]byte{7}, n)...)
			}
		}
		for len(data) > 0 {
			n, hole := firstPiece(data)
			if n <= 0 || n > len(data) {
				t.Fatalf("piece of %d bytes of %d", n, len(data))
			}
			if hole && len(bytes.Trim(data[:n], "\x00")) != 0 {
				t.Fatal("a hole with data in it")
			}
			data = data[n:]
		}
	})
}

// S-5, S-6: extents are of the range, in order, true, and as few as asked for.
func TestBlockStatus(t *testing.T) {
	const hole = block.Hole | block.Zero
	inChunks(t, func(t *testing.T, f *fixture, m *memory, p *peer) {
		p.want(0, 0, cmdWrite, 1<<20, 64<<10, pattern(64<<10, 1))
		for _, row := range []struct {
			flags          uint16
			offset, length int64
			want           []block.Extent
		}{
			{0, 0, 8 << 20, []block.Extent{{Length: 1 << 20, Flags: hole}, {Length: 64 << 10}, {Length: 7<<20 - 64<<10, Flags: hole}}},
			{cmdFlagReqOne, 0, 8 << 20, []block.Extent{{Length: 1 << 20, Flags: hole}}},
			{cmdFlagReqOne, 0, 4096, []block.Extent{{Length: 4096, Flags: hole}}},
			{cmdFlagFUA, 1<<20 + 1, 1, []block.Extent{{Length: 1}}},
			{0, 1<<20 - 7, 14, []block.Extent{{Length: 7, Flags: hole}, {Length: 7}}},
			{0, 8<<20 - 1, 1, []block.Extent{{Length: 1, Flags: hole}}},
		} {
			a := p.do(row.flags, cmdBlockStatus, uint64(row.offset), uint32(row.length))
			if a.errno != 0 || a.pieces != 1 || !slices.Equal(a.extents, row.want) {
				t.Errorf("flags %#x, %d at %d: errno %d, %d chunks, %v, want %v", row.flags, row.length, row.offset, a.errno, a.pieces, a.extents, row.want)
			}
		}
		for _, row := range []struct {
			flags  uint16
			offset uint64
			length uint32
		}{
			{0, 8 << 20, 1},
			{0, 0, 8<<20 + 1},
			{0, 1 << 63, 512},
			{0, 1<<64 - 256, 512},
			{0, 0, math.MaxUint32},
			{0, 0, 0}, // T-11
			{cmdFlagDF, 0, 512},
			{cmdFlagNoHole, 0, 512},
		} {
			p.want(einval, row.flags, cmdBlockStatus, row.offset, row.length)
		}
		p.wantAlive()
	})
}

// A client may have as many BLOCK_STATUS in flight as other requests, and each
// has a bounded answer.
func TestManyExtents(t *testing.T) {
	inChunks(t, func(t *testing.T, f *fixture, m *memory, p *peer) {
		for i := range uint64(1024) {
			p.want(0, 0, cmdWrite, i*8192, 1, []byte{1})
		}
		const n = 100
		var stream []byte
		for i := range uint64(n) {
			stream = append(stream, p.request(0, cmdBlockStatus, i, 0, 8<<20)...)
		}
		go p.Write(stream)
		for range n {
			a := p.answer(func(uint64) int { return 0 })
			sum := int64(0)
			for _, e := range a.extents {
				sum += e.Length
			}
			if a.errno != 0 || len(a.extents) != maximumExtents || sum != maximumExtents*4096 {
				t.Fatalf("errno %d, %d extents of %d bytes", a.errno, len(a.extents), sum)
			}
		}
		p.wantAlive()
	})
}

// S-5 extents beyond 4 GiB, and the lengths around 2^32.
func TestLargeExtents(t *testing.T) {
	d := nothing{size: 1 << 40}
	f := serve(t, Limits{}, Export{Name: "disk", Device: d})
	p := f.connectExport("disk", extended)
	for _, length := range []uint64{1<<32 - 1, 1 << 32, 1<<32 + 1, 5 << 30, 1 << 40} {
		a := p.ask(extendedRequest(0, cmdBlockStatus, cookie, 0, length), cmdBlockStatus, 0)
		if a.errno != 0 || len(a.extents) != 1 || a.extents[0].Length != int64(length) {
			t.Errorf("length %d: errno %d, %v", length, a.errno, a.extents)
		}
		for _, command := range []uint16{cmdTrim, cmdWriteZeroes, cmdCache} { // S-7
			if a := p.ask(extendedRequest(0, command, cookie, 0, length), command, 0); a.errno != 0 {
				t.Errorf("command %d of %d bytes: errno %d", command, length, a.errno)
			}
		}
	}
	for _, row := range []struct {
		command        uint16
		offset, length uint64
		want           syscall.Errno
	}{
		{cmdTrim, 1, 1 << 40, einval},
		{cmdTrim, 0, math.MaxUint64, einval},
		{cmdTrim, 1 << 39, 1<<64 - 1<<39, einval},
		{cmdWriteZeroes, 4096, 1 << 40, enospc},
		{cmdWriteZeroes, 0, math.MaxUint64, enospc},
		{cmdRead, 0, 1 << 32, einval},
		{cmdRead, 0, 1<<32 + 512, einval},
		{cmdBlockStatus, 0, 1<<40 + 1, einval},
	} {
		if a := p.ask(extendedRequest(0, row.command, cookie, row.offset, row.length), cmdFlush, 0); a.errno != row.want {
			t.Errorf("command %d, %d at %d: errno %d, want %d", row.command, row.length, row.offset, a.errno, row.want)
		}
	}
	q := f.connectExport("disk", structured)
	if a := q.do(0, cmdBlockStatus, 0, math.MaxUint32); a.errno != 0 || a.extents[0].Length != math.MaxUint32 {
		t.Errorf("structured: errno %d, %v", a.errno, a.extents)
	}
}

// S-7 payloads of extended requests.
func TestPayloadFlag(t *testing.T) {
	m := newMemory(8 << 20)
	f := serve(t, Limits{}, Export{Name: "disk", Device: m})
	p := f.connectExport("disk", extended)
	filter := func(length uint64, ids ...uint32) []byte {
		b := be64(length)
		for _, id := range ids {
			b = append(b, be32(id)...)
		}
		return b
	}
	const with = cmdFlagPayloadLen
	for name, row := range map[string]struct {
		flags, command uint16
		length         uint64
		payload        []byte
		want           syscall.Errno
	}{
		"WRITE":                          {with, cmdWrite, 512, make([]byte, 512), 0},
		"WRITE without the flag":         {0, cmdWrite, 512, make([]byte, 512), einval},
		"READ with a payload":            {with, cmdRead, 512, make([]byte, 512), einval},
		"FLUSH with a payload":           {with, cmdFlush, 1, []byte("x"), einval},
		"TRIM with a payload":            {with, cmdTrim, 4096, make([]byte, 4096), einval},
		"CACHE with a payload":           {with, cmdCache, 4096, make([]byte, 4096), einval},
		"unknown command with a payload": {with, 99, 100, make([]byte, 100), einval},
		"FLUSH with an empty payload":    {with, cmdFlush, 0, nil, einval},
		"BLOCK_STATUS":                   {with, cmdBlockStatus, 12, filter(4096, contextID), 0},
		"BLOCK_STATUS and REQ_ONE":       {with | cmdFlagReqOne, cmdBlockStatus, 12, filter(4096, contextID), 0},
		"of an unknown context":          {with, cmdBlockStatus, 12, filter(4096, contextID+1), einval},
		"of a context twice":             {with, cmdBlockStatus, 16, filter(4096, contextID, contextID), einval},
		"of no context":                  {with, cmdBlockStatus, 8, filter(4096), einval},
		"of half a context":              {with, cmdBlockStatus, 10, filter(4096, contextID)[:10], einval},
		"of too little":                  {with, cmdBlockStatus, 4, filter(4096)[:4], einval},
		"of many contexts":               {with, cmdBlockStatus, 4008, filter(4096, make([]uint32, 1000)...), einval},
		"of nothing":                     {with, cmdBlockStatus, 12, filter(0, contextID), einval},
		"beyond the end":                 {with, cmdBlockStatus, 12, filter(8<<20+1, contextID), einval},
		"of 2^64-1":                      {with, cmdBlockStatus, 12, filter(math.MaxUint64, contextID), einval},
		"with an unknown flag":           {with | 0x8000, cmdBlockStatus, 12, filter(4096, contextID), einval},
	} {
		t.Run(name, func(t *testing.T) {
			p.t = t
			a := p.ask(extendedRequest(row.flags, row.command, cookie, 0, row.length), cmdFlush, 0, row.payload)
			if a.errno != row.want || a.offset != 0 {
				t.Errorf("errno %d %q, want %d", a.errno, a.text, row.want)
			}
			if row.want == 0 && row.command == cmdBlockStatus && (len(a.extents) != 1 || a.extents[0].Length != 4096) {
				t.Errorf("extents %v", a.extents)
			}
			p.wantAlive()
		})
	}
	p.t = t
	blind := f.dial()
	blind.greet(bothFlags)
	blind.speak(extended)
	blind.option(optGo, nbdtest.GoData("disk"))
	blind.infos(optGo)
	a := blind.ask(extendedRequest(with, cmdBlockStatus, cookie, 0, 12), cmdFlush, 0, filter(4096, contextID))
	if a.errno != einval || !strings.Contains(a.text, "context") {
		t.Errorf("without contexts: errno %d %q", a.errno, a.text)
	}
	blind.wantAlive()
	for _, length := range []uint64{128<<20 + 1, 1 << 40, math.MaxUint64} {
		p := f.connectExport("disk", extended)
		p.put(extendedRequest(with, cmdTrim, 1, 0, length))
		p.wantEnd()
	}
	p.put(request(0, cmdRead, 1, 0, 512), make([]byte, 4)) // a compact request is bad magic here
	p.wantEnd()
}

// Extents of a disk with a minimum block are whole blocks.
func TestAlignedExtents(t *testing.T) {
	m := newMemory(8 << 20)
	m.info.MinimumBlock, m.info.PreferredBlock = 64<<10, 64<<10
	f := serve(t, Limits{}, Export{Name: "disk", Device: m})
	for _, d := range []replyMode{structured, extended} {
		p := f.connectExport("disk", d)
		m.mu.Lock()
		m.data[128<<10+5000] = 1
		m.mu.Unlock()
		const hole = block.Hole | block.Zero
		want := []block.Extent{{Length: 128 << 10, Flags: hole}, {Length: 64 << 10}, {Length: 8<<20 - 192<<10, Flags: hole}}
		if a := p.do(0, cmdBlockStatus, 0, 8<<20); !slices.Equal(a.extents, want) {
			t.Errorf("%v: %v, want %v", d, a.extents, want)
		}
		if a := p.do(cmdFlagReqOne, cmdBlockStatus, 128<<10, 64<<10); !slices.Equal(a.extents, []block.Extent{{Length: 64 << 10}}) {
			t.Errorf("%v: %v", d, a.extents)
		}
		p.disconnect()
	}
}

// nothing is a disk that does nothing, of any size.
type nothing struct{ size int64 }

func (n nothing) Info() block.Info {
	return block.Info{Size: n.size, MinimumBlock: 1, PreferredBlock: 4096, MaximumPayload: 64 << 20, Features: everything}
}
func (n nothing) Close() error { return nil }
func (n nothing) NewQueue(depth int) (block.Queue, error) {
	return block.NewInlineQueue(depth, 64<<20, func(r *block.Request) error {
		if r.Op == block.Status {
			r.AddExtent(r.Length, 0)
		}
		return nil
	})
}
