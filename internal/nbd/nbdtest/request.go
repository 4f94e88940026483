package nbdtest

import (
	"bytes"
	"encoding/binary"
	"syscall"
)

// The commands.
const (
	cmdRead        = 0
	cmdWrite       = 1
	cmdDisc        = 2
	cmdFlush       = 3
	cmdTrim        = 4
	cmdCache       = 5
	cmdWriteZeroes = 6
	cmdBlockStatus = 7
	cmdUnknown     = 0x7abc
)

// Flags of commands.
const (
	flagFUA        = 1 << 0
	flagNoHole     = 1 << 1
	flagDF         = 1 << 2
	flagReqOne     = 1 << 3
	flagFastZero   = 1 << 4
	flagPayloadLen = 1 << 5
	flagUnknown    = 1 << 15
)

// Flags of exports.
const (
	hasReadOnly    = 1 << 1
	hasFlush       = 1 << 2
	hasFUA         = 1 << 3
	hasTrim        = 1 << 5
	hasWriteZeroes = 1 << 6
	hasDF          = 1 << 7
	hasMultiConn   = 1 << 8
	hasCache       = 1 << 10
	hasFastZero    = 1 << 11
)

// Errors as they travel.
const (
	ok        = syscall.Errno(0)
	ePerm     = syscall.Errno(1)
	eIO       = syscall.Errno(5)
	eNoMem    = syscall.Errno(12)
	eInval    = syscall.Errno(22)
	eNoSpc    = syscall.Errno(28)
	eOverflow = syscall.Errno(75)
	eNotSup   = syscall.Errno(95)
	eShutdown = syscall.Errno(108)
)

// cookie is that of requests of which there is one.
const cookie = 0xfeed_0000_dead_beef

// request is the bytes of a request in the peer's reply mode.
func (x *peer) request(flags, command uint16, cookie, offset, length uint64) []byte {
	if x.replyMode != extended {
		return bytes.Join([][]byte{
			be32(0x25609513), be16(flags), be16(command), be64(cookie), be64(offset), be32(uint32(length)),
		}, nil)
	}
	if command == cmdWrite {
		flags |= flagPayloadLen
	}
	return x.extendedRequest(flags, command, cookie, offset, length)
}

// extendedRequest is the bytes of an extended request.
func (*peer) extendedRequest(flags, command uint16, cookie, offset, length uint64) []byte {
	return bytes.Join([][]byte{
		be32(0x21e41c71), be16(flags), be16(command), be64(cookie), be64(offset), be64(length),
	}, nil)
}

// extent is a part of the export and its state.
type extent struct{ length, flags uint64 }

// answer is a reply, of whatever reply mode.
type answer struct {
	cookie  uint64
	errno   syscall.Errno
	data    []byte
	chunks  int // of a structured or extended reply
	content int // of these with data or holes
	offset  uint64
	extents []extent
}

// answer receives one reply. read tells how many bytes of data follow a simple
// reply without error.
func (x *peer) answer(read func(cookie uint64) int) answer {
	magic := x.receive32()
	if magic == 0x67446698 && x.replyMode != extended {
		b := x.receive(12)
		a := answer{errno: syscall.Errno(binary.BigEndian.Uint32(b)), cookie: binary.BigEndian.Uint64(b[4:])}
		if n := read(a.cookie); a.errno == 0 && n > 0 {
			a.data = x.receive(n)
		}
		return a
	}
	a := answer{}
	for !x.chunk(magic, &a) {
		magic = x.receive32()
	}
	return a
}

// maximumChunk is the longest chunk that is believed, bytes.
const maximumChunk = 65 << 20

// chunk receives a chunk behind its magic, and reports whether it is the last.
func (x *peer) chunk(magic uint32, a *answer) (done bool) {
	var head []byte
	var length uint64
	switch {
	case magic == 0x668e33ef && x.replyMode == structured:
		head = x.receive(16)
		length = uint64(binary.BigEndian.Uint32(head[12:]))
	case magic == 0x6e8a278c && x.replyMode == extended:
		head = x.receive(28)
		a.offset, length = binary.BigEndian.Uint64(head[12:]), binary.BigEndian.Uint64(head[20:])
	default:
		x.failf("the magic of a reply is %#x", magic)
	}
	if length > maximumChunk {
		x.failf("a chunk of %d bytes", length)
	}
	body := x.receive(int(length))
	flags, id := binary.BigEndian.Uint16(head), binary.BigEndian.Uint64(head[4:])
	switch {
	case flags > 1:
		x.failf("a chunk with flags %#x", flags)
	case a.chunks > 0 && id != a.cookie:
		x.failf("a chunk of %#x inside the reply to %#x", id, a.cookie)
	}
	a.cookie = id
	a.chunks++
	x.content(binary.BigEndian.Uint16(head[2:]), flags == 1, body, a)
	return flags == 1
}

