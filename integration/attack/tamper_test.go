package attack

import (
	"bytes"
	"math/rand/v2"
	"sync"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/via/roce/wire"
)

// tampering is what an attacker does to one packet: it returns the frames that
// are to arrive in place of it, and whether it has changed something.
type tampering struct {
	name string

	// of reports whether the packet is of a kind that is attacked.
	of func(p *packet) bool

	do func(a *tamperer, to *netbed.Host, p *packet) ([][]byte, bool)

	one   int  // of so many packets of the kind is attacked
	slow  int  // how much longer than another attack one takes
	found bool // a seal refuses what has changed, at one end at least
}

// tamperer is a man in the middle who knows all but the keys.
type tamperer struct {
	bed *netbed.Bed

	mu       sync.Mutex
	r        *rand.Rand
	kind     *tampering // nil: every packet passes
	done     int        // attacks
	recorded map[int][][]byte
	flows    map[flowKey]*flow
	pairs    pairs
}

// flowKey names the packets to a queue pair of a host.
type flowKey struct {
	to *netbed.Host
	qp uint32
}

func newTamperer(b *netbed.Bed) *tamperer {
	return &tamperer{
		bed: b, r: rand.New(rand.NewPCG(8, 9)), recorded: map[int][][]byte{}, flows: map[flowKey]*flow{},
		pairs: pairs{requests: map[uint64]flowKey{}, peer: map[flowKey]flowKey{}},
	}
}

// begin attacks packets of a kind from now on; nil ends it. It returns how many
// attacks there were before.
func (a *tamperer) begin(kind *tampering) (done int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	done = a.done
	a.kind, a.done = kind, 0
	return done
}

// attacks returns how many there were since begin.
func (a *tamperer) attacks() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.done
}

// decide is a [netbed.Decide].
func (a *tamperer) decide(to *netbed.Host, frame []byte) [][]byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	if frame == nil {
		return a.release(to, true)
	}
	p, ok := parsePacket(frame)
	if !ok {
		return [][]byte{frame}
	}
	from := a.bed.A
	if to == from {
		from = a.bed.B
	}
	for _, end := range a.pairs.learn(to, from, p) {
		delete(a.flows, end)
	}
	return append(a.release(to, false), a.attack(to, p)...)
}

// attack returns the frames that arrive for a packet.
func (a *tamperer) attack(to *netbed.Host, p *packet) [][]byte {
	f, out := a.flow(to, p), [][]byte{p.frame}
	if p.connected() {
		defer a.record(f, p.clone())
		out = a.pass(to, f, p)
	}
	if len(out) == 1 && a.kind != nil && a.kind.of(p) && a.r.IntN(a.kind.one) == 0 {
		if changed, ok := a.kind.do(a, to, p); ok {
			a.done++
			out = changed
		}
	}
	return out
}

// record remembers a packet as its sender sent it.
func (a *tamperer) record(f *flow, p *packet) {
	f.last = p
	if message(p) {
		list := append(a.recorded[len(p.content())], p.content())
		a.recorded[len(p.content())] = list[max(0, len(list)-64):]
	}
	if p.bth.Opcode.Flags()&wire.Response == 0 && (!f.begun || p.psn.Sub(f.newest) > 0) {
		f.newest, f.begun = p.psn, true
	}
}

// flip returns a change of one bit of a part of the packet.
func flip(part func(p *packet) []byte) func(*tamperer, *netbed.Host, *packet) ([][]byte, bool) {
	return func(a *tamperer, _ *netbed.Host, p *packet) ([][]byte, bool) {
		b := part(p)
		if len(b) == 0 {
			return nil, false
		}
		b[a.r.IntN(len(b))] ^= 1 << a.r.IntN(8)
		p.reseal()
		return [][]byte{p.frame}, true
	}
}

// payloadOf reports whether a packet is of an operation and has payload.
func payloadOf(o wire.Operation) func(*packet) bool {
	return func(p *packet) bool {
		return p.connected() && p.bth.Opcode.Operation() == o && len(p.content()) > 0
	}
}

// message reports whether a packet is a whole message.
func message(p *packet) bool { return p.connected() && p.bth.Opcode == wire.RCSendOnly }

// flips change a bit of a packet, with the checksum of the result.
var flips = []tampering{
	{"messages", payloadOf(wire.OpSend), flip((*packet).content), 60, 1, true},
	{"payload in messages", func(p *packet) bool { return p.connected() && p.bth.Opcode == wire.RCSendFirst }, flip((*packet).content), 20, 1, true},
	{"payload of reads", payloadOf(wire.OpWrite), flip((*packet).content), 150, 1, true},
	{"payload of writes", payloadOf(wire.OpReadResponse), flip((*packet).content), 150, 1, true},
	{"headers", (*packet).connected, flip((*packet).headers), 300, 1, false},
	{"connection manager", func(p *packet) bool { return p.bth.DestQP == wire.GSI || message(p) }, (*tamperer).reconnect, 20, 1, false},
}

// others change which messages arrive, and the numbers of packets so that the
// receiver misses none.
var others = []tampering{
	{"another message in its place", message, (*tamperer).replace, 60, 1, true},
	{"messages in another order", message, (*tamperer).hold, 30, 1, true},
	{"a message twice", message, (*tamperer).repeat, 60, 1, true},
	{"a message dropped and acknowledged", message, (*tamperer).discard, 60, 4, true},
}

// replace puts an earlier message in the place of one: of any connection and
// direction, of the same length.
func (a *tamperer) replace(_ *netbed.Host, p *packet) ([][]byte, bool) {
	list := a.recorded[len(p.content())]
	if len(list) == 0 {
		return nil, false
	}
	other := list[a.r.IntN(len(list))]
	if bytes.Equal(other, p.content()) {
		return nil, false
	}
	copy(p.content(), other)
	p.reseal()
	return [][]byte{p.frame}, true
}

// reconnect changes a message of the connection manager, or one that ends a
// connection, so that there are others.
func (a *tamperer) reconnect(_ *netbed.Host, p *packet) ([][]byte, bool) {
	b := p.content()
	b[a.r.IntN(len(b))] ^= 1 << a.r.IntN(8)
	p.reseal()
	return [][]byte{p.frame}, p.bth.DestQP == wire.GSI
}

// hold keeps a message until the next one, which changes places with it if it
// is as long.
func (a *tamperer) hold(to *netbed.Host, p *packet) ([][]byte, bool) {
	a.flow(to, p).held = p.clone()
	a.done-- // if they do
	return nil, true
}

// repeat sends a message twice.
func (a *tamperer) repeat(to *netbed.Host, p *packet) ([][]byte, bool) {
	if !a.flow(to, p).insert(p, 1) {
		return nil, false
	}
	again := p.clone()
	again.renumber(p.bth.PSN.Add(1))
	return [][]byte{p.frame, again.frame}, true
}

// discard drops a message, and tells its sender that it has arrived. The sender
// has to have received a packet, from which the attacker knows the tag.
func (a *tamperer) discard(to *netbed.Host, p *packet) ([][]byte, bool) {
	f, back := a.flow(to, p), a.back(to, p)
	if back == nil || back.last == nil || !f.insert(p, -1) {
		return nil, false
	}
	f.dropped[p.psn] = true
	a.acknowledge(back, p)
	return nil, true
}
