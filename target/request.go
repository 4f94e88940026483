package target

import (
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
)

// requestState is the state of a request. It tells the owner that has it: free
// and stashed commands are the receiver's, awaitMemory and running the
// executor's, the others the sender's.
//
//	free ─▶ [awaitMemory] ─▶ [awaitPull] ─▶ [pulling] ─▶ running
//	     ─▶ awaitAnswer ─▶ answering ─▶ free
type requestState uint8

const (
	free        requestState = iota // the slot holds the result of its last command
	awaitMemory                     // the pool has no room
	awaitPull                       // its payload is to be pulled
	pulling                         // RDMA Reads fetch a Write's payload
	running                         // in the backend's queue
	awaitAnswer                     // it has a status
	answering                       // data and answer are being sent
)

// request is a slot of the connection: the command in flight, or the result of
// the last one.
type request struct {
	state  requestState
	index  uint16 // in the connection
	slot   uint16 // of the session
	seq    uint32 // of the command in flight or the last
	used   bool   // a command was run in this slot
	status wire.Status

	began        time.Duration // by the worker's stopwatch
	given        time.Duration // to the backend
	waited       bool          // counted in ExportCounts.Waits
	command      wire.Command
	handle       *handle // nil while none is known
	block        block.Request
	memory       regcache.Buffer
	lease        regcache.Lease // of a mapping, in place of memory
	local        carrier.Span   // where the payload is: memory, or the disk itself
	pending      int            // RDMA operations and answers in flight
	holdsRange   bool           // local is part of the disk, and its range is held
	holdsReceive bool           // receive is this request's until the backend is done
	receive      uint32
	stashed      bool // a command arrived before the answer's completion was seen
	next         uint32
	nextLen      uint32

	protection     *protection // of a sealed session; else nil
	nextProtection *protection // of the stashed command

	extents     []block.Extent // of a block-status; memory from the first one on
	extentBytes uint32         // encoded in memory
}

// countWait counts a request that waits, once.
func (r *request) countWait() {
	if !r.waited && r.handle != nil {
		r.waited = true
		r.handle.queue.counts.Waits++
	}
}

// span returns a range of the request's payload.
func (r *request) span(off, n uint32) carrier.Span {
	return carrier.Span{Addr: r.local.Addr + uint64(off), Handle: r.local.Handle, Length: n}
}
