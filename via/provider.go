package via

import "context"

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
// to the kernel agent's path: they may block and allocate.
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

	// Deregister withdraws a region. When it returns no peer accesses the region,
	// nor ever will by its handle.
	Deregister(m *Memory) error

	// NewCQ creates a completion queue for entries completions.
	NewCQ(entries int) (AdapterCQ, error)

	// Listen starts to accept connection requests at a host address. It calls
	// incoming, on a goroutine of its own, for every request.
	Listen(host string, incoming func(Incoming)) (Listening, error)

	// Connect requests a connection. hello travels to the peer's Incoming; the
	// answer's reply comes back. A refusal is a [*Refused]; nobody there is
	// ErrNoMatch, ErrNotReachable or ErrTimeout.
	Connect(ctx context.Context, host string, hello []byte, cfg LinkConfig) (Link, []byte, error)

	// Close releases the device. Links, queues and listeners are closed before.
	Close() error
}

// Refused is the answer of a peer that did not accept a connection.
type Refused struct{ Reply []byte }

// Error says that the peer refused.
func (*Refused) Error() string { return "connection refused by the peer" }

// Unwrap makes a refusal an ErrReject.
func (*Refused) Unwrap() error { return ErrReject }

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

// Incoming is a connection request that awaits its answer: exactly one of Accept
// and Refuse.
type Incoming interface {
	Hello() []byte
	RemoteHost() string
	// Accept establishes the connection. It returns when the requester knows.
	Accept(ctx context.Context, reply []byte, cfg LinkConfig) (Link, error)
	Refuse(reply []byte) error
}

// LinkConfig describes the VI that a link connects.
type LinkConfig struct {
	Owner                *VI // opaque to providers; returned in Done
	Reliability          ReliabilityLevel
	MaxTransferSize      uint32
	Tag                  uint32 // protection tag: regions of this tag are the peer's to access
	RdmaWrite, RdmaRead  bool   // incoming RDMA that the VI allows
	SendDepth, RecvDepth int
	SendCQ, RecvCQ       AdapterCQ // may be the same
	Receives             []*Work   // posted before the link goes live, in order
}

// Link is one end of a connection. One goroutine at a time drives a link and
// the completion queues it is bound to. Link methods neither block nor allocate.
type Link interface {
	// PostSend starts a Send, RDMA Write or RDMA Read. It returns false while the
	// link cannot take it; it is offered again when earlier work completes. Work
	// of a link completes in the order of its posts.
	PostSend(w *Work) bool

	// PostRecv offers a receive. At most RecvDepth are outstanding.
	PostRecv(w *Work)

	// Doorbell makes everything posted so far visible to the peer and wakes it if
	// it sleeps.
	Doorbell()

	// Close ends the connection. When it returns, the link touches no memory of
	// any work; work not reported as done is not reported any more. The peer
	// learns that the connection is gone. Close may block for a short, bounded
	// time.
	Close() error

	// Stats returns the link's counters.
	Stats() LinkStats
}

// LinkStats count what a link did. A copy is a byte moved by the processor in
// user space.
type LinkStats struct {
	Sends, Receives       uint64 // messages
	RdmaWrites, RdmaReads uint64 // operations
	Doorbells             uint64 // system calls that wake the peer
	BytesCopied           uint64
	Stalls                uint64 // times the fabric had no room
}

// AdapterCQ is the provider's half of a completion queue.
type AdapterCQ interface {
	// Poll makes progress on the links bound to the queue and stores what is
	// done. It never blocks and never allocates.
	Poll(dst []Done) int

	// Arm asks for the file descriptor to become readable at the next event. It
	// returns false if Poll has something to do now.
	Arm() bool

	// FD returns the pollable file descriptor.
	FD() int

	Close() error
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
// from its post until it is done or the link is closed.
type Work struct {
	Op           Opcode
	HasImmediate bool
	Immediate    uint32
	Length       uint32    // bytes of all segments
	Segments     []Segment // inside live registered memory of the VI's tag
	RemoteAddr   uint64    // RDMA: address and handle at the peer
	RemoteHandle uint32

	Moved uint32 // the provider's: bytes transferred so far

	inline [4]Segment
	slot   *slot
}

// Segment is a piece of registered local memory.
type Segment struct {
	Bytes  []byte
	Memory *Memory
}

// Done reports the end of a work, or, with a nil Work, an event of a link.
type Done struct {
	Work      *Work
	Owner     *VI
	Status    Status // error bits, StatusOpRemoteWrite, StatusImmediate; StatusDone is implied
	Length    uint32 // bytes transferred
	Immediate uint32

	Event  AsyncCode // with a nil Work
	Broken bool      // the connection is gone: the VI enters the error state
	Cause  error
}
