package rc

import "github.com/viablk/viablk/via/roce/wire"

// A packet behind a gap takes these steps:
//
//	1 put      copies it to room of the stash; the caller keeps the original
//	2 next     finds it once the gap before it is filled; the responder executes
//	           the copy like a packet that has just arrived
//	3 release  frees the room for any QP of the goroutine

// Stash is memory for out-of-order packets. All QPs of one goroutine share one,
// so that only loss costs memory. A QP keeps packets until the gap is filled
// and frees them when it breaks; without room it drops them, and the peer
// retransmits. No QP has more than half of it. The stash allocates when memory
// is first needed, and keeps it.
type Stash struct {
	free        []*stashedPacket
	unallocated int
}

// NewStash returns room for a number of packets, 4 KiB each.
func NewStash(packets int) *Stash {
	return &Stash{free: make([]*stashedPacket, 0, packets), unallocated: packets}
}

// Room returns how many packets more the stash can keep.
func (s *Stash) Room() int { return len(s.free) + s.unallocated }

// pop returns room for a packet; Room is not 0.
func (s *Stash) pop() *stashedPacket {
	last := len(s.free) - 1
	if last < 0 {
		s.unallocated--
		return new(stashedPacket)
	}
	k := s.free[last]
	s.free = s.free[:last]
	return k
}

// stashedPacket is a request that arrived out of order.
type stashedPacket struct {
	at      seq
	packet  wire.Packet
	refusal wire.Refusal
	payload [wire.MaxPayload]byte
}

// stashRing holds the stashed packets of one QP, in a ring by number: a packet
// is at most the ring's length ahead. It allocates at the first one.
type stashRing struct {
	stash *Stash
	size  int
	ring  []*stashedPacket
	count int
}

func newStashRing(c *Config) stashRing {
	if c.Stash == nil {
		return stashRing{}
	}
	return stashRing{stash: c.Stash, size: powerOfTwo(c.Room)}
}

func (a *stashRing) entry(s seq) **stashedPacket { return &a.ring[s&seq(len(a.ring)-1)] }

// put copies a packet, unless it is present or there is no room: a QP keeps at
// most as many packets as it leaves to others.
func (a *stashRing) put(p *wire.Packet, r wire.Refusal, s, expected seq) {
	if s-expected >= seq(a.size) || a.count >= a.stash.Room() {
		return
	}
	if a.ring == nil {
		a.ring = make([]*stashedPacket, a.size)
	}
	e := a.entry(s)
	if *e != nil {
		return
	}
	k := a.stash.pop()
	k.at, k.packet, k.refusal = s, *p, r
	k.packet.Payload = k.payload[:copy(k.payload[:], p.Payload)]
	*e = k
	a.count++
}

// next returns the packet with this number, or nil.
func (a *stashRing) next(s seq) *stashedPacket {
	if a.count == 0 {
		return nil
	}
	return *a.entry(s)
}

// release frees the packets of n numbers.
func (a *stashRing) release(from seq, n int) {
	for i := 0; i < min(n, len(a.ring)) && a.count > 0; i++ {
		e := a.entry(from + seq(i))
		if *e != nil {
			a.stash.free = append(a.stash.free, *e)
			*e = nil
			a.count--
		}
	}
}
