package via

import (
	"context"
	"fmt"
	"time"
)

// A Provider opens devices of one kind of fabric. Provider, Adapter, AdapterCQ,
// Listening, Incoming and Link are everything that a fabric implements: they
// move bytes and report completions. Descriptor formats, states, protection of
// local memory and the order of queues are the user agent's.
type Provider interface {
	// Name is the word used in URIs, such as "shm".
	Name() string

	// Open opens a device by name; "" is the default device.
	Open(device string) (Adapter, error)
}

// Adapter is an open device. Its methods are safe for concurrent use and belong
// to the kernel agent's path: they may block and allocate. Their errors wrap
// the return code where the adapter knows it; one that wraps none becomes
// ErrResource, or where a peer is asked ErrNotReachable.
type Adapter interface {
	// Limits returns the device's limits, the same during its life.
	Limits() Limits

	// MapArena maps size bytes of memory that the device can expose to peers.
	MapArena(size int) (ArenaMemory, error)

	// Register makes a region known to the device. The region's remote access
	// takes effect before Register returns.
	Register(m *Memory) error

	// Update applies changed attributes of a registered region.
	Update(m *Memory) error

	// Deregister withdraws a region. When it returns no peer accesses the
	// region, nor ever will by its handle; otherwise the error wraps
	// ErrStillAccessed.
	Deregister(m *Memory) error

	// Accessed reports whether a peer may still be inside an access to a region
	// that it was allowed by a link that is closed, or by a registration that
	// has ended. It is false once the peer is out or dead, and always where
	// Close and Deregister never return ErrStillAccessed.
	Accessed(m *Memory) bool

	// NewCQ creates a completion queue for entries completions.
	NewCQ(entries int) (AdapterCQ, error)

	// Listen starts to accept connection requests at a host address. It calls
	// incoming, on a goroutine of its own, for every request.
	Listen(host string, incoming func(Incoming)) (Listening, error)

	// Connect requests a connection. hello travels to the peer's Incoming; the
	// answer's reply comes back. A refusal is a [*Refused]; a missing listener
	// is ErrNotReachable or ErrTimeout; a [*FabricError] breaks the VI. The
	// link does nothing until its Start.
	Connect(ctx context.Context, host string, hello []byte, cfg LinkConfig) (Link, []byte, error)

	// Close releases the device. Links, queues and listeners are closed before.
	Close() error
}

// ErrDeviceFailed is what an adapter's methods wrap when the device is beyond
// use. Its NIC fails as by an event AsyncCatastrophic of a link; a device
// without links has no other way to tell.
var ErrDeviceFailed = fmt.Errorf("device has failed: %w", ErrResource)

// ErrStillAccessed is what [VI.Disconnect], [Memory.Deregister] and the like
// wrap when a peer did not end its access to a region in time. The memory is
// not reused before [Memory.Accessed] is false.
var ErrStillAccessed = fmt.Errorf("a peer may still access the memory: %w", ErrResource)

// Refused is the answer of a peer that did not accept a connection. A reply
// without bytes, or of zeros, which fill the field of some fabrics, gives no
// reason: the listener closed or has no room.
type Refused struct{ Reply []byte }

// Error says that the peer refused.
func (*Refused) Error() string { return "connection refused by the peer" }

// Unwrap makes a refusal an ErrReject.
func (*Refused) Unwrap() error { return ErrReject }

// FabricError is a failure of the device or the fabric while a connection was
// being established, not an answer of the peer: the pending VI enters its error
// state (VIA 1.0 §2.2).
type FabricError struct{ Cause error }

// Error tells the cause.
func (e *FabricError) Error() string { return "fabric failed: " + e.Cause.Error() }

// Unwrap returns the cause and ErrNotReachable.
func (e *FabricError) Unwrap() []error { return []error{ErrNotReachable, e.Cause} }

// BatchDeregisterer is an Adapter that withdraws several regions with one wait
// for peers. It withdraws all of them, whatever the error, which joins theirs.
type BatchDeregisterer interface {
	DeregisterAll(list []*Memory) error
}

// Joinable is an Adapter that can be one of several parts of a NIC, see package
// joint. A region that has a handle when it gets to Register keeps it: its
// lower 16 bits are less than MaxRegisterRegions of each part, and no other
// region of the NIC has them.
type Joinable interface {
	// PrivateArenas reports whether the device exposes memory only that it has
	// mapped itself. One part of a NIC may be like that: it maps all arenas.
	PrivateArenas() bool
}

