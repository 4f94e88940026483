package cm_test

import (
	"bytes"
	"container/heap"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/viablk/viablk/via/roce/cm"
	"github.com/viablk/viablk/via/roce/wire"
)

// A world is two hosts and the link between them in virtual time. The seed
// alone determines it.
type world struct {
	now      time.Duration
	rng      *rand.Rand
	hosts    [2]*host
	agenda   agenda
	order    uint64
	fate     fate
	outage   [2]time.Duration
	calm     bool                 // consumers answer soon
	seen     [cm.Released + 1]int // events
	failures []error
}

// fate is the faults of the link.
type fate struct {
	drop, duplicate, delay float64
	outage, restart        bool
}

// host is a Manager and its consumer.
type host struct {
	w     *world
	m     *cm.Manager
	other *host
	addr  netip.AddrPort
	conns map[cm.ID]*conn

	queuePairs uint32 // created so far
	free       []uint32
}

// conn is a connection from the consumer's view.
type conn struct {
	id          cm.ID
	active      bool
	number      uint64
	mine, peer  cm.End
	open        bool // the queue pair receives data
	established bool
	left        bool // by Disconnect
	quit        bool // the consumer ended it; only Released follows
	over        bool
	terminal    bool
	released    bool
	seen        int           // events
	heard       time.Duration // when data was acknowledged last
}

// item is an action at a time.
type item struct {
	at    time.Duration
	order uint64
	do    func()
}

type agenda []item

func (a agenda) Len() int      { return len(a) }
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(item)) }
func (a *agenda) Pop() any {
	old := *a
	x := old[len(old)-1]
	*a = old[:len(old)-1]
	return x
}

func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].order < a[j].order
}

func newWorld(seed uint64, f fate) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 0xc0)), now: time.Second, fate: f}
	if f.outage {
		w.outage[0] = w.now + w.upTo(10*time.Second)
		w.outage[1] = w.outage[0] + w.upTo(12*time.Second)
	}
	for i, addr := range []string{"[fd00::1]:4791", "[fd00::2]:50123"} {
		w.hosts[i] = &host{w: w, addr: netip.MustParseAddrPort(addr)}
		w.hosts[i].restart()
	}
	w.hosts[0].other, w.hosts[1].other = w.hosts[1], w.hosts[0]
	return w
}

// restart drops all state of a host.
func (h *host) restart() {
	m, err := cm.New(cm.Config{
		Local: h.addr, GUID: h.w.rng.Uint64() | 1, MTU: wire.MTU4096, Random: h.w.rng.Uint64,
	})
	if err != nil {
		panic(err)
	}
	m.Listen(service)
	h.m, h.conns, h.free, h.queuePairs = m, make(map[cm.ID]*conn), nil, 0
}

// request returns the parameters of a connection, all but the queue pair
// derived from its number.
func (h *host) request(number uint64, qp uint32) *cm.Request {
	return &cm.Request{
		Remote: h.other.addr, Service: service, End: endOf(number, qp), MTU: 1 + wire.MTU(number%5),
		Unreliable: number%3 == 0, Private: binary.BigEndian.AppendUint64(nil, number),
	}
}

// answer returns the parameters by which a host accepts a request.
func (h *host) answer(number uint64, qp uint32) *cm.Answer {
	return &cm.Answer{End: endOf(^number, qp), Private: binary.BigEndian.AppendUint64(nil, number)}
}

func endOf(number uint64, qp uint32) cm.End {
	return cm.End{
		QP: qp, Expects: wire.PSN(number) & 0xffffff,
		Resources: uint8(number >> 24), Depth: uint8(number >> 32), RNRRetries: uint8(number) & 7,
	}
}

// create returns a free queue pair, the most recently used one if possible.
func (h *host) create() uint32 {
	if n := len(h.free); n > 0 {
		qp := h.free[n-1]
		h.free = h.free[:n-1]
		return qp
	}
	h.queuePairs++
	return 1 + h.queuePairs
}

// living returns the connections that the consumer holds, in an order that is
// the same in every run.
func (h *host) living() (all []*conn) {
	for _, c := range h.conns {
		if !c.over {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *conn) int { return int(int64(a.id) - int64(b.id)) })
	return all
}

func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.rng.Int64N(int64(d))) }

// thinks returns how long a consumer takes to decide.
func (w *world) thinks() time.Duration {
	switch n := w.rng.IntN(10); {
	case n == 0 && !w.calm:
		return w.upTo(30 * time.Second)
	case n < 4:
		return w.upTo(time.Second)
	}
	return w.upTo(time.Millisecond)
}

func (w *world) after(d time.Duration, do func()) {
	w.order++
	heap.Push(&w.agenda, item{w.now + d, w.order, do})
}

// carry transmits over the link: arrive runs at the other end.
func (w *world) carry(arrive func()) {
	chance := func(c float64) bool { return c > 0 && w.rng.Float64() < c }
	if chance(w.fate.drop) || w.fate.outage && w.now >= w.outage[0] && w.now < w.outage[1] {
		return
	}
	d := w.upTo(200 * time.Microsecond)
	if chance(w.fate.delay) {
		d += w.upTo(500 * time.Millisecond)
	}
	if chance(w.fate.duplicate) {
		w.after(d+w.upTo(time.Second), arrive)
	}
	w.after(d, arrive)
}

// run advances the time.
func (w *world) run(d time.Duration) {
	for end := w.now + d; w.now < end; {
		for _, h := range w.hosts {
			h.iterate()
		}
		next := end
		if len(w.agenda) > 0 {
			next = min(next, w.agenda[0].at)
		}
		for _, h := range w.hosts {
			if at, ok := h.m.Deadline(); ok {
				next = min(next, at)
			}
		}
		w.now = max(w.now, next)
		for len(w.agenda) > 0 && w.agenda[0].at <= w.now {
			heap.Pop(&w.agenda).(item).do()
		}
		for _, h := range w.hosts {
			h.m.Timeout(w.now)
		}
	}
}

// iterate emits all datagrams of a Manager and polls all events.
func (h *host) iterate() {
	h.poll()
	var d cm.Datagram
	for h.m.Emit(&d) {
		b := append(bytes.Clone(d.Bytes[:]), 0, 0, 0, 0)
		if d.To != h.other.addr {
			h.w.fail("a datagram for %v", d.To)
			continue
		}
		h.w.carry(func() {
			var p wire.Packet
			if r := p.Decode(b, wire.DefaultPKey); r != wire.Accepted {
				h.w.fail("a datagram is refused: %v", r)
			}
			h.other.m.Receive(h.addr, &p, h.w.now)
		})
	}
}
