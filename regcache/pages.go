package regcache

import (
	"math/bits"

	"github.com/viablk/viablk/via"
)

// pages follows which parts of a pool have pages, so that a burst of large
// slots does not keep its memory for ever. Memory that was not needed through a
// whole window of slots is given back, at most a few system calls a window; a
// busy queue of large slots, whose free memory comes and goes, never pays for
// one.
type pages struct {
	chunks []chunk
	size   int    // bytes of a chunk
	shift  uint   // log2 of it
	idle   int    // chunks that have pages and no slot
	puts   uint32 // slots given back
	never  bool   // the system does not take pages back
}

// chunk is a piece of a pool.
type chunk struct {
	slots   uint32 // that reach into it
	window  uint32 // when the last one was given back
	touched bool   // has pages
}

const (
	chunkSize  = 1 << 20 // bytes
	windowPuts = 1024    // slots given back in a window
	keepFree   = 4 << 20 // bytes of free memory that always keep their pages
	discards   = 8       // chunks given back at the end of a window
)

func (p *pages) init(size int) {
	p.size = min(size, chunkSize)
	p.shift = uint(bits.TrailingZeros(uint(p.size)))
	p.chunks = make([]chunk, size/p.size)
}

// use notes that a slot covers [off, off+n).
func (p *pages) use(off, n int) {
	for i := off >> p.shift; i <= (off+n-1)>>p.shift; i++ {
		c := &p.chunks[i]
		if c.slots == 0 && c.touched {
			p.idle--
		}
		c.slots++
		c.touched = true
	}
}

// release notes that the slot is back. It returns true at the end of a window
// that left more free memory with pages than is kept.
func (p *pages) release(off, n int) bool {
	window := p.puts / windowPuts
	for i := off >> p.shift; i <= (off+n-1)>>p.shift; i++ {
		c := &p.chunks[i]
		c.slots--
		c.window = window
		if c.slots == 0 {
			p.idle++
		}
	}
	p.puts++
	return p.puts%windowPuts == 0 && p.idle*p.size > keepFree
}

// discardOld gives back chunks that no slot used in the window that ends, and
// returns the bytes. Like discardFree it begins at the end: the allocator fills
// a pool from the beginning.
func (p *pages) discardOld(a *via.Arena) uint64 {
	ended := p.puts/windowPuts - 1
	bytes := 0
	for i, left := len(p.chunks)-1, discards; i >= 0 && left > 0 && p.idle*p.size > keepFree; i-- {
		if c := &p.chunks[i]; c.touched && c.slots == 0 && c.window != ended {
			bytes += p.discard(a, i)
			left--
		}
	}
	return uint64(bytes)
}

// discardFree gives back free chunks until no more than keepFree is left, and
// returns the bytes.
func (p *pages) discardFree(a *via.Arena) int {
	bytes := 0
	for i := len(p.chunks) - 1; i >= 0 && p.idle*p.size > keepFree && !p.never; i-- {
		if c := &p.chunks[i]; c.touched && c.slots == 0 {
			bytes += p.discard(a, i)
		}
	}
	return bytes
}

// discard gives the pages of a free chunk back and returns the bytes.
func (p *pages) discard(a *via.Arena, i int) int {
	if p.never {
		return 0
	}
	if err := a.Discard(i*p.size, p.size); err != nil {
		p.never = true
		return 0
	}
	p.chunks[i].touched = false
	p.idle--
	return p.size
}

func (p *pages) touchedBytes() int {
	n := 0
	for i := range p.chunks {
		if p.chunks[i].touched {
			n += p.size
		}
	}
	return n
}
