package rc

import "github.com/viablk/viablk/via/roce/wire"

// Limits of a segmented send (UDP_SEGMENT): segments, and bytes of all.
const (
	MaxRun      = 64
	MaxRunBytes = 65507
)

// Packet is one packet that is to be sent, in pieces. It is valid until the
// burst is reset.
type Packet struct {
	Header  []byte   // BTH and extension headers
	Payload [][]byte // where it lies; memory of works and of the consumer
	Trailer []byte   // room for pad and ICRC, as [wire.ICRC.Seal] writes them
	Size    int      // bytes of all

	// Joins says that the packet may be a segment of one send with the packet
	// before it: the packets of a run are equally long, but for a shorter last one.
	Joins bool

	Work *Work // that the request belongs to; nil for answers

	// Sealed says that the trailer is written, rightly or not: a port leaves it as
	// it is. A fabric under test damages packets so; no QP does.
	Sealed bool

	room [wire.MaxHeader + 8]byte
}

// Burst is room for packets. It belongs to the caller of Emit and may be filled
// by several QPs, whose packets join unless Apart is called between them.
type Burst struct {
	packets  []Packet
	used     int
	segments [][]byte
	run      struct {
		open               bool // another packet may join
		size, count, bytes int
	}
}

// NewBurst returns room for a number of packets.
func NewBurst(packets int) *Burst {
	return &Burst{packets: make([]Packet, packets), segments: make([][]byte, 0, 2*packets)}
}

// Packets returns the packets, in the order in which they are to be sent.
func (b *Burst) Packets() []Packet { return b.packets[:b.used] }

// Reset empties the burst.
func (b *Burst) Reset() {
	b.used = 0
	b.segments = b.segments[:0]
	b.run.open = false
}

// Apart says that what is added next goes elsewhere, and joins nothing before it.
func (b *Burst) Apart() { b.run.open = false }

func (b *Burst) room() int { return len(b.packets) - b.used }

// add appends a packet whose payload, n bytes, is what was appended to segments
// from start on.
func (b *Burst) add(h *wire.Packet, start, n int, w *Work) {
	p := &b.packets[b.used]
	b.used++
	header := h.Put(p.room[:], n)
	trailer := int(h.Pad) + wire.ICRCSize
	p.Header = p.room[:header:header]
	p.Trailer = p.room[header : header+trailer : header+trailer]
	p.Payload = b.segments[start:len(b.segments):len(b.segments)]
	p.Size = header + n + trailer
	p.Joins = b.join(p.Size)
	p.Work = w
}

// join reports whether a packet of this size continues the run; else it starts
// one.
func (b *Burst) join(size int) bool {
	r := &b.run
	if r.open && size <= r.size && r.count < MaxRun && r.bytes+size <= MaxRunBytes {
		r.count++
		r.bytes += size
		r.open = size == r.size
		return true
	}
	r.open, r.size, r.count, r.bytes = true, size, 1, size
	return false
}
