package rc

import (
	"math"
	"math/bits"

	"github.com/viablk/viablk/via/roce/wire"
)

// Op is what a Work does.
type Op uint8

// The operations. A Write may carry immediate data, and so may a Send.
const (
	Send Op = iota
	Write
	Read
)

// Status is how a work or a receive ended, and why a QP is broken.
type Status uint8

// The statuses. Those of the peer come with its NAK.
const (
	OK                Status = iota
	Flushed                  // not carried out, or unknown: the QP broke before
	LocalInvalid             // not possible on this QP: longer than a message, or a Read on UC
	LocalProtection          // the segments are no longer the QP's to touch
	TooLong                  // receive: the message is longer
	Partial                  // receive: the message lost its end
	Damaged                  // receive: the message was damaged on the way, and could not be had again
	Refused                  // receive, of a Write with immediate data that was refused
	NoReceive                // a message found no receive
	BadRequest               // the peer broke a rule of the protocol, or asked for what is not allowed
	BadAccess                // the peer named memory that is not its to access
	RemoteInvalid            // NAK: not allowed there, or a Send longer than its receive
	RemoteAccess             // NAK: key, range or right of a Write or Read
	RemoteOperational        // NAK: no receive, or its memory is gone
	RetriesExceeded          // the peer does not answer
	RNRExceeded              // the peer never has a receive
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

// Work is an operation of the send queue. It belongs to the QP from Post until
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
}

func (w *Work) end() seq { return w.first + seq(w.packets) }

// Receive is a receive of the receive queue. It belongs to the QP from
// PostReceive until PollReceive returns it.
type Receive struct {
	ID       uint64   // the consumer's, for [Memory]
	Segments [][]byte // local memory, in order

	// What arrived, set when the receive ends.
	Status       Status
	Length       int  // bytes: of a Send in the segments, of a Write at its address
	ByWrite      bool // a Write with immediate data took it; the segments are as they were
	HasImmediate bool
	Immediate    uint32

	capacity int
	place    cursor
}

// seq is a PSN that does not wrap: its low 24 bits are the PSN.
type seq uint64

// startSeq leaves room below for PSNs from before the connection.
func startSeq(p wire.PSN) seq { return 1<<32 + seq(p&(1<<24-1)) }

func (s seq) psn() wire.PSN { return wire.PSN(s & (1<<24 - 1)) }

// near returns the number with this PSN that is nearest to s.
func (s seq) near(p wire.PSN) seq { return s + seq(p.Sub(s.psn())) }

// queue is a work queue: a ring of what is posted and not polled. Counters never
// wrap: polled ≤ done ≤ posted.
type queue[T any] struct {
	items                []*T
	polled, done, posted uint64
	over                 uint64 // items from here on were flushed when the QP broke
}

func newQueue[T any](depth int) queue[T] {
	return queue[T]{items: make([]*T, powerOfTwo(depth)), over: math.MaxUint64}
}

// powerOfTwo rounds up.
func powerOfTwo(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

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

// ended reports whether an item waits to be polled that was not flushed at last.
func (q *queue[T]) ended() bool { return q.polled < min(q.done, q.over) }

// poll takes the first item that is done, or nil.
func (q *queue[T]) poll() *T {
	if q.polled == q.done {
		return nil
	}
	slot := &q.items[q.polled&uint64(len(q.items)-1)]
	x := *slot
	*slot = nil
	q.polled++
	return x
}
