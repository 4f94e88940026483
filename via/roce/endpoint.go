package roce

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/wire"
)

// endpoint is a UDP address: a port, its lanes, and a connection manager. It
// exists as long as somebody listens at it, connects from it or has a link of it.
type endpoint struct {
	provider *Provider
	kernel   bool // packets are sent by sockets
	port     port.Port
	local    netip.AddrPort
	lanes    atomic.Pointer[[]*lane] // by index, from 1 on; lane 0 is the manager's
	inbox    inbox                   // packets to queue pair 1 that arrived at other lanes
	tally    tally                   // of lane 0

	waiting *waiting      // of the goroutine
	ended   chan struct{} // closed when it has

	users     int           // guarded by provider.mu
	unusedAt  time.Duration // when the last one left; guarded by provider.mu
	attention attention     // of the goroutine

	// mu is taken for a moment, also by who has the turn of a lane; who has it
	// takes no turn.
	mu            sync.Mutex
	manager       *cm.Manager
	lane          port.Lane // lane 0
	conversations map[cm.ID]*conversation
	services      map[wire.ServiceID]*listening
	numbers       map[uint32]struct{} // queue pair numbers in use
	assigned      map[*cq]*assignment
	wakesAt       time.Duration // when the goroutine looks after the manager at the latest
	arrivals      [arrivalsAtAll]port.Arrival
	packet        wire.Packet
	datagram      cm.Datagram
}

// linger bounds how long an endpoint that nobody uses waits for the answers to
// its last disconnections.
const linger = 500 * time.Millisecond

// random returns unpredictable bits.
func random() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint64(b[:])
}

// opener opens the port of an endpoint.
type opener func(local netip.AddrPort) (port.Port, error)

// endpoint returns the endpoint at a local address, for one user more. UDP port 0
// is a new one. If there is none its port is opened as the options say, unless
// open is another way.
func (p *Provider) endpoint(local netip.AddrPort, open opener) (*endpoint, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.endpoints[local]; e != nil {
		e.users++
		return e, nil
	}
	e, err := p.open(local, open)
	if err != nil {
		return nil, fmt.Errorf("open %v: %w", local, err)
	}
	e.users = 1
	p.endpoints[e.local] = e
	p.publish()
	go e.routineAttend()
	return e, nil
}

// publish shows the endpoints to those who take no lock.
//
// +checklocks:p.mu
func (p *Provider) publish() {
	all := slices.Collect(maps.Values(p.endpoints))
	p.all.Store(&all)
}

// open opens an endpoint.
func (p *Provider) open(local netip.AddrPort, open opener) (*endpoint, error) {
	e := &endpoint{
		kernel:   p.kernel && open == nil,
		provider: p, ended: make(chan struct{}),
		conversations: make(map[cm.ID]*conversation),
		services:      make(map[wire.ServiceID]*listening),
		numbers:       make(map[uint32]struct{}),
		assigned:      make(map[*cq]*assignment),
	}
	e.lanes.Store(new([]*lane))
	if open == nil {
		open = p.options.Open
	}
	var err error
	if e.port, err = open(local); err != nil {
		if errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EMFILE) {
			return nil, fmt.Errorf("%w: %w", via.ErrResource, err)
		}
		return nil, fmt.Errorf("%w: %w", via.ErrInvalidParameter, err)
	}
	e.local = e.port.Local()
	if err := e.prepare(); err != nil {
		e.close()
		return nil, fmt.Errorf("%w: %w", via.ErrResource, err)
	}
	return e, nil
}

// prepare makes what an endpoint with a port needs.
func (e *endpoint) prepare() error {
	mtu, ok := wire.PathMTU(wire.MaxPacket * 2)
	for ok && mtu.Bytes() > e.provider.options.MTU {
		mtu--
		ok = mtu.IsValid()
	}
	if !ok {
		return fmt.Errorf("no path MTU of %d bytes", e.provider.options.MTU)
	}
	var err error
	if e.manager, err = cm.New(cm.Config{Local: e.local, GUID: random() | 1, MTU: mtu}); err != nil {
		return err
	}
	if e.lane, err = e.port.Lane(0); err != nil {
		return err
	}
	if e.waiting, err = newWaiting(); err != nil {
		return err
	}
	return watch(e.waiting.epoll, e.lane.FD())
}

