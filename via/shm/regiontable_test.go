package shm

import (
	"encoding/binary"
	"testing"

	"github.com/viablk/viablk/via"
)

// FuzzTranslate gives translate an arbitrary table entry and operation: a
// granted range lies inside the arena and is the one of the entry.
func FuzzTranslate(f *testing.F) {
	const handle, arenaBytes = 0x00050003, 1 << 16
	entry := func(words ...uint64) []byte {
		b := make([]byte, regionEntry)
		for i, w := range words {
			binary.LittleEndian.PutUint64(b[8*i:], w)
		}
		return b
	}
	live := uint64(handle)<<32 | entryLive | entryRead | entryWrite
	f.Add(entry(live, 0x1000, 4096, 1, 0), uint32(handle), uint64(0x1000), uint32(64), false)
	f.Add(entry(live, 0x1000, arenaBytes, 1, 0), uint32(handle), uint64(0x1000), uint32(arenaBytes), true)
	f.Add(entry(live, ^uint64(0)-10, 4096, 1, 0), uint32(handle), ^uint64(0)-5, uint32(64), true)
	f.Add(entry(live, 0, ^uint64(0), 1, 1), uint32(handle), uint64(1)<<40, uint32(1), false)
	f.Add(entry(live, 0x1000, 4096, 2, 0), uint32(handle), uint64(0x1000), uint32(64), false)
	f.Add(entry(live, 0x1000, 4096, 1, ^uint64(0)), uint32(0x1ffff), uint64(0x1000), uint32(64), false)
	shared := make([]byte, segmentSize)
	mem := make([]byte, arenaBytes)
	f.Fuzz(func(t *testing.T, b []byte, handle uint32, addr uint64, length uint32, read bool) {
		table := make([]byte, regionEntry)
		copy(table, b)
		if place := int(handle & 0xffff); place < maxRegions {
			copy(shared[offRegions+place*regionEntry:], table)
		}
		w := &via.Work{Op: via.OpRdmaWrite, Length: length, RemoteAddr: addr, RemoteHandle: handle}
		need := uint64(entryLive | entryWrite)
		if read {
			w.Op, need = via.OpRdmaRead, entryLive|entryRead
		}
		peer := &segment{mem: shared, fd: -1}
		p := &peerMemory{peer: peer}
		p.arenas.head.Store(&peerArena{id: 1, mem: mem})
		for range 2 { // the second time from the cache
			m, o := p.translate(w)
			if o != granted {
				continue
			}
			word := binary.LittleEndian.Uint64(table)
			base, size := binary.LittleEndian.Uint64(table[8:]), binary.LittleEndian.Uint64(table[16:])
			at := binary.LittleEndian.Uint64(table[32:])
			if word&need != need || uint32(word>>32) != handle || handle&0xffff >= maxRegions {
				t.Fatalf("granted by entry %#x", word)
			}
			off := addr - base
			if addr < base || off+uint64(length) > size || at+size > arenaBytes || addr+uint64(length) < addr {
				t.Fatalf("granted %d bytes at %#x of [%#x, +%#x) at %#x", length, addr, base, size, at)
			}
			got := m.bytes[off : off+uint64(length)]
			if len(got) > 0 && &got[0] != &mem[at+off] {
				t.Fatal("granted other memory than the entry says")
			}
		}
	})
}
