package port

import (
	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// Limits of what one system call sends.
const (
	batchMessages = 64
	batchIovecs   = 1024 // also what the kernel takes for one message
	stageSize     = 64 << 10

	// Payloads up to these limits are copied: the copy is cheaper than one more
	// iovec.
	copiedBytes  = 256
	copiedPieces = 8
)

// batch holds the messages of the next sendmmsg calls: each is one packet, or a
// run that the kernel segments. Headers, trailers and short payloads are copied
// contiguously to a stage, so that a run of small packets is one iovec; long
// payloads are sent in place.
type batch struct {
	messages []unix.Mmsghdr
	controls []segmentControl
	runs     []outgoing
	iovecs   []unix.Iovec
	stage    []byte

	count  int // messages
	pieces int // iovecs
	staged int // bytes
	tail   int // iovec that ends at b.staged, extensible if it is the last; or -1
}

// outgoing describes the packets of a message.
type outgoing struct {
	to      *udpPeer
	packets []rc.Packet
	bytes   int
}

func (b *batch) init() {
	b.messages = make([]unix.Mmsghdr, batchMessages)
	b.controls = make([]segmentControl, batchMessages)
	b.runs = make([]outgoing, batchMessages)
	b.iovecs = make([]unix.Iovec, batchIovecs)
	b.stage = make([]byte, stageSize)
	b.tail = -1
}

// reset empties the batch. It clears the payload pointers: that memory may be
// unmapped, and the Go heap may reuse the addresses.
func (b *batch) reset() {
	clear(b.messages[:b.count])
	clear(b.runs[:b.count])
	clear(b.iovecs[:b.pieces])
	b.count, b.pieces, b.staged, b.tail = 0, 0, 0, -1
}

// add appends a message with the first packet and those that join it, and seals
// packet i of the message with ID i. It returns the number of packets; 0 if the
// batch is full.
func (b *batch) add(to *udpPeer, packets []rc.Packet, segmentation bool) int {
	if b.count == len(b.messages) {
		return 0
	}
	first, most, bytes, n := b.pieces, 1, 0, 0
	if segmentation {
		most = min(len(packets), rc.MaxRun)
	}
	size := packets[0].Size
	for ; n < most; n++ {
		p := &packets[n]
		if n > 0 && (!p.Joins || p.Size > size || packets[n-1].Size != size || bytes+p.Size > rc.MaxRunBytes) {
			break
		}
		if len(b.iovecs)-b.pieces < copiedPieces+2 || len(b.stage)-b.staged < wire.MaxPacket {
			break
		}
		to.Seal(p, wire.Identification{ID: uint16(n)})
		b.put(p, first)
		bytes += p.Size
	}
	if n == 0 {
		return 0
	}
	i := b.count
	b.count++
	b.runs[i] = outgoing{to, packets[:n], bytes}
	m := &b.messages[i].Hdr
	setName(m, &to.name)
	setIovecs(m, b.iovecs[first:b.pieces])
	if n > 1 {
		b.controls[i].set(m, size)
	}
	return n
}

// put appends a packet to the message whose iovecs begin at first.
func (b *batch) put(p *rc.Packet, first int) {
	b.copy(p.Header, first)
	payload := p.Size - len(p.Header) - len(p.Trailer)
	isCopied := payload <= copiedBytes || len(p.Payload) > copiedPieces
	for _, s := range p.Payload {
		if isCopied || len(s) <= wire.TagSize {
			b.copy(s, first)
		} else if len(s) > 0 {
			setIovec(&b.iovecs[b.pieces], s)
			b.pieces++
		}
	}
	b.copy(p.Trailer, first)
}

// copy appends bytes through the stage.
func (b *batch) copy(s []byte, first int) {
	if len(s) == 0 {
		return
	}
	at := b.staged
	b.staged += copy(b.stage[at:at+len(s)], s)
	if last := b.pieces - 1; last >= first && last == b.tail {
		v := &b.iovecs[last]
		v.SetLen(int(v.Len) + len(s))
		return
	}
	b.tail = b.pieces
	setIovec(&b.iovecs[b.pieces], b.stage[at:b.staged])
	b.pieces++
}
