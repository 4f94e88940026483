package overlay

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/bits"
	"sync/atomic"
)

// Map is which blocks an overlay has. Blocks are added and never removed: a
// block that was trimmed is a hole of the file, and still the overlay's.
//
// A block that is known costs some loads. Its methods are safe for concurrent
// use; a caller that adds blocks has their range of the disk meanwhile.
type Map struct {
	file   File
	id     [16]byte
	layout Layout
	pages  []atomic.Pointer[page]

	// unsaved are the pages that have blocks which their copies do not have:
	// those that changed, and those that a Save is writing.
	unsaved atomic.Int64

	saving chan struct{} // holds one token; who has it saves
}

// page is a page of the map.
type page struct {
	words   [pageWords]atomic.Uint64
	changed atomic.Bool // since a Save looked at it

	// The saver's.
	sequence uint64
	encoded  [copySize]byte
}

// A copy of a page: CRC-32C of all behind it, then fixed fields and the bits.
const (
	atPageSum      = 0
	atPageMagic    = 4
	atPageSequence = 8
	atPageNumber   = 16
	atPageID       = 24
	atBits         = 64

	pageMagic = 0x70616d76 // vmap
)

// OpenMap reads the map of the overlay that a header describes. Slots that are
// torn are repaired by the next Save. With answered it has the blocks too that
// are the page cache's.
func OpenMap(f File, h *Header, answered bool) (*Map, error) {
	l := LayoutOf(h.Size)
	m := &Map{
		file: f, id: h.ID, layout: l,
		pages:  make([]atomic.Pointer[page], (l.Answered-l.Map)/(2*copySize)),
		saving: make(chan struct{}, 1),
	}
	m.saving <- struct{}{}
	if err := m.load(h.Clean); err != nil {
		return nil, err
	}
	if answered {
		if err := m.loadAnswered(); err != nil {
			return nil, fmt.Errorf("read which blocks were answered: %w", err)
		}
	}
	return m, nil
}

// load reads the pages. A closed overlay has no torn copy.
func (m *Map) load(clean bool) error {
	b := make([]byte, 2*copySize)
	for off := m.layout.Map; ; off += 2 * copySize {
		next, err := m.file.NextData(off)
		if err != nil {
			return fmt.Errorf("read the map: %w", err)
		}
		if next >= m.layout.Answered {
			return nil
		}
		number := (next - m.layout.Map) / (2 * copySize)
		off = m.layout.Map + number*2*copySize
		if err := m.file.ReadAt(b, off); err != nil {
			return fmt.Errorf("read the map: %w", err)
		}
		if err := m.loadPage(number, b, clean); err != nil {
			return err
		}
	}
}

// loadPage takes a page from its two copies.
func (m *Map) loadPage(number int64, copies []byte, clean bool) error {
	var newest uint64
	var from []byte
	var torn int
	for s := range int64(2) {
		b := copies[s*copySize:][:copySize]
		sequence, ok := m.check(b, number, s)
		switch {
		case !ok:
			torn++
		case sequence > newest:
			newest, from = sequence, b
		}
	}
	switch {
	case torn == 2, torn > 0 && clean:
		return fmt.Errorf("%w: page %d of its map is not whole", ErrDamaged, number)
	case from == nil && torn == 0:
		return nil
	}
	p := new(page)
	p.sequence = newest
	if from != nil {
		for i := range p.words {
			p.words[i].Store(binary.LittleEndian.Uint64(from[atBits+8*i:]))
		}
	}
	m.pages[number].Store(p)
	if torn > 0 {
		m.change(p)
	}
	return nil
}

// check returns the sequence number of a copy of a page, 0 if it was never
// written, and whether the copy is whole.
func (m *Map) check(b []byte, number, which int64) (sequence uint64, ok bool) {
	le := binary.LittleEndian
	if isZero(b) {
		return 0, true
	}
	if le.Uint32(b[atPageSum:]) != crc32.Checksum(b[atPageMagic:], castagnoli) || le.Uint32(b[atPageMagic:]) != pageMagic ||
		le.Uint64(b[atPageNumber:]) != uint64(number) || [16]byte(b[atPageID:]) != m.id {
		return 0, false
	}
	sequence = le.Uint64(b[atPageSequence:])
	return sequence, sequence > 0 && sequence%2 == uint64(which) && m.endsInTime(b, number)
}

// endsInTime reports whether a copy has no block behind the end of the disk.
func (m *Map) endsInTime(b []byte, number int64) bool {
	left := m.layout.Blocks - number*pageBlocks
	for i := left / 64; i < pageWords; i++ {
		word := binary.LittleEndian.Uint64(b[atBits+8*i:])
		if i == left/64 {
			word >>= uint(left % 64)
		}
		if word != 0 {
			return false
		}
	}
	return true
}

func isZero(b []byte) bool {
	for ; len(b) >= 8; b = b[8:] {
		if binary.LittleEndian.Uint64(b) != 0 {
			return false
		}
	}
	return true
}