// ArenaMemory is memory mapped by an adapter. Close unmaps it.
type ArenaMemory interface {
	Bytes() []byte
	// Discard gives the pages of a range back; the range reads as zeroes.
	Discard(off, n int) error
	Close() error
}

// Listening is an active Listen. Close stops it and waits for its goroutines;
// requests not yet answered are refused.
type Listening interface {
	Close() error
}

// Incoming is a connection request that awaits its answer: exactly one of
// Accept and Refuse.
type Incoming interface {
	Hello() []byte
	RemoteHost() string
	// Accept establishes the connection. It returns when the requester knows.
	// The link does nothing until its Start.
	Accept(ctx context.Context, reply []byte, cfg LinkConfig) (Link, error)
	Refuse(reply []byte) error
}

// Confirmer is an Incoming that can answer before there is a VI.
type Confirmer interface {
	// Confirm sends the reply, and returns when the requester has shown that it
	// got it. Accept or Refuse follows; neither sends a reply then. The fabric
	// keeps messages that arrive meanwhile. After an error neither follows.
	Confirm(ctx context.Context, reply []byte, level ReliabilityLevel) error
}

// LinkConfig describes the VI that a link connects.
type LinkConfig struct {
	Owner                *VI // opaque to providers; named in events
	Reliability          ReliabilityLevel
	MaxTransferSize      uint32
	Tag                  uint32    // protection tag: regions of this tag are the peer's to access
	RdmaWrite, RdmaRead  bool      // incoming RDMA that the VI allows
	SendDepth, RecvDepth int       // works that the link holds at most
	SendCQ, RecvCQ       AdapterCQ // may be the same
	Faults               Faults    // nil but under test
}

// Link is one end of a connection. One goroutine at a time drives a link and
// the completion queues it is bound to. Link methods but Start and Close
// neither block nor allocate.
//
// The reliability level decides how a link handles an error (VIA 1.0 §2.5):
//
//	unreliable delivery  only the work or message concerned fails. A Send or
//	                     RDMA Write is done when it is in flight, even if it
//	                     is lost; it never waits for the peer.
//	reliable delivery    the same, but every error breaks the connection, and
//	                     works in flight are delivered in order, once, or not.
//	reliable reception   a Send or RDMA Write is done when its bytes are in
//	                     the peer's memory, or with the error of the peer;
//	                     works posted after it are then not delivered.
type Link interface {
	// Start binds the link to its completion queues, with receives posted in
	// this order, and lets data flow. Until then the link touches neither, and
	// what the peer sends waits. It is called once, by the goroutine that
	// drives the link.
	Start(receives []*Work) error

	// PostSend starts a Send, RDMA Write or RDMA Read. It returns false while
	// the link cannot take it; it is offered again when earlier work completes.
	// Work of a link completes in the order of its posts.
	PostSend(w *Work) bool

	// PostRecv offers a receive. At most RecvDepth are outstanding.
	PostRecv(w *Work)

	// Doorbell makes everything posted so far visible to the peer and wakes it
	// if it sleeps.
	Doorbell()

	// Close ends the connection. When it returns, the link touches no memory of
	// any work; work not reported as done is not reported any more. The peer
	// learns that the connection is gone, and accesses no region any more. Close
	// may block for a short, bounded time. If the peer may be inside an access
	// even then, Close fails closed: the connection has ended, the error wraps
	// ErrStillAccessed, and Adapter.Accessed tells of which region. A device
	// that moves the data itself is stopped by Close and never does that; where
	// the peer's processor copies, a stopped process can be amid a copy.
	Close() error

	// Stats returns the link's counters.
	Stats() LinkStats
}

// Lively is a Link that tells more of its peer than the ends of works: a long
// transfer has none for a while.
type Lively interface {
	// Life returns a number that changes when the peer executes, answers or
	// sends something in turn. It does not change for packets that repeat
	// others. Any goroutine may call it.
	Life() uint64

	// AnswerTime returns how long an answer of the peer may take, by the slowest
	// round trips that this end measured of late to its host; 0 where they are
	// short. A peer that is silent does not change it. Any goroutine may call
	// it.
	AnswerTime() time.Duration
}

// QuietLink is a Lively whose ends need no message to keep each other alive.
type QuietLink interface {
	Lively

	// KeepAlive changes what the peer's Life returns. It makes no system call
	// and does not wake the peer. Nothing else that this end does changes that
	// Life. KeepAlive returns false if the fabric cannot do it. Any goroutine
	// may call it.
	KeepAlive() bool
}

