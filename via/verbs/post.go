//go:build verbs && cgo

package verbs

// #cgo noescape shim_post
// #cgo nocallback shim_post
// #include "shim.h"
import "C"

import (
	"unsafe"

	"github.com/viablk/viablk/via"
)

// batchSize is the most work requests of a kind in one call.
const batchSize = C.SHIM_BATCH

// batch holds the work requests of one call: numbers only, so that C may read
// it.
type batch struct {
	receives, sends []C.struct_shim_wr
	segments        []C.struct_ibv_sge
	counts          []C.int // posted receives, sends
}

func newBatch() *batch {
	return &batch{
		receives: make([]C.struct_shim_wr, 0, batchSize), sends: make([]C.struct_shim_wr, 0, batchSize),
		segments: make([]C.struct_ibv_sge, 0, 4*batchSize), counts: make([]C.int, 2),
	}
}

func (b *batch) reset() {
	b.receives, b.sends, b.segments = b.receives[:0], b.sends[:0], b.segments[:0]
}

// PostSend queues a work for the doorbell. It returns false if SendDepth works
// are posted.
func (l *link) PostSend(w *via.Work) bool {
	r := &l.sends
	if r.tail-r.done >= uint32(l.cfg.SendDepth) {
		return false
	}
	*r.at(r.tail) = entry{work: w}
	r.tail++
	return true
}

// PostRecv queues a receive for the doorbell or the next poll. A receive is
// posted at once if the queue pair has none.
func (l *link) PostRecv(w *via.Work) {
	r := &l.receives
	*r.at(r.tail) = entry{work: w}
	r.tail++
	switch waiting := r.tail - r.posted; {
	case !l.started:
	case r.posted == r.done || waiting >= batchSize:
		l.flush(false)
	case waiting == 1:
		_, recv := l.queues()
		recv.late = append(recv.late, l)
	}
}

// Doorbell posts the queued works to the queue pair.
func (l *link) Doorbell() { l.flush(true) }

// askEvery bounds the requests between two signaled ones. The last of a batch
// is signaled, and every 16th, so that the queues get room.
const askEvery = 16

// flush posts the queued receives and, if sends is set, sends: one call per
// batch. After an error it posts nothing more: the link is broken.
func (l *link) flush(sends bool) {
	for !l.failed && (l.receives.posted != l.receives.tail || sends && l.sends.posted != l.sends.tail) {
		_, recv := l.queues()
		b := recv.batch
		b.reset()
		if !l.gather(b, sends) {
			return
		}
		l.stats.Doorbells++
		recv.counts.posts.Add(1)
		code := C.shim_post(l.qp, pointer(b.receives), C.int(len(b.receives)), pointer(b.sends), C.int(len(b.sends)),
			pointer(b.segments), &b.counts[0], &b.counts[1])
		l.receives.posted += uint32(b.counts[0])
		l.sends.posted += uint32(b.counts[1])
		l.stats.Records += uint64(b.counts[1])
		recv.counts.receives.Add(uint64(b.counts[0]))
		recv.counts.messages.Add(uint64(b.counts[1]))
		if code != 0 {
			l.fail(errno(code))
		}
	}
}

// pointer returns the address of a slice's memory; the slice may be empty.
func pointer[T any](s []T) *T {
	// Safety: callers pass the slice's length along, and C keeps nothing.
	return unsafe.SliceData(s)
}

// fail breaks a link whose queue pair rejects posts.
func (l *link) fail(err error) {
	l.failed = true
	l.lose(err)
}

// gather builds work requests of the queued works.
func (l *link) gather(b *batch, sends bool) bool {
	r := &l.receives
	for i := r.posted; i != r.tail && len(b.receives) < batchSize; i++ {
		s := r.at(i)
		wr := C.struct_shim_wr{id: l.id(i, true)}
		if err := l.place(b, &wr, s, false); err != nil {
			l.fail(err)
			return false
		}
		b.receives = append(b.receives, wr)
	}
	r = &l.sends
	for i := r.posted; sends && i != r.tail && len(b.sends) < batchSize; i++ {
		s := r.at(i)
		w := s.work
		wr := C.struct_shim_wr{
			id: l.id(i, false), op: C.uint8_t(opOf[w.Op]), immediate: C.uint32_t(w.Immediate),
			rkey: C.uint32_t(w.RemoteHandle), remote_addr: C.uint64_t(w.RemoteAddr),
		}
		if w.HasImmediate {
			wr.flags |= C.SHIM_IMMEDIATE
		}
		if int(w.Length) <= l.inline && w.Op != via.OpRdmaRead {
			wr.flags |= C.SHIM_INLINE
		}
		if err := l.place(b, &wr, s, w.Op != via.OpRdmaRead); err != nil {
			l.fail(err)
			return false
		}
		if l.unasked++; l.unasked >= askEvery || i+1 == r.tail || len(b.sends)+1 == batchSize {
			wr.flags |= C.SHIM_SIGNAL
			l.unasked = 0
		}
		b.sends = append(b.sends, wr)
	}
	return true
}

// opOf translates opcodes.
var opOf = [...]int{via.OpSend: C.SHIM_SEND, via.OpRdmaWrite: C.SHIM_WRITE, via.OpRdmaRead: C.SHIM_READ}

// id returns the ID of a work request: the link, the work's index, and the
// queue.
func (l *link) id(place uint32, recv bool) C.uint64_t {
	id := uint64(l.serial)<<32 | uint64(place&(1<<31-1))<<1
	if recv {
		id |= 1
	}
	return C.uint64_t(id)
}

// place adds the segments of a work. Adjacent segments are merged; a work with
// more than the device supports uses a bounce buffer. If out, the work sends
// its bytes.
func (l *link) place(b *batch, wr *C.struct_shim_wr, s *entry, out bool) error {
	first := len(b.segments)
	wr.first_sge = C.uint32_t(first)
	var end uint64
	for i := range s.work.Segments {
		seg := &s.work.Segments[i]
		if len(seg.Bytes) == 0 {
			continue
		}
		key := C.uint32_t(seg.Memory.Provider.(*region).key.Load())
		addr := seg.Memory.Addr() + uint64(offset(seg))
		if last := len(b.segments) - 1; last >= first && addr == end && b.segments[last].lkey == key {
			b.segments[last].length += C.uint32_t(len(seg.Bytes))
		} else {
			b.segments = append(b.segments, C.struct_ibv_sge{addr: C.uint64_t(addr), length: C.uint32_t(len(seg.Bytes)), lkey: key})
		}
		end = addr + uint64(len(seg.Bytes))
	}
	if len(b.segments)-first > l.adapter.segments() {
		b.segments = b.segments[:first]
		via, err := l.bounceWork(s.work, out)
		if err != nil {
			return err
		}
		s.via = via
		l.stats.BytesCopied += uint64(s.work.Length)
		if s.work.Length > 0 {
			b.segments = append(b.segments, C.struct_ibv_sge{
				addr: C.uint64_t(via.addr()), length: C.uint32_t(s.work.Length), lkey: via.mr.lkey,
			})
		}
	}
	wr.sges = C.uint16_t(len(b.segments) - first)
	return nil
}

// offset returns where in its region a segment begins, bytes.
func offset(s *via.Segment) uintptr {
	// Safety: both point into the same mapped memory, which does not move;
	// addresses are subtracted as numbers.
	return uintptr(unsafe.Pointer(unsafe.SliceData(s.Bytes))) - uintptr(unsafe.Pointer(unsafe.SliceData(s.Memory.Bytes())))
}
