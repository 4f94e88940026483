package rc

import (
	"math"
	"math/bits"

	"github.com/viablk/viablk/via/roce/wire"
)

// Op is the operation of a Work.
type Op uint8

// The operations. A Write may carry immediate data, and so may a Send.
const (
	Send Op = iota
	Write
	Read
)

// Status is the result of a work or a receive, and why a QP is broken.
type Status uint8

// The statuses. Remote ones come with a NAK of the peer.
const (
	OK                Status = iota
	Flushed                  // not executed, or unknown: the QP broke before
	LocalInvalid             // not possible: longer than a message, or a Read on UC
	LocalProtection          // the QP may no longer access the segments
	TooLong                  // receive: the message is longer
	Partial                  // receive: the message lost its end
	Damaged                  // receive: the message was damaged, not retransmitted
	Refused                  // receive, of a Write with immediate data that was refused
	NoReceive                // a message found no receive
	BadRequest               // the peer broke the protocol or lacks the right
	BadAccess                // the peer may not access the memory
	RemoteInvalid            // NAK: not allowed there, or a Send longer than its receive
	RemoteAccess             // NAK: key, range or right of a Write or Read
	RemoteOperational        // NAK: no receive, or its memory is gone
	RetriesExceeded          // the peer does not answer
	RNRExceeded              // the peer had no receive in time
	Closed                   // broken by [QP.Break]
)

var statusNames = [...]string{
	"ok", "flushed", "invalid work", "local protection", "message too long",
	"partial message", "damaged message", "refused write", "no receive", "bad request", "bad access",
	"remote invalid request", "remote access error", "remote operational error",
	"retries exceeded", "RNR retries exceeded", "closed",
}

// String returns what the status means.
func (s Status) String() string { return statusNames[s] }

// Work is an operation of the send queue. The QP owns it from Post until
// PollSend returns it.
type Work struct {
	ID           uint64 // the consumer's, for [Memory]
	Op           Op
	HasImmediate bool
	Immediate    uint32
	Key          uint32 // Write, Read: R_Key and address at the peer
	Addr         uint64
	Segments     [][]byte // local memory, in order

	Status Status // set when the work ends

	length  int
	first   seq // its first packet
	packets int // PSNs it takes
	got     int // Read: responses in place
	piece   int // Read: packets of a piece; 0 until it begins
	place   cursor
	counts  bool // for the line
	before  seq  // packets of earlier works that count
}

func (w *Work) end() seq { return w.first + seq(w.packets) }

// Receive is a receive of the receive queue. The QP owns it from PostReceive
// until PollReceive returns it.
type Receive struct {
	ID       uint64   // the consumer's, for [Memory]
	Segments [][]byte // local memory, in order

	// The result, set when the receive ends.
	Status       Status
	Length       int  // bytes: of a Send in the segments, of a Write at its address
	ByWrite      bool // consumed by a Write with immediate data
	HasImmediate bool
	Immediate    uint32

	capacity int
	place    cursor
}

// seq is a PSN that does not wrap: its low 24 bits are the PSN.
type seq uint64

// startSeq leaves room for PSNs from before the connection.
func startSeq(p wire.PSN) seq { return 1<<32 + seq(p&(1<<24-1)) }

func (s seq) psn() wire.PSN { return wire.PSN(s & (1<<24 - 1)) }

// near returns the number with this PSN that is nearest to s.
func (s seq) near(p wire.PSN) seq { return s + seq(p.Sub(s.psn())) }

// queue is a work queue: a ring of items that are posted and not polled.
// Counters never wrap: polled ≤ done ≤ posted.
type queue[T any] struct {
	items                []*T
	polled, done, posted uint64
	flushedFrom          uint64 // items from here on were flushed when the QP broke
}

func newQueue[T any](depth int) queue[T] {
	return queue[T]{items: make([]*T, powerOfTwo(depth)), flushedFrom: math.MaxUint64}
}

// powerOfTwo rounds up to a power of two.
func powerOfTwo(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

// incomplete returns how many items are posted and not done.
func (q *queue[T]) incomplete() int { return int(q.posted - q.done) }

func (q *queue[T]) at(i uint64) *T { return q.items[i&uint64(len(q.items)-1)] }

func (q *queue[T]) full() bool { return q.posted-q.polled == uint64(len(q.items)) }

func (q *queue[T]) post(x *T) {
	q.items[q.posted&uint64(len(q.items)-1)] = x
	q.posted++
}

// oldest returns the first item that is not done, or nil.
func (q *queue[T]) oldest() *T {
	if q.done == q.posted {
		return nil
	}
	return q.at(q.done)
}

// ended reports whether a completed item waits to be polled that was not
// flushed when the QP broke.
func (q *queue[T]) ended() bool { return q.polled < min(q.done, q.flushedFrom) }

// breaks makes the items that are not done flushed ones.
func (q *queue[T]) breaks() { q.flushedFrom = min(q.flushedFrom, q.done) }

// poll removes the first completed item, or returns nil.
func (q *queue[T]) poll() *T {
	if q.polled == q.done {
		return nil
	}
	entry := &q.items[q.polled&uint64(len(q.items)-1)]
	x := *entry
	*entry = nil
	q.polled++
	return x
}
