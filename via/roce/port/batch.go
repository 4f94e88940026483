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

	// What is copied instead of gathered: the kernel takes longer for one more
	// piece than the copy does.
	copiedBytes  = 256
	copiedPieces = 8
)

// batch is what the next system calls send: messages, each one packet or a run
// of packets that the kernel cuts apart again. Headers, trailers and short
// payloads are copied next to each other to a stage, so that a run of small
// packets is one piece of memory; long payloads are sent from where they lie.
type batch struct {
	messages []unix.Mmsghdr
	controls []segmentControl
	runs     []outgoing
	iovecs   []unix.Iovec
	stage    []byte

	count  int // messages
	pieces int // iovecs
	staged int // bytes
	tail   int // iovec that ends where the stage does, if it is the last one
}

// outgoing is what a message carries.
type outgoing struct {
	to      *Peer
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

// reset empties the batch. It forgets where payloads lie: that memory may be
// unmapped and be the garbage collector's one day.
func (b *batch) reset() {
	clear(b.messages[:b.count])
	clear(b.runs[:b.count])
	clear(b.iovecs[:b.pieces])
	b.count, b.pieces, b.staged, b.tail = 0, 0, 0, -1
}

// add makes the next message of the first packets, one or as many as join. They
// are sealed, packet i of the message with ID i. It returns their number; 0 says
// that the batch is full.
func (b *batch) add(to *Peer, packets []rc.Packet, segmentation bool) int {
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
		if !p.Sealed {
			to.icrc.Seal(p.Trailer, wire.Identification{ID: uint16(n)}, p.Header, p.Payload...)
		}
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
		if isCopied {
			b.copy(s, first)
		} else if len(s) > 0 {
			setIovec(&b.iovecs[b.pieces], s)
			b.pieces++
		}
	}
	b.copy(p.Trailer, first)
}

// copy appends bytes by way of the stage.
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
