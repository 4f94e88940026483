package port

import (
	"fmt"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/via/roce/wire"
)

// inboxPackets bounds what waits for a lane that whoever reads for it fills. It
// is 4 MiB of the longest packets.
const inboxPackets = 1024

// datagram is a packet in an inbox.
type datagram struct {
	from           netip.AddrPort
	identification wire.Identification
	size           int
	late           int // packets and empty receives that it lets go first
	bytes          [wire.MaxPacket]byte
}

// inbox is the receive queue of a lane that has no socket of its own. One
// goroutine at a time takes, anyone puts. Memory is made as it is needed, up to
// the bound, and kept.
type inbox struct {
	// fd is an eventfd, readable while rung.
	fd int

	mu      sync.Mutex
	queue   [inboxPackets]*datagram
	first   int // index of the oldest
	waiting int
	late    []*datagram
	free    []*datagram
	held    []*datagram // what was taken last
	made    int
	rung    bool
	closed  bool
}

func newInbox() (*inbox, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create an eventfd: %w", err)
	}
	return &inbox{fd: fd}, nil
}

// reserve returns an empty datagram, or nil if there is no room.
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

// release gives back a datagram that was reserved.
func (q *inbox) release(d *datagram) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.free = append(q.free, d)
}

// put appends a datagram that was reserved.
func (q *inbox) put(d *datagram) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	if d.late > 0 {
		q.late = append(q.late, d)
	} else {
		q.push(d)
		q.tick()
	}
	if !q.rung {
		q.rung = true
		eventfd.Ring(q.fd)
	}
}

// push appends to the queue, which has room for all there are.
func (q *inbox) push(d *datagram) {
	q.queue[(q.first+q.waiting)%inboxPackets] = d
	q.waiting++
}

// tick lets late datagrams come closer.
func (q *inbox) tick() {
	kept := q.late[:0]
	for _, d := range q.late {
		if d.late--; d.late > 0 {
			kept = append(kept, d)
		} else {
			q.push(d)
		}
	}
	q.late = kept
}

// take stores what has arrived and takes back the memory of what it stored
// before.
func (q *inbox) take(dst []Arrival) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return 0, net.ErrClosed
	}
	q.free = append(q.free, q.held...)
	q.held = q.held[:0]
	if q.waiting == 0 {
		q.tick()
	}
	n := min(len(dst), q.waiting)
	for i := range n {
		d := q.queue[q.first]
		q.first = (q.first + 1) % inboxPackets
		q.held = append(q.held, d)
		dst[i] = Arrival{From: d.from, Bytes: d.bytes[:d.size:d.size], identification: d.identification, known: true}
	}
	q.waiting -= n
	if q.rung && q.waiting == 0 && len(q.late) == 0 {
		q.rung = false
		eventfd.Drain(q.fd)
	}
	return n, nil
}

func (q *inbox) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// close closes the eventfd and drops what is waiting.
func (q *inbox) close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil
	}
	q.closed = true
	q.waiting = 0
	q.late = nil
	if err := unix.Close(q.fd); err != nil {
		return fmt.Errorf("close an eventfd: %w", err)
	}
	return nil
}
