package backend

import (
	"sync"

	"github.com/viablk/viablk/target/backend/checksum"
)

// edges are the blocks that a request covers in part: at most one at each end.
type edges struct{ head, tail edge }

// edge is such a block. Its memory is nil if there is none.
type edge struct {
	memory   *[checksum.BlockSize]byte
	off      int64 // of the block
	size     int64 // of the block, in bytes
	from, to int64 // the part of it that the request covers
}

// edgeMemory is memory for a block.
var edgeMemory = sync.Pool{New: func() any { return new([checksum.BlockSize]byte) }}

// inside returns what the request covers of the block.
func (e *edge) inside() []byte {
	if e.memory == nil {
		return nil
	}
	return e.memory[e.from:e.to]
}

// read finds the blocks that a range covers in part, reads and checks them.
func (e *edges) read(c *crc, off, length int64) error {
	end := off + length
	at := off &^ (checksum.BlockSize - 1)
	if size := c.blockAt(at); at < off || end < at+size {
		if err := e.head.read(c, at, off-at, min(size, end-at)); err != nil {
			return err
		}
	}
	at = (end - 1) &^ (checksum.BlockSize - 1)
	if at <= off || end == at+c.blockAt(at) {
		return nil // it is the first block, or whole
	}
	return e.tail.read(c, at, 0, end-at)
}

// read reads a block and checks it.
func (e *edge) read(c *crc, off, from, to int64) error {
	e.memory = edgeMemory.Get().(*[checksum.BlockSize]byte)
	e.off, e.size, e.from, e.to = off, c.blockAt(off), from, to
	p := e.memory[:e.size]
	if _, err := c.disk.ReadAt(p, off); err != nil {
		return err
	}
	return c.check(p, off)
}

// parts returns the parts of the request's payload that are of the edges.
func (e *edges) parts(p []byte) (head, tail []byte) {
	n := len(e.head.inside())
	return p[:n], p[len(p)-len(e.tail.inside()):]
}

// between returns the whole blocks of a range.
func (e *edges) between(off, length int64) (from, n int64) {
	head := int64(len(e.head.inside()))
	return off + head, length - head - int64(len(e.tail.inside()))
}

// keep keeps the sums of the blocks as their memory has them.
func (e *edges) keep(c *crc) {
	for _, b := range []*edge{&e.head, &e.tail} {
		if b.memory != nil {
			c.keep(b.memory[:b.size], b.off)
		}
	}
}

// release gives the memory back.
func (e *edges) release() {
	for _, b := range []*edge{&e.head, &e.tail} {
		if b.memory != nil {
			edgeMemory.Put(b.memory)
			b.memory = nil
		}
	}
}
