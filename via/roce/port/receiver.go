package port

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via/roce/wire"
)

// Buffers of one system call. With UDP_GRO a datagram may hold as many packets
// as fit into 64 KiB; without it, one. The kernel fills the first buffers
// first, so that a receiver that keeps up uses few of them, which stay in the
// cache. Their stride is a power of two plus a cache line, to avoid conflict
// misses on the packet headers.
const (
	joinedMessages = 32
	joinedAtFirst  = 4 // until they were all full
	joinedSize     = 64<<10 + 64
	singleMessages = 64
	singleSize     = wire.MaxPacket&^63 + 2*64 // at least one line larger than any packet
)

// receiver holds the messages of the last system call. It has buffers once the
// socket has received something, with coalescing 256 KiB, and 2 MiB once a
// system call has filled these: most connections never do, and a shard that a
// request in the name of another host has opened receives nothing.
type receiver struct {
	coalescing bool
	grows      bool // the last system call has filled all buffers

	messages []unix.Mmsghdr
	names    []sockname
	controls []arrivalControl
	iovecs   []unix.Iovec

	count int // messages received
	next  int // index of the next message to split

	// State of the message being split.
	rest []byte
	size int    // segment size; the last packet may be shorter
	id   uint16 // IP ID of the next packet, if the sender segmented the message
	from netip.AddrPort

	drops   uint32 // the socket's overrun count in the last message that had it
	counted uint32 // part of drops already counted
}

// allocate makes the buffers.
func (in *receiver) allocate() {
	n, size := singleMessages, singleSize
	if in.coalescing {
		n, size = joinedAtFirst, joinedSize
	}
	if in.grows {
		n = joinedMessages
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

// isEmpty reports whether all messages have been split.
func (in *receiver) isEmpty() bool { return in.next == in.count && len(in.rest) == 0 }

// fill receives a batch of messages.
func (in *receiver) fill(fd int) unix.Errno {
	if in.messages == nil {
		if errno := peek(fd); errno != 0 {
			return errno
		}
		in.allocate()
	} else if in.grows {
		in.allocate()
		in.grows = false
	}
	for i := range in.count { // reset fields that the last call changed
		m := &in.messages[i].Hdr
		m.Namelen = unix.SizeofSockaddrInet6
		m.SetControllen(controlSize)
	}
	n, errno := receiveBatch(fd, in.messages)
	in.count, in.next = n, 0
	in.grows = n == joinedAtFirst && n == len(in.messages)
	return errno
}

// overruns returns the number of datagrams lost to overruns since the last
// call.
func (in *receiver) overruns() uint32 {
	for i := range in.count {
		if drops, ok := in.controls[i].drops(&in.messages[i].Hdr); ok {
			in.drops = drops
		}
	}
	n := in.drops - in.counted
	in.counted = in.drops
	return n
}

// split stores the next packets. It returns their number, and the number of
// datagrams or segments skipped because of an invalid size.
func (in *receiver) split(dst []Arrival, local netip.Addr) (n, malformed int) {
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

// open begins to split the next message. It reports whether the message is
// neither empty nor truncated.
func (in *receiver) open(zone string) bool {
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
