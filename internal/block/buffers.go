package block

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/viablk/viablk/internal/buddy"
	"golang.org/x/sys/unix"
)

const (
	// bufferUnit is the smallest buffer, in bytes: a page, so that every buffer
	// is aligned well enough for direct I/O.
	bufferUnit = 4096

	// granule is the unit in which free memory goes back to the kernel, in
	// bytes.
	granuleShift = 20
	granule      = 1 << granuleShift

	// idleAfter is how long memory stays free before it goes back.
	idleAfter = time.Second
)

// Buffers is private memory for the requests of one queue whose device needs no
// particular memory. It provides Reserve and Release for a queue to embed.
//
// The memory is one sparse anonymous mapping, with its book-keeping at the end:
// what no request has used costs no page. It is made by the first Reserve.
// Whole MiB that stay free are given back by [Buffers.Tidy], and with the last
// of them the mapping: an idle queue has none. As with its queue, one goroutine
// at a time uses it.
type Buffers struct {
	size     int    // of the memory, in bytes: a power of two
	mapping  []byte // the memory, and the table of blocks; nil without any
	memory   []byte
	blocks   *buddy.Allocator
	granules []granuleUse
	dirty    int // granules that have pages
	swept    time.Time
	now      func() time.Time
}

// granuleUse is what is known of one granule.
type granuleUse struct {
	live   uint16 // requests that hold a part of it
	dirty  bool   // has pages
	recent bool   // used since the last sweep
}

// NewBuffers returns memory of limit bytes, rounded up to a power of two. A
// single Reserve is granted up to that size, so limit is not less than the
// device's MaximumPayload.
func NewBuffers(limit int) (*Buffers, error) {
	if limit <= 0 || limit > 1<<40 {
		return nil, fmt.Errorf("map %d bytes for requests: %w", limit, unix.EINVAL)
	}
	return &Buffers{size: max(granule, 1<<bits.Len(uint(limit-1))), now: time.Now}, nil
}

// mapMemory maps the memory. It reports false if the kernel has none now.
func (b *Buffers) mapMemory() bool {
	mapping, err := unix.Mmap(-1, 0, b.size+buddy.TableSize(b.size, bufferUnit), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return false
	}
	b.mapping, b.memory = mapping, mapping[:b.size]
	b.blocks = buddy.NewIn(mapping[b.size:], b.size, bufferUnit)
	if b.granules == nil {
		b.granules = make([]granuleUse, b.size/granule)
	}
	return true
}

// unmap unmaps the memory, while no request holds any.
func (b *Buffers) unmap() error {
	mapping := b.mapping
	b.mapping, b.memory, b.blocks = nil, nil, nil
	clear(b.granules)
	b.dirty = 0
	if err := unix.Munmap(mapping); err != nil {
		return fmt.Errorf("unmap memory of requests: %w", err)
	}
	return nil
}

// Reserve is [Queue.Reserve]. It sets Data at once for reads as well. It grants
// nothing either while the kernel has no memory to map.
func (b *Buffers) Reserve(r *Request) bool {
	if r.Op != Read && r.Op != Write {
		return true
	}
	if r.Memory != 0 {
		panic("block: memory is reserved twice for one request")
	}
	if r.Length > int64(len(b.memory)) && (r.Length > int64(b.size) || !b.mapMemory()) {
		return false
	}
	n := int(r.Length)
	off, ok := b.blocks.Alloc(n)
	if !ok {
		return false
	}
	r.Memory = uint64(off) + 1
	r.Data = b.memory[off : off+n : off+n]
	last := (off + b.blocks.Size(off) - 1) >> granuleShift
	for g := off >> granuleShift; g <= last; g++ {
		use := &b.granules[g]
		use.live++
		use.recent = true
		if !use.dirty {
			use.dirty = true
			b.dirty++
		}
	}
	return true
}

// Release is [Queue.Release].
func (b *Buffers) Release(r *Request) {
	if r.Memory == 0 {
		return
	}
	off := int(r.Memory - 1)
	last := (off + b.blocks.Size(off) - 1) >> granuleShift
	for g := off >> granuleShift; g <= last; g++ {
		b.granules[g].live--
	}
	b.blocks.Free(off)
	r.Memory, r.Data = 0, nil
}

// Tidy gives memory back to the kernel that has stayed free for a while. It
// returns how long from now it has to be called again, which a queue returns
// from Arm, or a negative duration if that is not necessary. While nothing is
// due it costs a comparison or a read of the clock.
func (b *Buffers) Tidy() time.Duration {
	if b.dirty == 0 {
		return -1
	}
	now := b.now()
	if wait := idleAfter - now.Sub(b.swept); wait > 0 {
		return wait
	}
	b.swept = now
	b.sweep()
	if b.dirty == 0 {
		return -1
	}
	return idleAfter
}

// ReleaseIdle is [IdleReleaser.ReleaseIdle].
func (b *Buffers) ReleaseIdle() {
	if b.mapping == nil {
		return
	}
	for g := range b.granules {
		if b.granules[g].live > 0 {
			return
		}
	}
	_ = b.unmap() // a mapping that is whole can be unmapped
}

// sweep punches the granules that have not been used since the previous sweep,
// or unmaps the memory if no granule has been used.
func (b *Buffers) sweep() {
	if b.untouched() && b.unmap() == nil {
		return
	}
	start := -1 // of the run of granules to punch
	for g := range b.granules {
		use := &b.granules[g]
		idle := use.dirty && use.idle()
		use.recent = false
		if idle {
			use.dirty = false
			b.dirty--
		}
		switch {
		case idle && start < 0:
			start = g
		case !idle && start >= 0:
			b.punch(start, g)
			start = -1
		}
	}
	if start >= 0 {
		b.punch(start, len(b.granules))
	}
}

// idle reports whether the granule has not been used since the previous sweep.
func (u *granuleUse) idle() bool { return u.live == 0 && !u.recent }

// untouched reports whether all granules are idle.
func (b *Buffers) untouched() bool {
	for g := range b.granules {
		if !b.granules[g].idle() {
			return false
		}
	}
	return true
}

// punch frees the pages of granules [from, to). The kernel refuses only what is
// no mapping or is locked; the pages then simply stay.
func (b *Buffers) punch(from, to int) {
	_ = unix.Madvise(b.memory[from*granule:to*granule], unix.MADV_DONTNEED)
}

// Close unmaps the memory. No request may hold any of it.
func (b *Buffers) Close() error {
	if b.mapping == nil {
		return nil
	}
	return b.unmap()
}
