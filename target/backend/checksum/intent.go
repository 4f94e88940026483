package checksum

import (
	"fmt"
	"hash/crc32"
)

// Intent says which regions may differ from their sums. One goroutine at a time
// uses it.
type Intent struct {
	file  File
	id    [16]byte
	pages []intentPage
}

// intentPage is the marks of a group.
type intentPage struct {
	words    [groupWords]uint64
	sequence uint64 // of the copy that was written last; 0 is none
	changed  bool   // since then
	unsynced bool   // that copy may not be durable
}

// The encoding of a copy, little-endian: CRC-32C of all behind it, and a bit
// for each region from atBits on, the first lowest. Sequence number n is in
// copy n mod 2.
const (
	intentMagic = 'v' | 'i'<<8 | 'n'<<16 | 't'<<24

	atIntentMagic    = 4
	atIntentSequence = 8
	atIntentGroup    = 16
	atIntentID       = 24
	atBits           = 64
)

// OpenIntent reads the marks of a file.
func OpenIntent(f File, h *Header) (*Intent, error) {
	n := groups(Regions(h.Size))
	t := &Intent{file: f, id: h.ID, pages: make([]intentPage, n)}
	for group := range n {
		if err := t.load(group); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// load reads the newer copy of a group. A crash amid the first write leaves a
// copy that is not whole beside an empty one: nothing is marked then.
func (t *Intent) load(group int64) error {
	b := make([]byte, 2*copySize)
	if err := t.file.ReadAt(b, intentAt(group)); err != nil {
		return fmt.Errorf("read the marks of regions: %w", err)
	}
	p := &t.pages[group]
	broken := 0
	for i := range int64(2) {
		c := b[i*copySize:][:copySize]
		if [copySize]byte(c) == [copySize]byte{} {
			continue
		}
		sequence := le.Uint64(c[atIntentSequence:])
		if le.Uint32(c) != crc32.Checksum(c[4:], castagnoli) || le.Uint32(c[atIntentMagic:]) != intentMagic ||
			le.Uint64(c[atIntentGroup:]) != uint64(group) || [16]byte(c[atIntentID:]) != t.id || int64(sequence%2) != i {
			broken++
			continue
		}
		if sequence > p.sequence {
			p.sequence = sequence
			for w := range p.words {
				p.words[w] = le.Uint64(c[atBits+8*w:])
			}
		}
	}
	if broken == 2 {
		return fmt.Errorf("%w: both copies of the marks of regions are", ErrDamaged)
	}
	return nil
}

// Marked reports whether a region is marked.
func (t *Intent) Marked(region int64) bool {
	w, bit := region%groupRegions/64, uint(region%64)
	return t.pages[region/groupRegions].words[w]>>bit&1 != 0
}

// Mark marks a region, or clears its mark, in memory.
func (t *Intent) Mark(region int64, marked bool) {
	p := &t.pages[region/groupRegions]
	w, bit := &p.words[region%groupRegions/64], uint64(1)<<uint(region%64)
	if before := *w; marked {
		*w |= bit
		p.changed = p.changed || *w != before
	} else {
		*w &^= bit
		p.changed = p.changed || *w != before
	}
}

// Grow makes the marks those of a disk with now instead of before regions.
// Pages of new groups are empty. Marks of regions that the disk had before it
// shrunk, and has again, are void.
func (t *Intent) Grow(before, now int64) {
	for int64(len(t.pages)) < groups(now) {
		t.pages = append(t.pages, intentPage{})
	}
	for i := before; i < min(now, groups(before)*groupRegions); i++ {
		t.Mark(i, false)
	}
}

// groups returns of how many groups regions are.
func groups(regions int64) int64 { return (regions + groupRegions - 1) / groupRegions }

// Renew has the next Store write every mark, whatever the file seems to have: a
// process before may have failed to make it durable.
func (t *Intent) Renew() {
	for i := range t.pages {
		p := &t.pages[i]
		p.changed = p.changed || p.words != [groupWords]uint64{}
	}
}

// Store writes the groups that changed over their older copies, and makes them
// durable by sync. It writes no copy before the other one is durable. After an
// error of sync, which failed reports, what is durable is not known, and Store
// is not called again; after any other one the changes are still to be stored.
func (t *Intent) Store(sync func() error) (failed bool, err error) {
	for group := range t.pages {
		p := &t.pages[group]
		if !p.changed {
			continue
		}
		if p.unsynced {
			if err := t.sync(sync); err != nil {
				return true, err
			}
		}
		next := p.sequence + 1
		if err := t.file.WriteAt(t.encode(int64(group), next), intentAt(int64(group))+int64(next%2)*copySize); err != nil {
			return false, fmt.Errorf("write the marks of regions: %w", err)
		}
		p.sequence, p.changed, p.unsynced = next, false, true
	}
	if err := t.sync(sync); err != nil {
		return true, err
	}
	return false, nil
}

// sync makes the copies durable that were written.
func (t *Intent) sync(sync func() error) error {
	if err := sync(); err != nil {
		return err
	}
	for i := range t.pages {
		t.pages[i].unsynced = false
	}
	return nil
}

// encode returns a copy of a group.
func (t *Intent) encode(group int64, sequence uint64) []byte {
	b := make([]byte, copySize)
	le.PutUint32(b[atIntentMagic:], intentMagic)
	le.PutUint64(b[atIntentSequence:], sequence)
	le.PutUint64(b[atIntentGroup:], uint64(group))
	copy(b[atIntentID:], t.id[:])
	for w, word := range t.pages[group].words {
		le.PutUint64(b[atBits+8*w:], word)
	}
	le.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
	return b
}
