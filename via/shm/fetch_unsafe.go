package shm

import (
	"unsafe"

	"github.com/viablk/viablk/internal/prefetch"
)

// awaitReply prefetches the cache lines that receiving a reply touches, while
// the message travels: with many links, few of them are in the cache. A one-way
// stream expects no reply: the link calls it only if a record has arrived since
// the last doorbell.
func (r *receiver) awaitReply() {
	r.answered = false
	r.prefetch()
	if !r.rq.Empty() {
		(*r.rq.First()).Fetch()
	}
}

// prefetch prefetches the receiver's cache lines.
func (r *receiver) prefetch() {
	// Safety: the pointers are only hints.
	prefetch.Line(unsafe.Pointer(&r.cq))
	prefetch.Line(unsafe.Pointer(&r.in.seq))
	prefetch.Line(unsafe.Pointer(&r.total))
}

// prefetch prefetches the next record of a ring, which may not be written yet.
func (r *reader) prefetch() {
	at, mask := int(r.head-r.start), len(r.ring)-1
	// Safety: the pointers are only hints, and inside the ring.
	prefetch.Line(unsafe.Pointer(&r.ring[at&mask]))
	prefetch.Line(unsafe.Pointer(&r.ring[(at+64)&mask]))
}
