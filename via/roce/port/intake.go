package port

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via/roce/wire"
)

// How much one system call receives. With UDP_GRO a datagram may be as many
// packets as fit into 64 KiB; without it, one. The buffers are filled from the
// first on, so that a receiver that keeps up uses few of them, and those stay in
// the cache. They are a cache line further apart than a power of two, or all
// heads would compete for the same lines of the cache.
const (
	joinedMessages = 32
	joinedSize     = 64<<10 + 64
	singleMessages = 64
	singleSize     = wire.MaxPacket&^63 + 2*64 // one line, at least, beyond any packet
)

// intake is what the last system call received.
type intake struct {
	messages []unix.Mmsghdr
	names    []sockname
	controls []arrivalControl
	iovecs   []unix.Iovec

	count int // messages received
	next  int // that is split next

	// The message that is being split.
	rest []byte
	size int    // bytes of a packet; the last one may be shorter
	id   uint16 // of the next packet, if the message was one segmented send
	from netip.AddrPort

	drops uint32 // of the socket, as of the last message that told
	told  uint32 // of those, how many were counted
}

func (in *intake) init(coalescing bool) {
	n, size := singleMessages, singleSize
	if coalescing {
		n, size = joinedMessages, joinedSize
	}
	in.messages = make([]unix.Mmsghdr, n)
	in.names = make([]sockname, n)
	in.controls = make([]arrivalControl, n)
	in.iovecs = make([]unix.Iovec, n)
	memory := make([]byte, n*size)
	for i := range n {
		setIovec(&in.iovecs[i], memory[i*size:(i+1)*size])
		m := &in.messages[i].Hdr
		setIovecs(m, in.iovecs[i:i+1])
		setName(m, &in.names[i])
		in.controls[i].attach(m)
	}
	in.count = n
	in.next = n
}

// isEmpty reports whether all that was received has been split.
func (in *intake) isEmpty() bool { return in.next == in.count && len(in.rest) == 0 }

// fill receives what there is.
func (in *intake) fill(fd int) unix.Errno {
	for i := range in.count { // what the last call changed
		m := &in.messages[i].Hdr
		m.Namelen = unix.SizeofSockaddrInet6
		m.SetControllen(controlSize)
	}
	n, errno := receiveBatch(fd, in.messages)
	in.count, in.next = n, 0
	return errno
}

// overruns returns how many datagrams found no room since the last call.
func (in *intake) overruns() uint32 {
	for i := range in.count {
		if drops, ok := in.controls[i].drops(&in.messages[i].Hdr); ok {
			in.drops = drops
		}
	}
	n := in.drops - in.told
	in.told = in.drops
	return n
}

// split stores the next packets, and returns how many and how many datagrams or
// parts of them it skipped, for no packet is as short or as long.
func (in *intake) split(dst []Arrival, local netip.Addr) (n, malformed int) {
	for n < len(dst) {
		if len(in.rest) == 0 {
			if in.next == in.count {
				break
			}
			if !in.open(local.Zone()) {
				malformed++
			}
			continue
		}
		size := min(in.size, len(in.rest))
		b := in.rest[:size:size]
		in.rest = in.rest[size:]
		if size < wire.MinPacket || size > wire.MaxPacket {
			malformed++
			continue
		}
		dst[n] = Arrival{From: in.from, Bytes: b, known: local.Is6()}
		dst[n].identification.ID = in.id
		in.id++
		n++
	}
	return n, malformed
}

// open begins to split the next message. It reports whether there is something
// in it, and all of it.
func (in *intake) open(zone string) bool {
	i := in.next
	in.next++
	m := &in.messages[i]
	if m.Hdr.Flags&unix.MSG_TRUNC != 0 || m.Len == 0 {
		return false
	}
	in.rest = iovecBytes(&in.iovecs[i])[:m.Len]
	in.size, in.id = len(in.rest), 0
	if size, ok := in.controls[i].segment(&m.Hdr); ok && size > 0 {
		in.size = size
	}
	in.from = in.names[i].addr(zone)
	return true
}
