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

// endpoint is a UDP address: a port, its shards, and a connection manager. It
// exists as long as it has users: listeners, connecting devices and links.
type endpoint struct {
	provider    *Provider
	kernel      bool // kernel sockets send the packets
	port        port.Port
	local       netip.AddrPort
	mtu         wire.MTU                 // the longest path MTU
	shards      atomic.Pointer[[]*shard] // shard i at index i-1; shard 0 is cmShard
	misroutedIn misroutedQueue           // packets to queue pair 1 that arrived at other shards
	counters    shardCounters            // of shard 0
	denials     denials
	portChecks  portChecks
	lines       lines

	poller  *poller // of the goroutine
	started sync.Once
	ended   chan struct{} // closed when the goroutine has ended

	users    int           // guarded by provider.mu
	unusedAt time.Duration // when users became 0; guarded by provider.mu
	progress progressState // of the goroutine

	// mu is held briefly, also by the owner of a shard; a goroutine that holds
	// it runs no pass.
	mu       sync.Mutex
	manager  *cm.Manager
	cmShard  port.Shard // shard 0
	conns    map[cm.ID]*cmConn
	services map[wire.ServiceID]*listening
	numbers  map[uint32]struct{} // QPNs in use
	// +checklocks:mu
	assigned map[*cq]*assignment
	// +checklocks:mu
	wakeAt   time.Duration // deadline of the goroutine for the manager's timers
	arrivals [receiveBatch]port.Arrival
	// +checklocks:mu
	packet wire.Packet
	// +checklocks:mu
	datagram cm.Datagram
}

// disconnectTimeout bounds how long an endpoint without users waits for the
// replies to its last DREQs.
const disconnectTimeout = 500 * time.Millisecond

// random returns unpredictable bits.
func random() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint64(b[:])
}

// opener opens the port of an endpoint.
type opener func(local netip.AddrPort) (port.Port, error)

// endpoint returns the endpoint at a local address and counts one more user.
// UDP port 0 is always a new endpoint. A new endpoint opens its port with open,
// or as the options say if open is nil. The caller calls start.
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
	return e, nil
}

// start starts the endpoint's goroutine, once. Requests to connect may wait in
// the socket, which another process hands over, so the first user registers its
// listener before.
func (e *endpoint) start() { e.started.Do(func() { go e.routineProgress() }) }

// publish publishes the endpoints to lock-free readers.
//
// +checklocks:p.mu
func (p *Provider) publish() {
	all := slices.Collect(maps.Values(p.endpoints))
	p.all.Store(&all)
}

// open opens an endpoint.
//
// +checklocks:p.mu
func (p *Provider) open(local netip.AddrPort, open opener) (*endpoint, error) {
	e := &endpoint{
		kernel:   p.kernel && open == nil,
		provider: p, ended: make(chan struct{}),
		conns:    make(map[cm.ID]*cmConn),
		services: make(map[wire.ServiceID]*listening),
		numbers:  make(map[uint32]struct{}),
		assigned: make(map[*cq]*assignment),
	}
	e.shards.Store(new([]*shard))
	if open == nil {
		open = p.options.Open
	}
	var err error
	if e.kernel {
		e.port, err = p.openSocket(local)
	} else {
		e.port, err = open(local)
	}
	if err != nil {
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

// prepare opens what an endpoint needs beside its port.
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
	e.mtu = mtu
	if e.manager, err = e.newManager(); err != nil {
		return err
	}
	if e.cmShard, err = e.port.Shard(0); err != nil {
		return err
	}
	if e.poller, err = newPoller(); err != nil {
		return err
	}
	return watch(e.poller.epoll, e.cmShard.FD())
}

// newManager returns a connection manager without listeners.
func (e *endpoint) newManager() (*cm.Manager, error) {
	return cm.New(cm.Config{Local: e.local, GUID: random() | 1, MTU: e.mtu})
}

// close closes the resources of an endpoint.
func (e *endpoint) close() {
	_ = e.port.Close()
	if e.poller != nil {
		e.poller.close()
	}
}

// acquire counts one more user. It returns false if the endpoint has ended.
func (e *endpoint) acquire() bool {
	p := e.provider
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.endpoints[e.local] != e {
		return false
	}
	e.users++
	return true
}

// release counts one user less.
func (e *endpoint) release() {
	p := e.provider
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.users--; e.users == 0 {
		e.unusedAt = clock()
		e.poller.interrupt()
	}
}

// awaitEnd waits for the end of an endpoint without users.
func (e *endpoint) awaitEnd() {
	p := e.provider
	p.mu.Lock()
	used := e.users > 0
	p.mu.Unlock()
	if !used {
		<-e.ended
	}
}

// closeUnused ends an endpoint without users once its peers have confirmed all
// disconnections, or disconnectTimeout has passed.
func (e *endpoint) closeUnused(now time.Duration) bool {
	p := e.provider
	p.mu.Lock()
	defer p.mu.Unlock()
	if e.users > 0 || now < e.unusedAt+disconnectTimeout && e.disconnecting() {
		return false
	}
	delete(p.endpoints, e.local)
	p.publish()
	e.close()
	return true
}

// disconnecting reports whether a peer has still to confirm a disconnection.
func (e *endpoint) disconnecting() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.conns {
		if !c.peerDone {
			return true
		}
	}
	return false
}

