package attack

import (
	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/via/roce/wire"
)

// flow is the packets to one queue pair. An attacker who drops or adds a
// message numbers the later ones anew, so that the receiver misses none, and
// answers back.
type flow struct {
	newest  wire.PSN // of its requests, as its sender numbers them
	begun   bool
	points  []point
	dropped map[wire.PSN]bool
	last    *packet  // that arrived
	held    *packet  // until the next one
	extra   [][]byte // frames of the attacker, to the same host
}

// point is where numbers begin to be others: behind a packet.
type point struct {
	at wire.PSN // as the sender numbers it
	by int
}

// shift returns how much the number of a request differs at the receiver.
func (f *flow) shift(psn wire.PSN) int {
	for i := len(f.points) - 1; i >= 0; i-- {
		if psn.Sub(f.points[i].at) > 0 {
			return f.points[i].by
		}
	}
	return 0
}

// original is the reverse of shift: the sender's number of a request that the
// receiver answers.
func (f *flow) original(psn wire.PSN) wire.PSN {
	for i := len(f.points) - 1; i >= 0; i-- {
		if p := f.points[i]; psn.Sub(p.at.Add(p.by)) > 0 {
			psn = psn.Add(-p.by)
			if i+1 < len(f.points) && psn.Sub(f.points[i+1].at) > 0 {
				return f.points[i+1].at
			}
			return psn
		}
	}
	if len(f.points) > 0 && psn.Sub(f.points[0].at) > 0 {
		return f.points[0].at
	}
	return psn
}

// insert makes numbers behind a new packet differ by n more. It returns false
// if later packets have passed.
func (f *flow) insert(p *packet, n int) bool {
	if f.begun && p.psn.Sub(f.newest) <= 0 {
		return false
	}
	f.points = append(f.points, point{p.psn, f.shift(p.psn) + n})
	return true
}

// pairs is what an attacker knows of connections from the messages that make
// them.
type pairs struct {
	requests map[uint64]flowKey // ends that requested, by transaction
	peer     map[flowKey]flowKey
}

// learn reads a message of the connection manager. It returns both ends of a
// connection that it makes.
func (k *pairs) learn(to, from *netbed.Host, p *packet) (ends []flowKey) {
	if p.bth.DestQP != wire.GSI {
		return nil
	}
	var request wire.REQ
	var reply wire.REP
	if request.Decode(p.content()) == wire.Accepted {
		k.requests[request.TID] = flowKey{from, request.LocalQP}
	} else if reply.Decode(p.content()) == wire.Accepted {
		x, ok := k.requests[reply.TID]
		if !ok {
			return nil // a repetition
		}
		delete(k.requests, reply.TID)
		y := flowKey{from, reply.LocalQP}
		k.peer[x], k.peer[y] = y, x
		return []flowKey{x, y}
	}
	return nil
}

// flow returns the flow of a packet.
func (a *tamperer) flow(to *netbed.Host, p *packet) *flow {
	key := flowKey{to, p.bth.DestQP}
	f := a.flows[key]
	if f == nil {
		f = &flow{dropped: map[wire.PSN]bool{}}
		a.flows[key] = f
	}
	return f
}

// back returns the flow to the sender of a packet, or nil.
func (a *tamperer) back(to *netbed.Host, p *packet) *flow {
	return a.flows[a.pairs.peer[flowKey{to, p.bth.DestQP}]]
}

// pass returns the frames that arrive for a packet of a connection, with other
// numbers where messages were dropped or added before.
func (a *tamperer) pass(to *netbed.Host, f *flow, p *packet) [][]byte {
	back := a.back(to, p)
	if p.bth.Opcode.Flags()&wire.Response != 0 {
		if back != nil && len(back.points) > 0 {
			p.renumber(back.original(p.psn))
		}
		return [][]byte{p.frame}
	}
	if f.dropped[p.psn] {
		a.acknowledge(back, p)
		return nil
	}
	if n := f.shift(p.psn); n != 0 {
		p.renumber(p.psn.Add(n))
	}
	held := f.held
	if held == nil {
		return [][]byte{p.frame}
	}
	f.held = nil
	if message(p) && p.psn == held.psn.Add(1) && len(p.content()) == len(held.content()) {
		swap(p.content(), held.content())
		p.reseal()
		held.reseal()
		a.done++
	}
	return [][]byte{held.frame, p.frame}
}

// acknowledge tells the sender of a packet that it has arrived.
func (a *tamperer) acknowledge(back *flow, p *packet) {
	back.extra = append(back.extra, back.last.alike(wire.RCAcknowledge, p.psn, func(q *wire.Packet) { q.AETH.Syndrome = wire.ACK }))
}

// release returns the frames that wait for a host: those of the attacker, and
// if all, held ones that no other followed.
func (a *tamperer) release(to *netbed.Host, all bool) (out [][]byte) {
	for key, f := range a.flows {
		if key.to != to {
			continue
		}
		out = append(out, f.extra...)
		f.extra = nil
		if all && f.held != nil {
			out = append(out, f.held.frame)
			f.held = nil
		}
	}
	return out
}

// swap exchanges the bytes of equally long slices.
func swap(a, b []byte) {
	for i := range a {
		a[i], b[i] = b[i], a[i]
	}
}
