// Package block is the contract between everything that serves disks and
// everything that is one.
//
// A [Device] is a disk: a backend of the target, or the initiator with a whole
// remote target behind it. A [Queue] is one submission and completion context
// of a device, driven by one goroutine: an NBD connection, a VIA connection, or
// a caller of the synchronous [Disk]. The contract is asynchronous and batched,
// because on the fast path one system call or one doorbell serves many
// requests.
//
// A request travels
//
//	Reserve ─▶ (fill Data) ─▶ Submit ─▶ Kick ─▶ Reap ─▶ (use Data) ─▶ Release
//
// between Submit and Reap it waits, then begins: from there on it has its
// effect, whatever becomes of its owner.
//
// The package knows neither NBD nor VIA. [Info.Check] validates a request once,
// at the boundary where it enters the process; the layers behind that boundary
// do not validate again.
package block

import (
	"time"

	"github.com/viablk/viablk/internal/loop"
)

// Op is what a request asks for.
type Op uint8

// The operations. The zero Op is invalid.
const (
	Read        Op = 1 + iota // fill Data from the disk
	Write                     // store Data on the disk
	Flush                     // make every write answered before it durable
	Trim                      // the range may be discarded; its content is undefined afterwards
	WriteZeroes               // the range reads as zeroes afterwards
	Status                    // fill Extents with what the range consists of
	Prefetch                  // the range will be read soon; a hint
)

// String returns the name of the operation, in lower case.
func (o Op) String() string {
	switch o {
	case Read:
		return "read"
	case Write:
		return "write"
	case Flush:
		return "flush"
	case Trim:
		return "trim"
	case WriteZeroes:
		return "write zeroes"
	case Status:
		return "status"
	case Prefetch:
		return "prefetch"
	}
	return "unknown operation"
}

// Flags modify an operation.
type Flags uint8

// The flags.
const (
	FUA      Flags = 1 << iota // Write, WriteZeroes, Trim: answer only when durable
	NoHole                     // WriteZeroes: keep the range allocated
	FastZero                   // WriteZeroes: fail with ENOTSUP unless faster than writing
)

// Features are what a device can do.
type Features uint32

// The features.
const (
	CanFlush       Features = 1 << iota
	CanFUA                  // FUA is honoured on Write, WriteZeroes and Trim
	CanTrim                 // Trim is served
	CanWriteZeroes          // WriteZeroes is served
	CanFastZero             // FastZero is honoured
	CanMultiConn            // a Flush on one queue covers writes answered on every queue
	ReadOnly                // Write, Trim and WriteZeroes are refused with EPERM
	Rotational              // seeks are expensive
	CanStatus               // Status is served
	CanPrefetch             // Prefetch is served

	// KnownFeatures are all of them.
	KnownFeatures = 1<<iota - 1
)

// MaximumDepth is the largest depth of a queue, in requests.
const MaximumDepth = 1024

// PayloadLimit is the MaximumPayload of disks that have no reason for another,
// in bytes. Suites and clients in the field send requests of up to 50 MiB.
const PayloadLimit = 64 << 20

// Info describes a device. Nothing but Size changes while the device is open: a
// disk that is resized has another Size from then on. A server that announces
// an Info to its clients, or checks their requests, uses one Info for the whole
// session.
type Info struct {
	Size           int64  // bytes, a multiple of MinimumBlock
	MinimumBlock   uint32 // bytes, power of two; offsets and lengths are multiples of it
	PreferredBlock uint32 // bytes, power of two
	MaximumPayload uint32 // bytes, longest Read or Write
	Features       Features
}

// Request is one I/O. The caller owns it except between Submit and Reap, when
// the queue does. A request is reused freely; a queue keeps no reference to it
// after Reap returned it and Release, where it applies, was called.
type Request struct {
	Op     Op
	Flags  Flags
	Offset int64 // bytes
	Length int64 // bytes; len(Data) for Read and Write

	// Data is the payload of Read and Write. If it is set before Submit without
	// Reserve, it is the caller's memory and any memory will do. See
	// [Queue.Reserve] for memory that the queue provides.
	Data []byte

	// Extents is the result of Status. The caller provides its memory, whose
	// capacity bounds the answer; the device appends to what is before its
	// length, which is 0. See [Request.AddExtent].
	Extents []Extent

	// Err is the result, valid once Reap returned the request: nil, or an error
	// from which [Errno] takes an errno.
	Err error

	User   uint64 // the caller's, untouched by queues
	Token  uint64 // the queue's between Submit and Reap
	Memory uint64 // the queue's between Reserve and Release; 0 means nothing is reserved
}

