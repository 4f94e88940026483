package joint

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/viablk/viablk/via"
)

// maxNames bounds the regions of a NIC: the lower 16 bits of their handles
// differ.
const maxNames = 1 << 16

// names are the handles of regions, which all parts take, see [via.Joinable]: a
// number of 16 bits below a generation of 16 bits. Peers of a part get all of
// a handle from this end or not at all, so both are random: a handle tells
// nothing of another one.
type names struct {
	limit int // of numbers

	mu sync.Mutex
	// +checklocks:mu
	taken []bool // by number; nil before the first
	// +checklocks:mu
	last []uint16 // generation by number; likewise
	// +checklocks:mu
	count int
}

// draw takes a handle that is free. It is not 0, nor the last one of its
// number: a peer that still has that reaches no other region with it.
func (n *names) draw() (uint32, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.taken == nil {
		n.taken, n.last = make([]bool, n.limit), make([]uint16, n.limit)
	}
	if n.count == n.limit {
		return 0, fmt.Errorf("%d regions are registered: %w", n.count, via.ErrResource)
	}
	at := int(random()) % n.limit
	for n.taken[at] {
		at = (at + 1) % n.limit
	}
	gen := random()
	for gen == 0 || gen == n.last[at] {
		gen = random()
	}
	n.taken[at], n.last[at] = true, gen
	n.count++
	return uint32(gen)<<16 | uint32(at), nil
}

// free gives a handle back.
func (n *names) free(handle uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.taken[handle&0xffff] = false
	n.count--
}

func random() uint16 {
	var b [2]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint16(b[:])
}