// close closes what an endpoint has open.
func (e *endpoint) close() {
	_ = e.port.Close()
	if e.waiting != nil {
		e.waiting.close()
	}
}

// hold is one use more of an endpoint. It returns false if that has ended.
func (e *endpoint) hold() bool {
	p := e.provider
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.endpoints[e.local] != e {
		return false
	}
	e.users++
	return true
}

// release ends a use.
func (e *endpoint) release() {
	p := e.provider
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.users--; e.users == 0 {
		e.unusedAt = clock()
		e.waiting.ring()
	}
}

// awaitEnd waits for the end of an endpoint that nobody uses.
func (e *endpoint) awaitEnd() {
	p := e.provider
	p.mu.Lock()
	used := e.users > 0
	p.mu.Unlock()
	if !used {
		<-e.ended
	}
}

// over ends an endpoint that nobody uses, and whose peers know that.
func (e *endpoint) over(now time.Duration) bool {
	p := e.provider
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.users > 0 || now < e.unusedAt+linger && e.disconnecting() {
		return false
	}
	delete(p.endpoints, e.local)
	p.publish()
	e.close()
	return true
}

// disconnecting reports whether a peer has not confirmed yet that a connection
// is over.
func (e *endpoint) disconnecting() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.conversations {
		if !c.over {
			return true
		}
	}
	return false
}

// laneOf returns the lane of a queue pair number, or nil.
func (e *endpoint) laneOf(qpn uint32) *lane {
	lanes, i := *e.lanes.Load(), port.LaneOf(qpn)-1
	if i < 0 || i >= len(lanes) {
		return nil
	}
	return lanes[i]
}

// assignment is the lane that the links of a completion queue have, and how many
// these are.
type assignment struct {
	lane  *lane
	links int
}

// assign returns the lane for a link that completes to a queue: the queue's own if
// there are enough, else the one that the fewest queues have.
func (e *endpoint) assign(c *cq) (*lane, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if a := e.assigned[c]; a != nil {
		a.links++
		return a.lane, nil
	}
	lanes := *e.lanes.Load()
	queues := make(map[*lane]int)
	for _, a := range e.assigned {
		queues[a.lane]++
	}
	var best *lane
	for _, l := range lanes {
		if best == nil || queues[l] < queues[best] {
			best = l
		}
	}
	if (best == nil || queues[best] > 0) && len(lanes) < port.Lanes-1 {
		p, err := e.port.Lane(len(lanes) + 1)
		if err != nil && best == nil {
			return nil, fmt.Errorf("open a lane of %v: %w: %w", e.local, via.ErrResource, err)
		}
		if err == nil {
			best = newLane(e, len(lanes)+1, p)
			lanes = append(slices.Clone(lanes), best)
			e.lanes.Store(&lanes)
			e.waiting.ring() // the goroutine attends to it, should nobody else
		}
	}
	e.assigned[c] = &assignment{lane: best, links: 1}
	return best, nil
}

// unassign gives the lane of a link back.
func (e *endpoint) unassign(c *cq) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a := e.assigned[c]
	if a.links--; a.links == 0 {
		delete(e.assigned, c)
	}
}

// newQP returns a number for a queue pair of a lane, which nobody can guess.
func (e *endpoint) newQP(index int) uint32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		high := uint32(random()) & (1<<(24-laneBits) - 1)
		n := high<<laneBits | uint32(index)
		if _, taken := e.numbers[n]; !taken && high != 0 {
			e.numbers[n] = struct{}{}
			return n
		}
	}
}
