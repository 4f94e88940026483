//go:build rbd && cgo

package rbd

// #include "shim.h"
import "C"

import (
	"runtime"
	"syscall"
	"unsafe"

	"github.com/viablk/viablk/internal/eventfd"
)

// operation is what librbd does for a slot.
type operation uint32

const (
	opRead      = operation(C.SHIM_READ)
	opWrite     = operation(C.SHIM_WRITE)
	opFlush     = operation(C.SHIM_FLUSH)
	opDiscard   = operation(C.SHIM_DISCARD)
	opZero      = operation(C.SHIM_ZERO)
	opZeroThick = operation(C.SHIM_ZERO_THICK)
)

// batch is how many results one call fetches at most.
const batch = 64

// completions are the requests of one queue that librbd has. Their threads
// queue results in memory of C. The owner of the queue calls the methods, and
// push any goroutine that has a slot.
type completions struct {
	queue    *C.struct_shim_queue
	requests []C.struct_shim_request // by slot, memory of C
	pins     []runtime.Pinner        // by slot
	results  [batch]C.struct_shim_result
	fd       int
}

// newCompletions returns room for depth requests.
//
// Safety: the array is of C, has depth entries, and is used until close.
func (c *connection) newCompletions(depth int) (*completions, error) {
	fd, err := eventfd.New()
	if err != nil {
		return nil, err
	}
	q := C.shim_new(c.image, C.uint32_t(depth), C.int(fd))
	if q == nil {
		_ = eventfd.Close(fd)
		return nil, syscall.ENOMEM
	}
	return &completions{
		queue: q, fd: fd, pins: make([]runtime.Pinner, depth), requests: unsafe.Slice(C.shim_requests(q), depth),
	}, nil
}

// prepare writes the request of a slot.
//
// Safety: threads of librbd read and write data after the call has returned, so
// memory of the Go heap is pinned from here to release. Its address is stored
// as a number. The slot keeps the request, and with it memory of any kind,
// alive meanwhile.
func (c *completions) prepare(slot uint32, op operation, off, length int64, data []byte) {
	r := &c.requests[slot]
	r.op, r.offset, r.length, r.data = C.uint32_t(op), C.uint64_t(off), C.uint64_t(length), 0
	if len(data) > 0 {
		p := unsafe.SliceData(data)
		c.pins[slot].Pin(p)
		r.data = C.uint64_t(uintptr(unsafe.Pointer(p)))
	}
}

// release ends the use of the payload of a slot.
func (c *completions) release(slot uint32) { c.pins[slot].Unpin() }

// submit hands the requests of slots to librbd.
//
// Safety: C reads the numbers during the call.
func (c *completions) submit(slots []uint32) {
	C.shim_submit(c.queue, (*C.uint32_t)(unsafe.SliceData(slots)), C.uint32_t(len(slots)))
}

// push queues the result of a slot that librbd does not have.
func (c *completions) push(slot uint32) { C.shim_push(c.queue, C.uint32_t(slot), 0) }

// fetch takes results, and returns how many.
//
// Safety: C writes up to batch results during the call.
func (c *completions) fetch() int {
	return int(C.shim_reap(c.queue, &c.results[0], batch))
}

// result returns result i of the last fetch.
func (c *completions) result(i int) (slot uint32, value int64) {
	return uint32(c.results[i].slot), int64(c.results[i].value)
}

// arm reports whether there is nothing to fetch: then fd becomes readable at
// the next result.
func (c *completions) arm() bool { return C.shim_arm(c.queue) != 0 }

// close frees everything. No slot is in flight.
func (c *completions) close() error {
	C.shim_free(c.queue)
	c.queue, c.requests = nil, nil
	return eventfd.Close(c.fd)
}
