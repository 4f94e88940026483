package crashcheck

import "encoding/binary"

// Sizes in bytes.
const (
	Block  = 4096 // what a write has at least, and what is accounted for
	Sector = 512  // what a power cut leaves whole
)

// sectors is how many sectors a block has.
const sectors = Block / Sector

// untouched is the generation of a disk that was never written: zeroes.
const untouched = 0

// stamp fills a block with a generation.
func (l *WriteLog) stamp(p []byte, block int, generation uint64) {
	for i := range sectors {
		l.stampSector(p[i*Sector:][:Sector], uint64(block*sectors+i), generation)
	}
}

func (l *WriteLog) stampSector(p []byte, number, generation uint64) {
	if generation == untouched {
		clear(p)
		return
	}
	binary.LittleEndian.PutUint64(p, generation)
	state := l.Seed ^ number<<32 ^ generation
	for at := 8; at < len(p); at += 8 {
		state = mix(state)
		binary.LittleEndian.PutUint64(p[at:], state)
	}
}

// generation returns which generation a sector is of, and whether it is whole:
// not mixed of several, of another place, another log, or unknown.
func (l *WriteLog) generation(p []byte, number uint64) (uint64, bool) {
	generation := binary.LittleEndian.Uint64(p)
	var want [Sector]byte
	l.stampSector(want[:], number, generation)
	return generation, [Sector]byte(p) == want
}

// mix is the step of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