// loadAnswered adds the blocks that are the page cache's.
func (m *Map) loadAnswered() error {
	b := make([]byte, 64<<10)
	for block := int64(0); block < m.layout.Blocks; {
		next, err := m.file.NextData(m.layout.Answered + block)
		if err != nil {
			return err
		}
		if block = next - m.layout.Answered; block >= m.layout.Blocks {
			return nil
		}
		part := b[:min(int64(len(b)), m.layout.Blocks-block)]
		if err := m.file.ReadAt(part, next); err != nil {
			return err
		}
		for i, answered := range part {
			if at := block + int64(i); answered != 0 && !m.Has(at, at) {
				m.Add(at, at)
			}
		}
		block += int64(len(part))
	}
	return nil
}

// spanMask returns the bits of the blocks from first to last in a word.
func spanMask(word, first, last int64) uint64 {
	low, high := max(first-word*64, 0), min(last-word*64, 63)
	return ^uint64(0) << uint(low) & (^uint64(0) >> uint(63-high))
}

// word returns a word of the map.
func (m *Map) word(w int64) uint64 {
	p := m.pages[w/pageWords].Load()
	if p == nil {
		return 0
	}
	return p.words[w%pageWords].Load()
}

// Has reports whether the overlay has all blocks from first to last.
func (m *Map) Has(first, last int64) bool {
	for w := first / 64; w <= last/64; w++ {
		if mask := spanMask(w, first, last); m.word(w)&mask != mask {
			return false
		}
	}
	return true
}

// Run returns whether the overlay has block first, and how many from there to
// last are like it.
func (m *Map) Run(first, last int64) (n int64, has bool) {
	has = m.word(first/64)>>uint(first%64)&1 != 0
	for at := first; at <= last; {
		word := m.word(at/64) >> uint(at%64)
		if has {
			word = ^word
		}
		// Zeroes are shifted in: blocks behind the word count as alike, or are
		// cut off here.
		left := 64 - at%64
		alike := min(int64(bits.TrailingZeros64(word)), left)
		if at += alike; alike < left {
			return min(at, last+1) - first, has
		}
	}
	return last + 1 - first, has
}

// Add adds the blocks from first to last, whose data is in the file.
func (m *Map) Add(first, last int64) {
	for w := first / 64; w <= last/64; w++ {
		p := m.pages[w/pageWords].Load()
		if p == nil {
			p = new(page)
			if !m.pages[w/pageWords].CompareAndSwap(nil, p) {
				p = m.pages[w/pageWords].Load()
			}
		}
		p.words[w%pageWords].Or(spanMask(w, first, last))
		if w == last/64 || (w+1)%pageWords == 0 {
			m.change(p)
		}
	}
}

// change notes that a page has to be saved. The page counts before it is
// marked: who finds it marked may rely on a Save that looks at the count.
func (m *Map) change(p *page) {
	if p.changed.Load() {
		return
	}
	m.unsaved.Add(1)
	if !p.changed.CompareAndSwap(false, true) {
		m.unsaved.Add(-1)
	}
}

// Saved reports whether all blocks that were added are in the copies, durably.
func (m *Map) Saved() bool { return m.unsaved.Load() == 0 }

// Save makes the blocks that were added durable, and their data before them, by
// sync, which makes durable what was written to the file. After an error what
// is durable is not known, and Save is not called again.
func (m *Map) Save(sync func() error) error {
	if m.Saved() {
		return sync()
	}
	<-m.saving
	defer func() { m.saving <- struct{}{} }()
	changed := m.encodeChanged() // before the data is made durable: no later block
	if err := sync(); err != nil || len(changed) == 0 {
		return err
	}
	for _, number := range changed {
		p := m.pages[number].Load()
		off := m.layout.Map + (2*int64(number)+int64(p.sequence%2))*copySize
		if err := m.file.WriteAt(p.encoded[:], off); err != nil {
			return fmt.Errorf("write the map: %w", err)
		}
	}
	if err := sync(); err != nil {
		return err
	}
	m.unsaved.Add(-int64(len(changed)))
	return nil
}

// encodeChanged encodes the pages that changed, and returns their numbers. The
// caller has the token.
func (m *Map) encodeChanged() (changed []int) {
	le := binary.LittleEndian
	for number := range m.pages {
		p := m.pages[number].Load()
		if p == nil || !p.changed.Swap(false) {
			continue
		}
		changed = append(changed, number)
		p.sequence++
		b := p.encoded[:]
		le.PutUint32(b[atPageMagic:], pageMagic)
		le.PutUint64(b[atPageSequence:], p.sequence)
		le.PutUint64(b[atPageNumber:], uint64(number))
		copy(b[atPageID:], m.id[:])
		for i := range p.words {
			le.PutUint64(b[atBits+8*i:], p.words[i].Load())
		}
		le.PutUint32(b[atPageSum:], crc32.Checksum(b[atPageMagic:], castagnoli))
	}
	return changed
}
