package rc

import "github.com/viablk/viablk/via/roce/wire"

// Stash is memory for packets that came before their turn. All QPs of one
// goroutine share one, so that loss costs memory only where there is loss. A QP
// keeps packets until the gap is filled, and gives them back when it breaks;
// without room it drops them, and has them sent again. Memory is allocated when it
// is first needed, and stays.
type Stash struct {
	free   []*kept
	unmade int
}

// NewStash returns room for a number of packets, 4 KiB each.
func NewStash(packets int) *Stash {
	return &Stash{free: make([]*kept, 0, packets), unmade: packets}
}

// Room returns how many packets more the stash can keep.
func (s *Stash) Room() int { return len(s.free) + s.unmade }

// take returns room for a packet; there is some.
func (s *Stash) take() *kept {
	last := len(s.free) - 1
	if last < 0 {
		s.unmade--
		return new(kept)
	}
	k := s.free[last]
	s.free = s.free[:last]
	return k
}

// kept is a request that came before its turn.
type kept struct {
	at      seq
	packet  wire.Packet
	refusal wire.Refusal
	payload [wire.MaxPayload]byte
}

// ahead are the packets that one QP keeps, in a ring by number: none is further
// ahead than the ring is long. It has no memory before the first.
type ahead struct {
	stash *Stash
	size  int
	ring  []*kept
	count int
}

func newAhead(c *Config) ahead {
	if c.Stash == nil {
		return ahead{}
	}
	return ahead{stash: c.Stash, size: powerOfTwo(c.Room)}
}

func (a *ahead) slot(s seq) **kept { return &a.ring[s&seq(len(a.ring)-1)] }

// keep copies a packet, unless there is no room, or it is there.
func (a *ahead) keep(p *wire.Packet, r wire.Refusal, s, expected seq) {
	if s-expected >= seq(a.size) || a.stash.Room() == 0 {
		return
	}
	if a.ring == nil {
		a.ring = make([]*kept, a.size)
	}
	slot := a.slot(s)
	if *slot != nil {
		return
	}
	k := a.stash.take()
	k.at, k.packet, k.refusal = s, *p, r
	k.packet.Payload = k.payload[:copy(k.payload[:], p.Payload)]
	*slot = k
	a.count++
}

// next returns the packet with this number, or nil.
func (a *ahead) next(s seq) *kept {
	if a.count == 0 {
		return nil
	}
	return *a.slot(s)
}

// release gives back the packets of n numbers.
func (a *ahead) release(from seq, n int) {
	for i := 0; i < min(n, len(a.ring)) && a.count > 0; i++ {
		slot := a.slot(from + seq(i))
		if *slot != nil {
			a.stash.free = append(a.stash.free, *slot)
			*slot = nil
			a.count--
		}
	}
}
