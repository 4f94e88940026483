package shm

import "github.com/viablk/viablk/via"

// peerMemory is the memory that the peer exposes to this end: the table of
// regions in the peer's segment, and the peer's arenas. The driver of the
// sender owns it, but for arenas, to which the control agent adds.
type peerMemory struct {
	local   *segment // has this end's hazard word
	peer    *segment // has the table
	arenas  peerArenas
	awaited *peerArena // the newest arena when translate looked last
	cache   [4]mapping // recent translations
}

// mapping is a validated translation of a region of the peer. It is valid while
// the region's table word stays the same.
type mapping struct {
	word  uint64 // handle and access, as in the table; 0 is empty
	addr  uint64
	bytes []byte // the region in this process
}

// accessResult is the outcome of one access to the peer's memory.
type accessResult int

const (
	granted   accessResult = iota
	refused                // unknown region, out of bounds or not allowed
	unknown                // exposed, but its arena has not arrived yet
	localGone              // local memory was deregistered
	damaged                // a faulty fabric changed the bytes
)

// translate returns the mapping in this process of a work's remote range.
func (p *peerMemory) translate(w *via.Work) (*mapping, accessResult) {
	if w.RemoteHandle&0xffff >= maxRegions {
		return nil, refused
	}
	need := uint64(entryLive | entryWrite)
	if w.Op == via.OpRdmaRead {
		need = entryLive | entryRead
	}
	word := loadWord(p.peer.mem, entryOffset(w.RemoteHandle))
	if uint32(word>>32) != w.RemoteHandle || word&need != need {
		return nil, refused
	}
	m := &p.cache[w.RemoteHandle%uint32(len(p.cache))]
	if m.word != word {
		if o := p.load(m, word); o != granted {
			return nil, o
		}
	}
	at := w.RemoteAddr - m.addr
	if w.RemoteAddr < m.addr || at > uint64(len(m.bytes)) || uint64(w.Length) > uint64(len(m.bytes))-at {
		return nil, refused
	}
	return m, granted
}

// load loads each word of a table entry once and validates the entry against
// the arenas that the peer passed.
func (p *peerMemory) load(m *mapping, word uint64) accessResult {
	at := entryOffset(uint32(word >> 32))
	addr := loadWord(p.peer.mem, at+offEntryAddr)
	length := loadWord(p.peer.mem, at+offEntryLength)
	id := loadWord(p.peer.mem, at+offEntryArena)
	off := loadWord(p.peer.mem, at+offEntryAt)
	if loadWord(p.peer.mem, at) != word {
		return refused
	}
	p.awaited = p.arenas.head.Load()
	a := p.arenas.find(id)
	if a == nil {
		return unknown
	}
	size := uint64(len(a.mem))
	if off > size || length > size-off || addr+length < addr {
		return refused
	}
	*m = mapping{word: word, addr: addr, bytes: a.mem[off : off+length]}
	return granted
}

// begin begins an access. The hazard word names the region until end. begin
// loads the region's table word after the hazard is visible: its owner either
// sees the hazard and waits, or has withdrawn the region before. In the latter
// case begin returns false, and the caller forgets the mapping.
func (p *peerMemory) begin(m *mapping) bool {
	handle := uint32(m.word >> 32)
	storeWord(p.local.mem, offHazard, hazardOf(handle))
	return loadWord(p.peer.mem, entryOffset(handle)) == m.word
}

// forget ends the access to a region that was withdrawn.
func (p *peerMemory) forget(m *mapping) {
	m.word = 0
	p.end()
}

// valid reports, after end, whether the region was exposed during the whole
// access. If not, its owner may have reused the memory meanwhile, for a process
// that was stopped amid a copy takes any time: the bytes are another's.
func (p *peerMemory) valid(m *mapping) bool {
	return loadWord(p.peer.mem, entryOffset(uint32(m.word>>32))) == m.word
}

// end ends an access.
func (p *peerMemory) end() { publishWord(p.local.mem, offHazard, 0) }

// arrived reports whether an arena has arrived since translate looked last.
func (p *peerMemory) arrived() bool { return p.arenas.head.Load() != p.awaited }

// sweep unmaps the arenas that the peer closed.
func (p *peerMemory) sweep() {
	if p.arenas.stale.Load() {
		p.arenas.sweep()
		p.cache = [len(p.cache)]mapping{}
	}
}

func entryOffset(handle uint32) int { return offRegions + int(handle&0xffff)*regionEntry }