// content takes the content of a chunk.
func (x *peer) content(kind uint16, last bool, body []byte, a *answer) {
	switch {
	case kind == 0:
		if len(body) != 0 || !last {
			x.failf("a chunk of type NONE with %d bytes, the last one: %v", len(body), last)
		}
	case kind == 1 && len(body) > 8:
		x.place(a, body, body[8:])
	case kind == 2 && len(body) == 12:
		x.place(a, body, make([]byte, binary.BigEndian.Uint32(body[8:])))
	case kind == 5 || kind == 6:
		x.extents(kind, body, a)
	case kind == 0x8001 && len(body) >= 6:
		a.errno = syscall.Errno(binary.BigEndian.Uint32(body))
		if n := int(binary.BigEndian.Uint16(body[4:])); a.errno == 0 || n != len(body)-6 || n > 4096 {
			x.failf("an error chunk of %d bytes with errno %d and a text of %d", len(body), a.errno, n)
		}
	case kind == 0x8002 && len(body) >= 14:
		a.errno = syscall.Errno(binary.BigEndian.Uint32(body))
	default:
		x.failf("a chunk of type %#x with %d bytes", kind, len(body))
	}
}

// place puts data behind what is there, which is where it must belong.
func (x *peer) place(a *answer, body, data []byte) {
	at := binary.BigEndian.Uint64(body)
	if len(a.data) == 0 && x.replyMode == structured {
		a.offset = at
	}
	if len(data) == 0 || at != a.offset+uint64(len(a.data)) {
		x.failf("a chunk of %d bytes for %d, behind %d bytes at %d", len(data), at, len(a.data), a.offset)
	}
	a.data = append(a.data, data...)
	a.content++
}

// extents takes what a BLOCK_STATUS is answered with.
func (x *peer) extents(kind uint16, body []byte, a *answer) {
	if (kind == 6) != (x.replyMode == extended) || len(body) < 4 {
		x.failf("extents of %d bytes in a chunk of type %d", len(body), kind)
	}
	if id := binary.BigEndian.Uint32(body); id != x.context {
		x.failf("extents of context %d, not %d", id, x.context)
	}
	body = body[4:]
	size := 8
	if kind == 6 {
		size = 16
		if len(body) < 4 || int(binary.BigEndian.Uint32(body)) != len(body)/size {
			x.failf("the count of extents does not fit %d bytes", len(body))
		}
		body = body[4:]
	}
	if len(body) == 0 || len(body)%size != 0 {
		x.failf("extents of %d bytes", len(body))
	}
	for ; len(body) > 0; body = body[size:] {
		e := extent{uint64(binary.BigEndian.Uint32(body)), uint64(binary.BigEndian.Uint32(body[size/2:]))}
		if kind == 6 {
			e = extent{binary.BigEndian.Uint64(body), binary.BigEndian.Uint64(body[8:])}
		}
		if e.length == 0 {
			x.failf("an extent of no length")
		}
		a.extents = append(a.extents, e)
	}
}

// ask sends bytes of a request with the usual cookie and returns its reply.
func (x *peer) ask(request []byte, command uint16, length uint64, payload ...[]byte) answer {
	x.send(append([][]byte{request}, payload...)...)
	n := 0
	if command == cmdRead {
		n = int(length)
	}
	a := x.answer(func(uint64) int { return n })
	if a.cookie != cookie {
		x.failf("the reply has cookie %#x, not %#x", a.cookie, uint64(cookie))
	}
	return a
}

// do sends one request and returns its reply.
func (x *peer) do(flags, command uint16, offset, length uint64, payload ...[]byte) answer {
	return x.ask(x.request(flags, command, cookie, offset, length), command, length, payload...)
}

// want does a request and wants one of some errors, or success.
func (x *peer) want(errnos []syscall.Errno, flags, command uint16, offset, length uint64, payload ...[]byte) answer {
	a := x.do(flags, command, offset, length, payload...)
	for _, e := range errnos {
		if a.errno == e {
			if command == cmdRead && e == ok && len(a.data) != int(length) {
				x.failf("a READ of %d bytes returns %d", length, len(a.data))
			}
			return a
		}
	}
	x.failf("command %d with flags %#x, offset %#x and length %#x: errno %d, not %d", command, flags, offset, length, a.errno, errnos)
	return a
}

// one is a list of one error.
func one(e syscall.Errno) []syscall.Errno { return []syscall.Errno{e} }

// wantOK does a request, which must succeed.
func (x *peer) wantOK(flags, command uint16, offset, length uint64, payload ...[]byte) answer {
	return x.want(one(ok), flags, command, offset, length, payload...)
}

// wantAlive checks that requests are still answered.
func (x *peer) wantAlive() { x.wantOK(0, cmdRead, 0, 512) }

// wantData checks what lies at a place.
func (x *peer) wantData(offset uint64, data []byte) {
	if a := x.wantOK(0, cmdRead, offset, uint64(len(data))); !bytes.Equal(a.data, data) {
		x.failf("the data at %d has changed", offset)
	}
}

// has ends the probe unless the export has a feature.
func (x *peer) has(flag uint16, name string) {
	if x.flags&flag == 0 {
		x.notOffered(name)
	}
}

// pattern is n bytes that are not zero.
//
//go:norace
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)*31 + seed | 1
	}
	return b
}
