package target

import (
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
)

// requestState is where a request is on its way.
//
//	free ─▶ arrived ─▶ [awaitMemory] ─▶ [pulling] ─▶ running ─▶ [awaitSends] ─▶ answering ─▶ free
type requestState uint8

const (
	free        requestState = iota // the slot holds the result of its last command
	awaitMemory                     // the pool has no room
	awaitPull                       // no send is free to pull with
	pulling                         // RDMA Reads fetch a Write's payload
	running                         // in the backend's queue
	awaitAnswer                     // no send is free to answer with
	answering                       // data and answer are on their way
)

// request is a slot of the connection: the command under way, or the result of
// the last one.
type request struct {
	state  requestState
	slot   uint16 // of the session
	seq    uint32 // of the command under way or the last
	used   bool   // a command was run in this slot
	status wire.Status

	command wire.Command
	handle  *handle // nil while none is known
	block   block.Request
	memory  regcache.Slot
	lease   regcache.Lease // of a window, in place of memory
	local   carrier.Span   // where the payload is: memory, or the disk itself
	pending int            // RDMA operations and answers under way
	holds   bool           // its range of the disk, because local is a part of that
	held    bool           // receive is this request's until the backend is done
	receive uint32
	stashed bool // a command arrived before the answer's completion was seen
	next    uint32
	nextLen uint32

	extents     []block.Extent // of a block-status; memory from the first one on
	extentBytes uint32         // encoded in memory
}

// span returns a range of the request's payload.
func (r *request) span(off, n uint32) carrier.Span {
	return carrier.Span{Addr: r.local.Addr + uint64(off), Handle: r.local.Handle, Length: n}
}

// releaseMemory gives the request's memory back, of the pool, of a window or of the
// disk.
func (c *conn) releaseMemory(r *request) {
	c.letGo(r)
	if r.memory.Data != nil {
		c.pool.Put(r.memory)
		r.memory = regcache.Slot{}
	}
	r.lease.Release()
}