// shardOf returns the shard of a QPN, or nil.
func (e *endpoint) shardOf(qpn uint32) *shard {
	shards, i := *e.shards.Load(), port.ShardOf(qpn)-1
	if i < 0 || i >= len(shards) {
		return nil
	}
	return shards[i]
}

// assignment is the shard of the links of one completion queue, and their
// number.
type assignment struct {
	shard *shard
	links int
}

// assign returns the shard for a link that completes to a queue: a shard of the
// queue's own as long as there are enough, else the one with the fewest queues.
func (e *endpoint) assign(c *cq) (*shard, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if a := e.assigned[c]; a != nil {
		a.links++
		return a.shard, nil
	}
	shards := *e.shards.Load()
	queues := make(map[*shard]int)
	for _, a := range e.assigned {
		queues[a.shard]++
	}
	var best *shard
	for _, s := range shards {
		if best == nil || queues[s] < queues[best] {
			best = s
		}
	}
	if (best == nil || queues[best] > 0) && len(shards) < port.Shards-1 {
		p, err := e.port.Shard(len(shards) + 1)
		if err != nil && best == nil {
			return nil, fmt.Errorf("open a shard of %v: %w: %w", e.local, via.ErrResource, err)
		}
		if err == nil {
			best = newShard(e, len(shards)+1, p)
			shards = append(slices.Clone(shards), best)
			e.shards.Store(&shards)
			e.poller.interrupt() // so that the goroutine polls it if no consumer does
		}
	}
	e.assigned[c] = &assignment{shard: best, links: 1}
	return best, nil
}

// reassign counts a link for another completion queue. The link keeps its
// shard, of which the peer knows by the queue pair number.
func (e *endpoint) reassign(l *link, to *cq) {
	from := l.cfg.RecvCQ.(*cq)
	if from == to {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unassign(from)
	if a := e.assigned[to]; a != nil {
		a.links++
		return
	}
	now := (*e.shards.Load())[l.shard.index-1] // another one, if the link's has failed
	e.assigned[to] = &assignment{shard: now, links: 1}
}

// unassign counts one link less of a completion queue's shard.
//
// +checklocks:e.mu
func (e *endpoint) unassign(c *cq) {
	a := e.assigned[c]
	if a.links--; a.links == 0 {
		delete(e.assigned, c)
	}
}

// newQP returns an unpredictable QPN whose low bits name a shard.
func (e *endpoint) newQP(index int) uint32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		high := uint32(random()) & (1<<(24-shardBits) - 1)
		n := high<<shardBits | uint32(index)
		if _, taken := e.numbers[n]; !taken && high != 0 {
			e.numbers[n] = struct{}{}
			return n
		}
	}
}
