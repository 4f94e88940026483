package rc_test

import (
	"container/heap"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// A world is two queue pairs and the links between them in virtual time. The
// seed alone determines it.
type world struct {
	now    time.Duration
	rng    *rand.Rand
	ends   [2]*port
	flying flights
	order  uint64
	free   [][]byte
	burst  *rc.Burst
	size   int // packets of the burst
	packet wire.Packet
	steps  int

	afterEmit func() // what the consumers do before time goes on
}

// fate is what a link does to packets: chances from 0 to 1, and an outage; and
// by how much, at most, the ends are late with their receives.
type fate struct {
	drop, duplicate, reorder, corrupt, delay float64
	dropAnswers                              float64
	outageFrom, outageTo, late               time.Duration
}

// port connects a queue pair to its outgoing link.
type port struct {
	qp    *rc.QP
	peer  *port
	icrc  wire.ICRC // of packets sent
	check wire.ICRC // of packets received
	fate  fate
	rate  float64       // bytes per second
	delay time.Duration // one way
	queue time.Duration // that the link holds before it drops; 0 is endless
	free  time.Duration // when the link has sent its queue
	lost  int
	slow  bool // one burst at a time
	full  bool // the last burst was full: there is more to send
	runs  int  // sends of the port, with segmentation
	sent  int  // packets
}

// flight is a packet in transit.
type flight struct {
	at    time.Duration
	order uint64
	to    *port
	bytes []byte
}

type flights []flight

func (f flights) Len() int      { return len(f) }
func (f flights) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f *flights) Push(x any)   { *f = append(*f, x.(flight)) }
func (f *flights) Pop() any {
	old := *f
	x := old[len(old)-1]
	*f = old[:len(old)-1]
	return x
}

func (f flights) Less(i, j int) bool {
	return f[i].at < f[j].at || f[i].at == f[j].at && f[i].order < f[j].order
}

func newWorld(seed uint64) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 0x5eed)), now: time.Second}
	w.size = 1 + w.rng.IntN(64)
	w.burst = rc.NewBurst(w.size)
	a := netip.MustParseAddrPort("[fd00::1]:4791")
	b := netip.MustParseAddrPort("[fd00::2]:4791")
	for i := range w.ends {
		w.ends[i] = &port{rate: 1.25e9, delay: 20 * time.Microsecond}
	}
	for i, p := range w.ends {
		p.peer = w.ends[1-i]
		p.icrc.Set(a, b)
		p.check.Set(b, a)
		a, b = b, a
	}
	return w
}

// step lets both ends emit and advances to the next event. It returns false if
// there is none.
func (w *world) step() bool {
	w.steps++
	for _, p := range w.ends {
		w.emit(p)
	}
	w.afterEmit()
	for _, p := range w.ends {
		w.emit(p)
	}
	next, found := time.Duration(0), false
	if len(w.flying) > 0 {
		next, found = w.flying[0].at, true
	}
	for _, p := range w.ends {
		if d, ok := p.qp.Deadline(); ok && (!found || d < next) {
			next, found = d, true
		}
	}
	for _, p := range w.ends {
		if at := w.now + time.Microsecond; p.full && (!found || at < next) {
			next, found = at, true
		}
	}
	if !found {
		return false
	}
	w.now = max(w.now, next)
	for len(w.flying) > 0 && w.flying[0].at <= w.now {
		w.arrive(heap.Pop(&w.flying).(flight))
	}
	for _, p := range w.ends {
		p.qp.Timeout(w.now)
	}
	return true
}

// emit sends all packets of a queue pair.
func (w *world) emit(p *port) {
	for {
		w.burst.Reset()
		p.qp.Emit(w.burst, w.now)
		packets := w.burst.Packets()
		p.full = len(packets) == w.size
		if len(packets) == 0 {
			return
		}
		for i := range packets {
			if !packets[i].Joins {
				p.runs++
			}
			p.sent++
			w.send(p, p.encode(w.buffer(), &packets[i]))
		}
		if p.slow {
			return
		}
	}
}

func (w *world) buffer() []byte {
	if n := len(w.free); n > 0 {
		b := w.free[n-1]
		w.free = w.free[:n-1]
		return b[:0]
	}
	return make([]byte, 0, wire.MaxPacket)
}

// encode makes a datagram of a packet.
func (p *port) encode(b []byte, out *rc.Packet) []byte {
	b = append(b, out.Header...)
	for _, s := range out.Payload {
		b = append(b, s...)
	}
	if n := p.icrc.Seal(out.Trailer, wire.Identification{}, out.Header, out.Payload...); n != len(out.Trailer) {
		panic("trailer of another length")
	}
	if b = append(b, out.Trailer...); len(b) != out.Size {
		panic("packet of another length")
	}
	return b
}

// send puts a datagram on the link, subject to its fate.
func (w *world) send(p *port, b []byte) {
	f := &p.fate
	chance := func(c float64) bool { return c > 0 && w.rng.Float64() < c }
	if p.queue > 0 && p.free-w.now > p.queue {
		p.lost++
		w.free = append(w.free, b)
		return
	}
	p.free = max(p.free, w.now) + time.Duration(float64(len(b)+66)/p.rate*1e9)
	at := p.free + p.delay
	isAnswer := wire.Opcode(b[0]).Flags()&wire.Response != 0
	switch {
	case chance(f.drop), isAnswer && chance(f.dropAnswers), w.now >= f.outageFrom && w.now < f.outageTo:
		p.lost++
		w.free = append(w.free, b)
		return
	case chance(f.corrupt):
		b[w.rng.IntN(len(b))] ^= 1 << w.rng.IntN(8)
	}
	if chance(f.reorder) {
		at += time.Duration(w.rng.Int64N(int64(50 * time.Microsecond)))
	}
	if chance(f.delay) {
		at += time.Duration(w.rng.Int64N(int64(20 * time.Millisecond)))
	}
	if chance(f.duplicate) {
		w.fly(p.peer, at+time.Duration(w.rng.Int64N(int64(100*time.Microsecond))), append(w.buffer(), b...))
	}
	w.fly(p.peer, at, b)
}

func (w *world) fly(to *port, at time.Duration, b []byte) {
	w.order++
	heap.Push(&w.flying, flight{at, w.order, to, b})
}

// arrive passes a datagram to its queue pair if its ICRC is right.
func (w *world) arrive(f flight) {
	defer func() { w.free = append(w.free, f.bytes) }()
	if !f.to.check.Verify(f.bytes, wire.Identification{}) {
		return
	}
	r := w.packet.Decode(f.bytes, wire.DefaultPKey)
	if r != wire.Accepted && !r.IsInvalidRequest() {
		return
	}
	f.to.qp.Receive(&w.packet, r, w.now)
}
