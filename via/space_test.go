package via

import (
	"bytes"
	"errors"
	"math/bits"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// spaceModel is an arena as a list of blocks.
type spaceModel struct {
	arena *Arena
	out   []modelBlock
	next  byte
}

type modelBlock struct {
	b     []byte
	off   int
	size  int  // of the block
	stamp byte // what its owner wrote
}

func (m *spaceModel) overlaps(off, size int) bool {
	for _, o := range m.out {
		if off < o.off+o.size && o.off < off+size {
			return true
		}
	}
	return false
}

func (m *spaceModel) alloc(t *rapid.T) {
	n := rapid.OneOf(rapid.IntRange(1, 300), rapid.IntRange(1, len(m.arena.bytes)+1)).Draw(t, "n")
	size := max(leastBlock, 1<<bits.Len(uint(n-1)))
	fits := false
	for off := 0; !fits && off+size <= len(m.arena.bytes); off += size {
		fits = !m.overlaps(off, size)
	}
	b, err := m.arena.Alloc(n)
	if !fits {
		if !errors.Is(err, ErrResource) {
			t.Fatalf("alloc of %d bytes, for which there is no room: %v", n, err)
		}
		return
	}
	off := int(addressOf(b) - m.arena.base)
	switch {
	case err != nil:
		t.Fatalf("alloc of %d bytes, for which there is room: %v", n, err)
	case len(b) != n || cap(b) != n || off%size != 0 || off+size > len(m.arena.bytes):
		t.Fatalf("alloc of %d bytes: %d (capacity %d) at %d", n, len(b), cap(b), off)
	case m.overlaps(off, size):
		t.Fatalf("alloc of %d bytes at %d overlaps", n, off)
	}
	m.next++
	for i := range b {
		b[i] = m.next
	}
	m.out = append(m.out, modelBlock{b, off, size, m.next})
}

// free frees a block, whose contents must be unchanged, and tries to free it
// again.
func (m *spaceModel) free(t *rapid.T, i int) {
	o := m.out[i]
	if bytes.Count(o.b, []byte{o.stamp}) != len(o.b) {
		t.Fatalf("the block at %d was written to", o.off)
	}
	if err := m.arena.Free(o.b[:rapid.IntRange(0, len(o.b)).Draw(t, "beginning")]); err != nil {
		t.Fatal(err)
	}
	m.out = append(m.out[:i], m.out[i+1:]...)
	if err := m.arena.Free(o.b); !errors.Is(err, ErrInvalidParameter) {
		t.Fatalf("double free: %v", err)
	}
}

// freeInvalid frees what is no block's beginning.
func (m *spaceModel) freeInvalid(t *rapid.T) {
	off := rapid.IntRange(0, len(m.arena.bytes)-1).Draw(t, "off")
	for _, o := range m.out {
		if o.off == off {
			return
		}
	}
	if err := m.arena.Free(m.arena.bytes[off : off+1 : off+1]); !errors.Is(err, ErrInvalidParameter) {
		t.Fatalf("free at %d, where no block begins: %v", off, err)
	}
}

// Blocks of an arena are aligned, do not overlap, keep what is written to them,
// and join when they are free.
func TestArenaAgainstModel(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	rapid.Check(t, func(rt *rapid.T) {
		size := leastBlock * rapid.OneOf(rapid.IntRange(1, 200), rapid.SampledFrom([]int{64, 128, 1024})).Draw(rt, "units")
		arena, err := b.nic.NewArena(size)
		b.must(err)
		m := &spaceModel{arena: arena}
		rt.Repeat(map[string]func(*rapid.T){
			"alloc": m.alloc,
			"free": func(t *rapid.T) {
				if len(m.out) > 0 {
					m.free(t, rapid.IntRange(0, len(m.out)-1).Draw(t, "which"))
				}
			},
			"freeInvalid": m.freeInvalid,
		})
		for len(m.out) > 0 {
			m.free(rt, len(m.out)-1)
		}
		for left := size; left > 0; { // all of it, in one block for each binary digit
			block := 1 << (bits.Len(uint(left)) - 1)
			if _, err := arena.Alloc(block); err != nil {
				rt.Fatalf("%d of %d bytes are left and %d in one block are not there: %v", left, size, block, err)
			}
			left -= block
		}
		if _, err := arena.Alloc(1); !errors.Is(err, ErrResource) {
			rt.Fatalf("alloc of an arena that is all out: %v", err)
		}
		b.must(arena.Close())
	})
}

func TestArenaRefusals(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	arena, other := b.arena(4096), b.arena(4096)
	foreign, err := other.Alloc(64)
	b.must(err)
	block, err := arena.Alloc(100)
	b.must(err)
	for name, bytes := range map[string][]byte{
		"nothing": nil, "no bytes": {}, "of the heap": make([]byte, 64), "of another arena": foreign,
		"of the middle": block[64:], "longer than the block": arena.Bytes()[:4096],
	} {
		b.wants(arena.Free(bytes), ErrInvalidParameter, "free "+name)
	}
	b.wants(b.arena(4096).Free(foreign), ErrInvalidParameter, "free before the first alloc")
	for _, n := range []int{0, -1} {
		_, err := arena.Alloc(n)
		b.wants(err, ErrInvalidParameter, "alloc of no bytes")
	}
	_, err = arena.Alloc(4097)
	b.wants(err, ErrResource, "alloc of more than there is")
	b.must(arena.Free(block))
	whole, err := arena.Alloc(4096)
	b.must(err)
	b.must(arena.Close())
	_, err = arena.Alloc(1)
	b.wants(err, ErrInvalidParameter, "alloc of an unmapped arena")
	b.wants(arena.Free(whole), ErrInvalidParameter, "free into an unmapped arena")
}

func (b *bench) arena(size int) *Arena {
	b.t.Helper()
	arena, err := b.nic.NewArena(size)
	b.must(err)
	return arena
}

// Large arenas have larger blocks, so that their books stay small.
func TestBooksOfALargeArena(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	b.nic.limits.MaxRegisterBytes = 1 << 40
	arena := &Arena{nic: b.nic, bytes: make([]byte, mostBlocks*leastBlock+4096)}
	arena.base = addressOf(arena.bytes)
	if _, err := arena.Alloc(1); err != nil {
		t.Fatal(err)
	}
	if free := arena.space.blocks.Available(); free != mostBlocks*leastBlock+4096-2*leastBlock {
		t.Errorf("%d bytes are free", free)
	}
}

// Descriptors, headers and payload of a connection come from one registration.
func TestOneRegistrationForAConnection(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	arena := b.mem.Arena()
	b.connect()
	before := b.nic.Agent().Calls()
	place, err := arena.Alloc(DescriptorSize(1))
	b.must(err)
	payload, err := arena.Alloc(5000)
	b.must(err)
	d, err := b.mem.NewDescriptor(int(addressOf(place)-b.mem.Addr()), len(place))
	b.must(err)
	d.Reset(OpSend)
	d.AddSegment(addressOf(payload), b.mem.Handle(), uint32(len(payload)))
	b.must(b.vi.PostSend(d))
	if len(b.link.sends) != 1 || len(b.link.sends[0].Segments[0].Bytes) != 5000 {
		t.Errorf("the link has %d sends", len(b.link.sends))
	}
	if calls := b.nic.Agent().Calls() - before; calls != 0 {
		t.Errorf("%d calls of the agent", calls)
	}
}

// Goroutines share an arena: no block is allocated twice.
func TestArenaConcurrently(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	arena := b.arena(1 << 16)
	var wg sync.WaitGroup
	for g := range byte(4) {
		wg.Go(func() {
			for i := range 500 {
				block, err := arena.Alloc(1 + i*7%4000)
				if err != nil {
					t.Error(err)
					return
				}
				for k := range block {
					block[k] = g
				}
				if bytes.Count(block, []byte{g}) != len(block) {
					t.Error("a block is written to by two")
				}
				if err := arena.Free(block); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if _, err := arena.Alloc(1 << 16); err != nil {
		t.Error(err)
	}
	b.must(arena.Close())
}
