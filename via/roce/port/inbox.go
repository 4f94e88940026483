package port

import (
	"net"
	"net/netip"
	"sync"

	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/via/roce/wire"
)

// inboxPackets bounds the packets in an inbox: 4 MiB of the longest packets.
const inboxPackets = 1024

// datagram is a packet in an inbox.
type datagram struct {
	from           netip.AddrPort
	identification wire.Identification
	size           int
	delay          int // packets and empty calls of Receive that overtake it
	bytes          [wire.MaxPacket]byte
}

// inbox is the receive queue of a shard without a socket. One goroutine at a
// time dequeues, any goroutine puts. Memory is allocated on demand, up to the
// bound, and reused.
type inbox struct {
	// fd is an eventfd, readable while rung.
	fd int

	mu      sync.Mutex
	queue   [inboxPackets]*datagram
	first   int // index of the oldest packet
	waiting int
	delayed []*datagram
	// +checklocks:mu
	free []*datagram
	// +checklocks:mu
	lent []*datagram // datagrams of the last dequeue
	// +checklocks:mu
	made int
	// +checklocks:mu
	signaled bool
	// +checklocks:mu
	closed bool
}

func newInbox() (*inbox, error) {
	fd, err := eventfd.New()
	if err != nil {
		return nil, err
	}
	return &inbox{fd: fd}, nil
}

// reserve returns an empty datagram, or nil if the inbox is full.
func (q *inbox) reserve() *datagram {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.free); n > 0 {
		d := q.free[n-1]
		q.free = q.free[:n-1]
		return d
	}
	if q.made == inboxPackets || q.closed {
		return nil
	}
	q.made++
	return new(datagram)
}

// release frees a reserved datagram.
func (q *inbox) release(d *datagram) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.free = append(q.free, d)
}

// put appends a reserved datagram.
func (q *inbox) put(d *datagram) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	if d.delay > 0 {
		q.delayed = append(q.delayed, d)
	} else {
		q.push(d)
		q.advanceDelayed()
	}
	if !q.signaled {
		q.signaled = true
		eventfd.Ring(q.fd)
	}
}

// push appends to the queue, whose capacity is the bound of datagrams.
func (q *inbox) push(d *datagram) {
	q.queue[(q.first+q.waiting)%inboxPackets] = d
	q.waiting++
}

// advanceDelayed counts down the delays of reordered datagrams.
func (q *inbox) advanceDelayed() {
	kept := q.delayed[:0]
	for _, d := range q.delayed {
		if d.delay--; d.delay > 0 {
			kept = append(kept, d)
		} else {
			q.push(d)
		}
	}
	q.delayed = kept
}

// dequeue stores packets that have arrived, and frees those of the previous
// call.
func (q *inbox) dequeue(dst []Arrival) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, net.ErrClosed
	}
	q.free = append(q.free, q.lent...)
	q.lent = q.lent[:0]
	if q.waiting == 0 {
		q.advanceDelayed()
	}
	n := min(len(dst), q.waiting)
	for i := range n {
		d := q.queue[q.first]
		q.first = (q.first + 1) % inboxPackets
		q.lent = append(q.lent, d)
		dst[i] = Arrival{From: d.from, Bytes: d.bytes[:d.size:d.size], identification: d.identification, known: true}
	}
	q.waiting -= n
	if q.signaled && q.waiting == 0 && len(q.delayed) == 0 {
		q.signaled = false
		eventfd.Drain(q.fd)
	}
	return n, nil
}

func (q *inbox) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// close closes the eventfd and drops the queued packets.
func (q *inbox) close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil
	}
	q.closed = true
	q.waiting = 0
	q.delayed = nil
	return eventfd.Close(q.fd)
}
