package rc

import "github.com/viablk/viablk/via/roce/wire"

// A packet to send takes these steps:
//
//	1 start  a half writes the BTH to the burst's header
//	2 add    encodes the headers into the packet; payload stays in place
//	3 join   decides whether the packet continues a run
//	4 Seal   the port writes pad and ICRC to the trailer and sends the packet

// Limits of a segmented send (UDP_SEGMENT): segments, and bytes of all.
const (
	MaxRun      = 64
	MaxRunBytes = 65507
)

// Packet is a packet to send, in pieces. It is valid until the burst is reset.
type Packet struct {
	Header  []byte   // BTH and extension headers
	Payload [][]byte // pieces in memory of works and of the consumer; the tag
	Trailer []byte   // room for pad and ICRC, as [wire.ICRC.Seal] writes them
	Size    int      // bytes of all

	// Joins says that the packet may be a segment of one send with the packet
	// before it: the packets of a run are equally long, but for a shorter last
	// one.
	Joins bool

	Work *Work // that the request belongs to; nil for answers

	// Sealed says that the trailer is written, rightly or not: a port leaves it
	// unchanged. Only a fabric under test sets it, to damage packets.
	Sealed bool

	room [wire.MaxHeader + wire.TagSize + 8]byte
}

// Burst is room for packets. It belongs to the caller of Emit. Several QPs may
// fill it; their packets join unless Apart is called between them.
type Burst struct {
	packets  []Packet
	used     int
	segments [][]byte
	header   wire.Packet // of the packet that a QP adds
	tag      uint64      // of that packet; 0: none
	run      struct {
		open               bool // another packet may join
		size, count, bytes int
	}
}

// NewBurst returns room for a number of packets.
func NewBurst(packets int) *Burst {
	return &Burst{packets: make([]Packet, packets), segments: make([][]byte, 0, 3*packets)}
}

// Packets returns the packets in sending order.
func (b *Burst) Packets() []Packet { return b.packets[:b.used] }

// Reset empties the burst.
func (b *Burst) Reset() {
	b.used = 0
	b.segments = b.segments[:0]
	b.run.open = false
}

// Apart ends the run: the next packet goes elsewhere and joins no earlier one.
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
	if b.tag != 0 {
		tag := p.room[header+trailer:][:wire.TagSize]
		wire.PutTag(tag, b.tag)
		b.segments = append(b.segments, tag)
		n += wire.TagSize
	}
	p.Payload = b.segments[start:len(b.segments):len(b.segments)]
	p.Size = header + n + trailer
	p.Joins = b.join(p.Size)
	p.Work = w
}

// join reports whether a packet of this size continues the run; if not, it
// starts one.
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
