package simulation

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// blockSize is the size of a block, in bytes: what a disk keeps in one piece.
const blockSize = 4096

// Tag is the content of a block: it fills the block. Every write of a block has
// a tag that no other write has, so that a read tells which write it saw.
type Tag uint64

// zero is the tag of a block without a write, and of zeroes that are written.
const zero Tag = 0

// newTag returns the tag of a write: the block, the device that writes, which
// counts from 1, and the number of its write.
func newTag(block int64, writer int, number uint64) Tag {
	return Tag(block)<<52 | Tag(writer&0xfff)<<40 | Tag(number&(1<<40-1))
}

func (t Tag) block() int64 { return int64(t >> 52) }
func (t Tag) writer() int  { return int(t>>40) & 0xfff }

// String names the write.
func (t Tag) String() string {
	if t == zero {
		return "zeroes"
	}
	return fmt.Sprintf("write %d of device %d to block %d", t&(1<<40-1), t.writer(), t.block())
}

// fill fills a block.
func (t Tag) fill(b []byte) {
	binary.LittleEndian.PutUint64(b, uint64(t))
	for n := 8; n < blockSize; n *= 2 {
		copy(b[n:blockSize], b[:n])
	}
}

// tagOf returns the tag of a block, or an error if the block is not of one
// write, or of a write to another block.
func tagOf(b []byte, block int64) (Tag, error) {
	t := Tag(binary.LittleEndian.Uint64(b))
	if !bytes.Equal(b[8:blockSize], b[:blockSize-8]) {
		last := Tag(binary.LittleEndian.Uint64(b[blockSize-8:]))
		return t, fmt.Errorf("block %d begins with %v and ends with %v", block, t, last)
	}
	if t != zero && t.block() != block {
		return t, fmt.Errorf("block %d holds %v", block, t)
	}
	return t, nil
}
