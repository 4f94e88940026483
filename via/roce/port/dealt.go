package port

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/viablk/viablk/via/roce/wire"
)

// dealtLane is the receiving half of a lane to which somebody else deals packets
// out: it has no socket, but an inbox.
type dealtLane struct {
	tally
	verifier
	inbox *inbox
}

func (l *dealtLane) FD() int { return l.inbox.fd }

func (l *dealtLane) Receive(dst []Arrival) (int, error) {
	n, err := l.inbox.take(dst)
	if err != nil {
		return 0, err
	}
	l.took(dst[:n])
	return n, nil
}

func (l *dealtLane) Intact(a *Arrival) bool {
	ok := l.intact(a)
	if !ok {
		l.badICRC.Add(1)
	}
	return ok
}

// dealer has the lanes of a port and deals packets out to them.
type dealer struct {
	lanes atomic.Pointer[[]*dealtLane]

	mu     sync.Mutex // of those who open lanes
	open   []Lane     // what the lanes are part of
	closed bool
}

// lane opens a lane of a port at an address, or returns it if it is open. make
// adds what it sends with.
func (d *dealer) lane(i int, local netip.AddrPort, make func(*dealtLane) Lane) (Lane, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if isOpen, err := checkLane(i, len(d.open), d.closed); err != nil {
		return nil, err
	} else if isOpen {
		return d.open[i], nil
	}
	q, err := newInbox()
	if err != nil {
		return nil, fmt.Errorf("port %v: lane %d: %w", local, i, err)
	}
	l := &dealtLane{inbox: q, verifier: verifier{local: local}}
	d.open = append(d.open, make(l))
	lanes := append((*d.all())[:i:i], l)
	d.lanes.Store(&lanes)
	return d.open[i], nil
}

// checkLane reports whether a lane is open, and why it cannot be opened.
func checkLane(i, open int, closed bool) (isOpen bool, err error) {
	switch {
	case closed:
		return false, net.ErrClosed
	case i < 0 || i >= Lanes:
		return false, fmt.Errorf("lane %d: there are %d", i, Lanes)
	case i > open:
		return false, fmt.Errorf("lane %d: lane %d is opened first", i, open)
	}
	return i < open, nil
}

// all returns the lanes that are open.
func (d *dealer) all() *[]*dealtLane {
	if lanes := d.lanes.Load(); lanes != nil {
		return lanes
	}
	return &noLanes
}

var noLanes []*dealtLane

// laneFor returns the lane for a packet, one that names no queue pair being lane
// 0's; nil if no lane is open.
func (d *dealer) laneFor(packet []byte) *dealtLane {
	lanes := *d.all()
	if len(lanes) == 0 {
		return nil
	}
	i := 0
	if len(packet) >= wire.BTHSize {
		i = LaneOf(destQP(packet)) % len(lanes)
	}
	return lanes[i]
}

func (d *dealer) hasClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// close closes the lanes.
func (d *dealer) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	var errs []error
	for _, l := range *d.all() {
		errs = append(errs, l.inbox.close())
	}
	return errors.Join(errs...)
}
