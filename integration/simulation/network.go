package simulation

import (
	"math/rand/v2"
	"time"
)

// Fabric says what the network of a run is like.
type Fabric struct {
	Latency time.Duration // of a message, at least
	Jitter  time.Duration // more, at most
	Copy    time.Duration // of 4 KiB, at most

	// Shared is memory that the copying process has mapped, as over shared
	// memory: a stopped process is inside its copy until it continues, and a
	// dead one is noticed at once. Otherwise a network carries the bytes, the
	// owner of the memory places them, and only silence tells that a peer died.
	Shared bool

	Silence time.Duration // until a link without answers is given up

	// Late lets messages arrive that a cut has held up, though their sender has
	// closed the connection. If the receiver has too, the VI's next connection
	// gets one of them: no fabric does that, and the protocol notices it.
	Late bool

	// Flips is one of how many payloads arrives with a flipped bit; 0: none.
	Flips int
}

// network is the fabric of a run: it connects the hosts, which are named.
type network struct {
	scheduler *Scheduler
	random    *rand.Rand
	Fabric
	hosts    map[string]*listening
	paths    map[[2]string]*path
	catch    *Process // is stopped inside its next copy
	caught   func()   // called then
	copies   int      // RDMA operations that are in progress
	adapters []*adapter
	arenas   int      // that are mapped
	retired  [][]byte // memory of arenas, which a copy may still be inside
	links    int      // that are not closed
	counts   *Counts
	regions  int // that are registered
}

func newNetwork(s *Scheduler, f Fabric, seed uint64, c *Counts) *network {
	return &network{
		scheduler: s, random: rand.New(rand.NewPCG(seed, 2)), Fabric: f,
		hosts: make(map[string]*listening), paths: make(map[[2]string]*path), counts: c,
	}
}

// latency returns how long the next message takes.
func (n *network) latency() time.Duration {
	return n.Latency + time.Duration(n.random.Uint64N(uint64(n.Jitter)+1))
}

// flip flips a bit of payload that arrives, now and then.
func (n *network) flip(b []byte) {
	if n.Flips == 0 || len(b) == 0 || n.random.IntN(n.Flips) != 0 {
		return
	}
	b[n.random.IntN(len(b))] ^= 1 << n.random.IntN(8)
}

// path is the way between two hosts.
type path struct {
	network *network
	cut     bool
	held    []func() // what goes on when it is mended, in order
	packets int      // among them
	mended  waiters
}

// path returns the way between two hosts.
func (n *network) path(a, b string) *path {
	key := [2]string{min(a, b), max(a, b)}
	p := n.paths[key]
	if p == nil {
		p = &path{network: n}
		n.paths[key] = p
	}
	return p
}

// pass calls f now, or when the way is mended.
func (p *path) pass(f func()) {
	if p.cut {
		p.held = append(p.held, f)
		return
	}
	f()
}

// hold calls f, with which a packet goes on, when the way is mended.
func (p *path) hold(f func()) {
	p.packets++
	p.pass(f)
}

// mend ends a cut.
func (p *path) mend() {
	if !p.cut {
		return
	}
	p.cut = false
	held := p.held
	p.held, p.packets = nil, 0
	for _, f := range held {
		f()
	}
	p.mended.wake(p.network.scheduler)
}