// LinkStats count what a link did. A copy is a byte moved by the processor in
// user space.
type LinkStats struct {
	Sends, Receives       uint64 // messages
	RdmaWrites, RdmaReads uint64 // operations
	Records               uint64 // sent: records of a ring, or packets, answers included
	Doorbells             uint64 // system calls that wake the peer
	BytesCopied           uint64
	Stalls                uint64 // times the fabric had no room
	Dropped               uint64 // messages lost at unreliable delivery, as far as this end knows
}

// AdapterCQ is the provider's half of a completion queue.
type AdapterCQ interface {
	// Poll makes progress on the links bound to the queue and stores what is
	// done. It never blocks and never allocates.
	Poll(dst []Done) int

	// Arm asks for the file descriptor to become readable at the next event. It
	// returns false if Poll has something to do now.
	Arm() bool

	// FD returns the pollable file descriptor, the same during the queue's
	// life. While no link is bound to the queue, and Poll has returned nothing
	// since the last one was, nothing makes it readable.
	FD() int

	// Resize makes room for entries completions; what is in the queue stays.
	// Fewer than that is ErrResource.
	Resize(entries int) error

	Close() error
}

// Disarmer is an AdapterCQ that saves system calls if it knows that its
// consumer does not sleep.
type Disarmer interface {
	// Disarm withdraws Arm: works that are posted until the next Arm need not
	// make the file descriptor readable. Poll does the same.
	Disarm()
}

// EdgeArmer is an AdapterCQ that saves system calls if its consumer watches the
// file descriptor for edges (EPOLLET).
type EdgeArmer interface {
	// ArmEdge is Arm, but the file descriptor may stay readable: the next event
	// is an edge of it all the same.
	ArmEdge() bool
}

// SleepSharer is an AdapterCQ whose peers can go by a flag that says whether a
// thread of this process sleeps, package sleepflag. Queues that one thread
// drives share its flag: while it is awake no peer makes a system call for it,
// and in each sleep a process makes one for all of them.
type SleepSharer interface {
	// Share has the peers of a queue that ArmEdge has armed go by a flag of
	// this process. It returns false if one cannot; then nothing has changed.
	// The thread asks Pending after it has set the flag and again after it has
	// cleared it; another event makes FD readable as before. It drives the
	// queue until Poll or Disarm ends that, or Share with a negative flag: then
	// the queue is armed as after ArmEdge, unless Pending finds work.
	Share(flag int) bool

	// Pending reports whether Poll has something to do.
	Pending() bool
}

// Opcode is what a Work does.
type Opcode uint8

// The opcodes; the first three are the descriptor's.
const (
	OpSend Opcode = iota
	OpRdmaWrite
	OpRdmaRead
	OpRecv
)

// Work is a checked descriptor as the provider gets it. The provider owns it
// from its post until it is done or the link is closed. A work with one segment
// touches two cache lines.
type Work struct {
	Op           Opcode
	HasImmediate bool
	place        uint16    // in its queue; no two works of it have the same
	Immediate    uint32    // of a receive: set by the provider, valid with StatusImmediate
	Length       uint32    // bytes of all segments
	RemoteHandle uint32    // RDMA: handle and address at the peer
	RemoteAddr   uint64    //
	Segments     []Segment // inside live registered memory of the VI's tag

	// The provider's: bytes transferred so far, and, once the work is done,
	// error bits, StatusOpRemoteWrite and StatusImmediate; StatusDone is
	// implied.
	Moved  uint32
	Status Status

	queue  *workQueue
	inline [2]Segment
}

// Segment is a piece of registered local memory.
type Segment struct {
	Bytes  []byte
	Memory *Memory
}

// Done reports a work that is done or, with a nil Work, an event of a link.
type Done struct {
	Work  *Work
	Event *Event
}

// Event is what a link reports beside the ends of works.
type Event struct {
	Owner  *VI
	Code   AsyncCode
	Broken bool // the connection is gone; nothing follows
	Cause  error
}

// Fault is what a fabric under test does to a Send or an RDMA operation.
type Fault uint8

// The faults.
const (
	FaultNone      Fault = iota
	FaultDrop            // it is lost
	FaultDuplicate       // it arrives twice
	FaultReorder         // it arrives after its successor
	FaultCorrupt         // a bit of it is flipped on the way
	FaultTruncate        // its end is missing
	FaultCut             // the connection is cut in the middle of it
)

// Faults decides about the faults of a link. A provider asks it once for each
// Send, RDMA Write and RDMA Read, in the order in which it carries them out,
// and does to its own units on the wire what the answer says: what the
// consumers see is the work of the level's machinery, not of the test.
type Faults interface {
	Next(w *Work) Fault
}
