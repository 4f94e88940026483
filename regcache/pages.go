package regcache

import (
	"math/bits"

	"github.com/viablk/viablk/via"
)

// pages tracks which parts of a pool have pages, so that a burst of large
// buffers does not keep its memory. Memory unused for a whole period of
// returned buffers is discarded, in at most a few system calls per period. A
// busy queue of large buffers, whose free memory changes constantly, discards
// nothing.
type pages struct {
	chunks []chunk
	size   int    // bytes of a chunk
	shift  uint   // log2 of it
	idle   int    // chunks that have pages and no buffer
	puts   uint32 // buffers returned
	never  bool   // the system does not support discarding
}

// chunk is a piece of a pool.
type chunk struct {
	buffers uint32 // that overlap it
	period  uint32 // in which the last one was returned
	touched bool   // has pages
}

const (
	chunkSize  = 1 << 20 // bytes
	periodPuts = 1024    // buffers returned in a period
	keepFree   = 4 << 20 // bytes of free memory that keep their pages
	discards   = 8       // chunks discarded at the end of a period, at most
)

func (p *pages) init(size int) {
	p.size = min(size, chunkSize)
	p.shift = uint(bits.TrailingZeros(uint(p.size)))
	p.chunks = make([]chunk, size/p.size)
}

// use records that a buffer covers [off, off+n).
func (p *pages) use(off, n int) {
	for i := off >> p.shift; i <= (off+n-1)>>p.shift; i++ {
		c := &p.chunks[i]
		if c.buffers == 0 && c.touched {
			p.idle--
		}
		c.buffers++
		c.touched = true
	}
}

// release records that the buffer is returned. It returns true at the end of a
// period that left more free memory with pages than keepFree.
func (p *pages) release(off, n int) bool {
	period := p.puts / periodPuts
	for i := off >> p.shift; i <= (off+n-1)>>p.shift; i++ {
		c := &p.chunks[i]
		c.buffers--
		c.period = period
		if c.buffers == 0 {
			p.idle++
		}
	}
	p.puts++
	return p.puts%periodPuts == 0 && p.idle*p.size > keepFree
}

// discardOld discards chunks that no buffer used in the period that ends, and
// returns the bytes. Like discardFree it begins at the end: the allocator fills
// a pool from the beginning.
func (p *pages) discardOld(a *via.Arena) uint64 {
	ended := p.puts/periodPuts - 1
	bytes := 0
	for i, left := len(p.chunks)-1, discards; i >= 0 && left > 0 && p.idle*p.size > keepFree; i-- {
		if c := &p.chunks[i]; c.touched && c.buffers == 0 && c.period != ended {
			bytes += p.discard(a, i)
			left--
		}
	}
	return uint64(bytes)
}

// discardFree discards free chunks until at most keepFree is left, and returns
// the bytes.
func (p *pages) discardFree(a *via.Arena) int {
	bytes := 0
	for i := len(p.chunks) - 1; i >= 0 && p.idle*p.size > keepFree && !p.never; i-- {
		if c := &p.chunks[i]; c.touched && c.buffers == 0 {
			bytes += p.discard(a, i)
		}
	}
	return bytes
}

// discard returns the pages of a free chunk to the system and returns the
// bytes.
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