// Device is a disk. Its methods are safe for concurrent use.
type Device interface {
	// Info returns the present description of the disk. It never blocks. A
	// request that is right by an earlier one, and reaches behind the end of a
	// disk that became shorter meanwhile, fails as [Info.Check] would have it.
	Info() Info

	// NewQueue opens a queue that holds at most depth requests at a time,
	// 1 ≤ depth ≤ 1024. It may block (a remote device connects).
	NewQueue(depth int) (Queue, error)

	// Close releases the device. Every queue must have been closed before.
	Close() error
}

// Queue is a submission and completion context of a device. One goroutine at a
// time drives it, on whatever thread: no method is safe for concurrent use with
// another, except where a file descriptor is polled. No method but Close
// blocks, and in steady state none allocates.
//
// Requests of one queue execute concurrently and complete in any order. Those
// that overlap, on whichever queues of the device, are atomic in every
// [AtomicUnit]. A Flush covers the writes that Reap returned before the Flush
// was submitted (with CanMultiConn: on every queue of the device).
type Queue interface {
	// Reserve provides memory for a Read or Write whose Op and Length are set:
	// for Write it sets r.Data to r.Length bytes for the caller to fill; for
	// Read it sets r.Data at once or when the request completes, as suits the
	// queue. It returns false, and reserves nothing, while no memory is free:
	// the caller tries again after it released something. A queue with nothing
	// reserved grants any Length up to Info.MaximumPayload, unless the machine
	// is out of memory: the caller then tries again after a moment. Memory
	// handed out may hold stale bytes of the same queue, never others'.
	Reserve(r *Request) bool

	// Release gives back what Reserve provided and clears r.Data. It is called
	// after Reap, or instead of Submit. On a request with nothing reserved it
	// does nothing.
	Release(r *Request)

	// Submit hands r to the queue. It returns false if depth requests are in
	// flight; r is then still the caller's. The request may wait for Kick.
	Submit(r *Request) bool

	// Kick starts everything submitted so far: one doorbell for the batch.
	Kick()

	// Reap stores finished requests in dst and returns how many. It also lets
	// the queue make progress: while requests are in flight its owner keeps
	// calling it.
	Reap(dst []*Request) int

	// Arm prepares the owner's sleep. It returns ok false if Reap has something
	// to return or to do now. Otherwise FD becomes readable at the next
	// completion, and the owner calls Reap again when it does, or after d (> 0)
	// at the latest; d is negative if there is no such deadline.
	Arm() (d time.Duration, ok bool)

	// FD returns a file descriptor to poll for reading after Arm, or -1 if no
	// request is ever in flight after Kick. It is the same during the queue's
	// life, but for a device that reconnects: a queue without a connection has
	// another one, so the owner asks after each Arm. The queue consumes what
	// makes it readable; the owner only polls.
	FD() int

	// Abort drops what has not begun: Reap returns those requests with
	// ECANCELED, and they have no effect, not even later. Requests that have
	// begun go on to their end. The owner submits nothing afterwards.
	Abort()

	// Close aborts and ends the queue. It waits until the device touches no
	// memory of any request: those that have begun are finished, and all are
	// discarded.
	Close() error
}

// Reopener is a Queue whose descriptor may become another file under the same
// number.
type Reopener interface {
	Queue

	// FDVersion returns a number that changes when it has.
	FDVersion() uint64
}

// FDVersion returns the version of a queue's descriptor, 0 of a queue that
// keeps its descriptor.
func FDVersion(q Queue) uint64 {
	if r, ok := q.(Reopener); ok {
		return r.FDVersion()
	}
	return 0
}

// EdgeArmer is a Queue that saves system calls if its owner watches the
// descriptor for edges (EPOLLET).
type EdgeArmer interface {
	Queue

	// ArmEdge is Arm, which also reports whether the owner has to watch for
	// edges: then the descriptor may stay readable, and the next completion is
	// an edge of it all the same.
	ArmEdge() (d time.Duration, edges, ok bool)
}

// ArmEdge arms a queue for an owner that can watch for edges.
func ArmEdge(q Queue) (d time.Duration, edges, ok bool) {
	if a, is := q.(EdgeArmer); is {
		return a.ArmEdge()
	}
	d, ok = q.Arm()
	return d, false, ok
}

// Sharer is a Queue whose completions come from peers that can go by the sleep
// flag of its owner's thread.
type Sharer interface {
	Queue

	// Source returns what the loop shares its flag with, after ArmEdge; nil: the
	// descriptor alone wakes the owner.
	Source() loop.Source
}

// SourceOf returns the source of a queue, nil if it has none.
func SourceOf(q Queue) loop.Source {
	if s, is := q.(Sharer); is {
		return s.Source()
	}
	return nil
}

// IdleReleaser is a Queue that keeps memory for its next requests and can
// release it early.
type IdleReleaser interface {
	Queue

	// ReleaseIdle releases the memory at once instead of after a delay. It does
	// nothing while a request has memory reserved. The next Reserve maps it
	// again.
	ReleaseIdle()
}
