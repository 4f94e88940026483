package nbdtest

import (
	"bytes"
	"encoding/binary"
	"syscall"
)

// requests are about commands and their flags.
var requests = []Statement{
	{"T-5", "an unknown command is invalid, whatever its length, and nothing is awaited behind it", func(p *probe) {
		x := p.connect(simple)
		for _, length := range []uint64{0, 512, 1 << 20, 0xffffffff} {
			x.want(one(eInval), 0, cmdUnknown, 0, length)
		}
		x.wantAlive()
	}},
	{"T-6", "a flag that does not belong to a command is invalid, and payload behind it is skipped", func(p *probe) {
		x := p.connect(simple)
		data := pattern(512, 9)
		x.wantOK(0, cmdWrite, 0, 512, data)
		for _, c := range []struct {
			flags, command uint16
			payload        []byte
		}{
			{flagUnknown, cmdRead, nil},
			{flagNoHole, cmdRead, nil},
			{flagDF, cmdRead, nil},
			{flagReqOne, cmdWrite, pattern(512, 1)},
			{flagUnknown, cmdWrite, pattern(512, 2)},
			{flagNoHole, cmdWrite, pattern(512, 3)},
		} {
			x.want(one(eInval), c.flags, c.command, 0, 512, c.payload)
		}
		x.wantData(0, data)
	}},
	{"T-6f", "FAST_ZERO that was not offered is invalid", func(p *probe) {
		x := p.connect(simple)
		x.has(hasWriteZeroes, "WRITE_ZEROES")
		if x.flags&hasFastZero != 0 {
			p.notOffered("an export without FAST_ZERO")
		}
		x.want(one(eInval), flagFastZero, cmdWriteZeroes, 0, 4096)
		x.wantAlive()
	}},
	{"T-7", "FUA goes with every command where it is offered", func(p *probe) {
		x := p.connect(simple)
		x.has(hasFUA, "FUA")
		x.wantOK(flagFUA, cmdWrite, 0, 512, pattern(512, 4))
		x.wantOK(flagFUA, cmdRead, 0, 512)
		for command, flag := range map[uint16]uint16{
			cmdFlush: hasFlush, cmdTrim: hasTrim, cmdCache: hasCache, cmdWriteZeroes: hasWriteZeroes,
		} {
			length := uint64(4096)
			if command == cmdFlush {
				length = 0
			}
			if x.flags&flag != 0 {
				x.wantOK(flagFUA, command, 0, length)
			}
		}
	}},
	{"T-9", "FLUSH is done; one with an offset and a length is answered", func(p *probe) {
		x := p.connect(simple)
		x.has(hasFlush, "FLUSH")
		x.wantOK(0, cmdFlush, 0, 0)
		x.want([]syscall.Errno{ok, eInval}, 0, cmdFlush, 512, 512)
		x.wantAlive()
	}},
	{"T-10", "a read-only export says so, refuses changes with EPERM and may be flushed", func(p *probe) {
		x := p.startReadOnly()
		x.has(hasReadOnly, "read-only exports")
		x.want(one(ePerm), 0, cmdWrite, 0, 512, pattern(512, 1))
		for command, flag := range map[uint16]uint16{cmdTrim: hasTrim, cmdWriteZeroes: hasWriteZeroes} {
			if x.flags&flag != 0 {
				x.want(one(ePerm), 0, command, 0, 4096)
			} else {
				x.want([]syscall.Errno{ePerm, eInval}, 0, command, 0, 4096)
			}
		}
		if x.flags&hasFlush != 0 {
			x.wantOK(0, cmdFlush, 0, 0)
		}
		x.wantAlive()
	}},
	{"T-11", "commands without length are answered", func(p *probe) {
		x := p.connect(simple)
		x.do(0, cmdRead, 0, 0)
		x.do(0, cmdWrite, 0, 0)
		for command, flag := range map[uint16]uint16{cmdTrim: hasTrim, cmdCache: hasCache, cmdWriteZeroes: hasWriteZeroes} {
			if x.flags&flag != 0 {
				x.do(0, command, 0, 0)
			}
		}
		x.wantAlive()
	}},
	{"T-12", "WRITE_ZEROES reads back as zeroes, and leaves its neighbours alone", func(p *probe) {
		x := p.connect(simple)
		x.has(hasWriteZeroes, "WRITE_ZEROES")
		for _, flags := range []uint16{0, flagNoHole} {
			data := pattern(64<<10, 7)
			x.wantOK(0, cmdWrite, 1<<20, uint64(len(data)), data)
			x.wantOK(flags, cmdWriteZeroes, 1<<20+4096, 8192)
			clear(data[4096:12288])
			x.wantData(1<<20, data)
		}
		if x.flags&hasFastZero != 0 {
			x.want([]syscall.Errno{ok, eNotSup}, flagFastZero, cmdWriteZeroes, 1<<20, 64<<10)
		}
	}},
	{"T-12l", "WRITE_ZEROES of 4 GiB less one block is answered, in time", func(p *probe) {
		x := p.connect(simple)
		x.has(hasWriteZeroes, "WRITE_ZEROES")
		x.want([]syscall.Errno{ok, eOverflow, eInval, eNoMem}, 0, cmdWriteZeroes, 0, 1<<32-4096)
		x.wantAlive()
	}},
	{"T-13", "TRIM of 4 GiB less one block is answered", func(p *probe) {
		x := p.connect(simple)
		x.has(hasTrim, "TRIM")
		x.want([]syscall.Errno{ok, eInval, eOverflow}, 0, cmdTrim, 0, 1<<32-4096)
		x.wantAlive()
	}},
	{"T-14", "CACHE changes nothing, offered or not", func(p *probe) {
		x := p.connect(simple)
		data := pattern(4096, 5)
		x.wantOK(0, cmdWrite, 0, 4096, data)
		if a := x.do(0, cmdCache, 0, 4096); x.flags&hasCache != 0 && a.errno != ok {
			p.failf("errno %d although it is offered", a.errno)
		}
		x.wantData(0, data)
	}},
	{"T-15", "a request without its magic ends the connection", func(p *probe) {
		x := p.connect(simple)
		b := x.request(0, cmdRead, cookie, 0, 512)
		b[0] ^= 0xff
		x.send(b)
		if !x.ends() {
			p.failf("the connection stays open")
		}
	}},
}

// startReadOnly begins transmission on the read-only export.
func (p *probe) startReadOnly() *peer {
	dial, name := p.Dial, p.ReadOnly
	if p.DialReadOnly != nil {
		dial = p.DialReadOnly
	} else if name == "" {
		p.notOffered("read-only exports")
	}
	x := p.dialBy(dial)
	x.greet(fixedNewstyle | noZeroes)
	if p.Forced {
		x.startTLS()
	}
	x.goTo(name)
	return x
}

// ranges are about requests that do not fit the export.
var ranges = []Statement{
	{"T-1", "what reads beyond the end is invalid, and a write there finds no space", func(p *probe) {
		x := p.connect(simple)
		for _, at := range []uint64{x.size - 512, x.size, x.size + 1<<20} {
			x.outside(at, 1024)
		}
		x.wantSize()
	}},
	{"T-2", "offsets near 2^63 and 2^64 are beyond the end", func(p *probe) {
		x := p.connect(simple)
		for _, at := range []uint64{1 << 63, 1<<63 - 256, ^uint64(255), ^uint64(0)} {
			x.outside(at, 512)
		}
		x.wantSize()
	}},
	{"T-3", "no data follows an error", func(p *probe) {
		x := p.connect(simple)
		// The answers of both follow at once: a payload would be taken for the
		// second.
		x.send(x.request(0, cmdRead, 1, x.size, 4096), x.request(0, cmdRead, 2, 0, 512))
		for range 2 {
			a := x.answer(func(c uint64) int { return 512 })
			if (a.cookie == 1) == (a.errno == ok) || a.cookie == 0 || a.cookie > 2 {
				p.failf("cookie %#x with errno %d", a.cookie, a.errno)
			}
		}
		x.wantAlive()
	}},
}

// outside sends everything that moves or changes data to a place outside.
func (x *peer) outside(at, length uint64) {
	x.want(one(eInval), 0, cmdRead, at, length)
	x.want(one(eNoSpc), 0, cmdWrite, at, length, pattern(int(length), 1))
	if x.flags&hasWriteZeroes != 0 {
		x.want(one(eNoSpc), 0, cmdWriteZeroes, at, length)
	}
	if x.flags&hasTrim != 0 {
		x.want(one(eInval), 0, cmdTrim, at, length)
	}
	if x.flags&hasCache != 0 {
		x.want(one(eInval), 0, cmdCache, at, length)
	}
	x.wantAlive()
}

// wantSize checks that the export has not grown.
func (x *peer) wantSize() {
	y := x.haggle()
	y.goTo(x.Export)
	if y.size != x.size {
		x.failf("the export has %d bytes, and had %d", y.size, x.size)
	}
}

// lengths are about long requests.
var lengths = []Statement{
	{"T-16", "payloads of 32 MiB are served", func(p *probe) {
		x := p.connect(simple)
		data := pattern(32<<20, 6)
		x.wantOK(0, cmdWrite, 0, uint64(len(data)), data)
		x.wantData(0, data)
	}},
	{"T-16r", "a READ that is too long is an error, and nothing else", func(p *probe) {
		x := p.connect(simple)
		a := x.do(0, cmdRead, 0, 0xfffff000)
		if a.errno == ok {
			p.failf("4 GiB are read")
		}
		x.wantAlive()
	}},
	{"T-16w", "a WRITE that is too long is refused or ends the connection; the server does not wait for 4 GiB", func(p *probe) {
		x := p.connect(simple)
		x.send(x.request(0, cmdWrite, cookie, 0, 0xfffff000))
		x.trySend(make([]byte, 1<<20))
		if !x.ends() {
			p.failf("the connection stays open and the payload is awaited")
		}
	}},
}

// pipelines are about many requests at the same time.
var pipelines = []Statement{
	{"T-17", "a client that disconnects gets all answers it is owed, and then the end", func(p *probe) {
		x := p.connect(simple)
		const n = 32
		for i := range uint64(n) {
			x.send(x.request(0, cmdRead, i, i<<16, 64<<10))
		}
		x.send(x.request(0, cmdDisc, 99, 0, 0))
		seen := make(map[uint64]bool)
		for range n {
			a := x.answer(func(uint64) int { return 64 << 10 })
			if a.errno != ok || a.cookie >= n || seen[a.cookie] {
				p.failf("cookie %d, errno %d", a.cookie, a.errno)
			}
			seen[a.cookie] = true
		}
		x.wantEnd()
	}},
	{"T-19", "five hundred requests in flight are all answered, also with the same cookie", func(p *probe) {
		x := p.connect(simple)
		const n = 500
		// A server may stop reading while its answers find no room.
		go func() { _, _ = x.Write(bytes.Repeat(x.request(0, cmdRead, 7, 0, 512), n)) }()
		for range n {
			if a := x.answer(func(uint64) int { return 512 }); a.cookie != 7 || a.errno != ok {
				p.failf("cookie %d, errno %d", a.cookie, a.errno)
			}
		}
	}},
	{"T-20", "a client that does not read is not read from for ever", func(p *probe) {
		x := p.connect(simple)
		request := x.request(0, cmdRead, 1, 0, 1<<20)
		_ = x.SetWriteDeadline(deadlineSoon())
		taken := 0
		for ; taken < 200_000; taken++ {
			if _, err := x.Write(request); err != nil {
				break
			}
		}
		if taken == 200_000 {
			p.failf("200000 requests for 1 MiB are taken from a client that reads nothing")
		}
	}},
	{"T-9m", "a write that was answered on one connection is covered by a flush on another", func(p *probe) {
		x, y := p.connect(simple), p.connect(simple)
		x.has(hasMultiConn, "several connections")
		data := pattern(4096, 8)
		x.wantOK(0, cmdWrite, 8192, 4096, data)
		y.wantOK(0, cmdFlush, 0, 0)
		y.wantData(8192, data)
	}},
}

// chunks are about structured replies and extended headers.
var chunks = []Statement{
	{"S-1", "READ is never answered by a simple reply once structured replies were agreed", func(p *probe) {
		x := p.connect(structured)
		for _, c := range []struct {
			flags  uint16
			offset uint64
			errno  syscall.Errno
		}{{0, 0, ok}, {0, x.size, eInval}, {flagUnknown, 0, eInval}, {flagNoHole, 0, eInval}} {
			if a := x.want(one(c.errno), c.flags, cmdRead, c.offset, 4096); a.chunks == 0 {
				p.failf("flags %#x, offset %d: a simple reply", c.flags, c.offset)
			}
		}
		x.wantAlive()
	}},
	{"S-2", "chunks are well formed and the last one says so, with errors too", func(p *probe) {
		x := p.connect(structured)
		x.wantOK(0, cmdWrite, 0, 64<<10, pattern(64<<10, 1))
		for _, length := range []uint64{1, 512, 4096, 64 << 10, 1 << 20, 32 << 20} {
			x.wantOK(0, cmdRead, 0, length)
		}
		x.want(one(eInval), 0, cmdRead, x.size-512, 1024)
		x.want([]syscall.Errno{eNoSpc, eInval}, 0, cmdWrite, x.size, 512, pattern(512, 1))
		x.wantAlive()
	}},
	{"S-3", "with DF there is one chunk of content, for 64 KiB always", func(p *probe) {
		x := p.connect(structured)
		x.has(hasDF, "DF")
		x.wantOK(0, cmdWrite, 0, 4096, pattern(4096, 1))
		if a := x.wantOK(flagDF, cmdRead, 0, 64<<10); a.content != 1 {
			p.failf("%d chunks of content", a.content)
		}
	}},
	{"S-3d", "DF is offered with structured replies", func(p *probe) {
		if x := p.connect(structured); x.flags&hasDF == 0 {
			p.failf("flags %#x", x.flags)
		}
	}},
	{"S-4", "holes and data of a READ are what was written", func(p *probe) {
		x := p.connect(structured)
		data := make([]byte, 1<<20)
		copy(data[256<<10:], pattern(4096, 3))
		copy(data[768<<10:], pattern(100, 4))
		const at = 1 << 30
		x.wantOK(0, cmdWrite, at, uint64(len(data)), data)
		for _, c := range []struct{ from, length int }{{0, len(data)}, {256<<10 - 1, 5000}, {300, 1 << 19}} {
			if a := x.wantOK(0, cmdRead, at+uint64(c.from), uint64(c.length)); !bytes.Equal(a.data, data[c.from:c.from+c.length]) {
				p.failf("%d bytes at %d differ", c.length, c.from)
			}
		}
	}},
	{"S-7", "extended replies tell the offset of their request, also with errors", func(p *probe) {
		x := p.connect(extended)
		for _, c := range []struct {
			offset uint64
			errno  syscall.Errno
		}{{0, ok}, {1 << 32, ok}, {x.size, eInval}} {
			if a := x.want(one(c.errno), 0, cmdRead, c.offset, 4096); a.offset != c.offset {
				p.failf("a reply for %d, not %d", a.offset, c.offset)
			}
		}
		if a := x.wantOK(0, cmdWrite, 1<<32, 512, pattern(512, 1)); a.offset != 1<<32 {
			p.failf("a reply for %d", a.offset)
		}
	}},
	{"S-7p", "an extended WRITE has PAYLOAD_LEN; another command with it is skipped and invalid", func(p *probe) {
		x := p.connect(extended)
		a := x.ask(x.extendedRequest(flagPayloadLen, cmdRead, cookie, 0, 512), cmdRead, 512, pattern(512, 1))
		if a.errno != eInval {
			p.failf("READ with a payload: errno %d", a.errno)
		}
		x.wantAlive()
	}},
	{"S-7z", "extended TRIM and WRITE_ZEROES may be longer than 4 GiB", func(p *probe) {
		x := p.connect(extended)
		for command, flag := range map[uint16]uint16{cmdTrim: hasTrim, cmdWriteZeroes: hasWriteZeroes} {
			if x.flags&flag != 0 {
				x.wantOK(0, command, 0, 5<<30)
			}
		}
		x.wantAlive()
	}},
}

// extents are about BLOCK_STATUS.
var extents = []Statement{
	{"S-5", "BLOCK_STATUS tells at least one extent, and all but the last within the request", func(p *probe) {
		p.status(structured).wantExtents()
	}},
	{"S-5x", "so does BLOCK_STATUS in extended headers", func(p *probe) { p.status(extended).wantExtents() }},
	{"S-5e", "BLOCK_STATUS beyond the end, or without length, is an error", func(p *probe) {
		x := p.status(structured)
		x.want(one(eInval), 0, cmdBlockStatus, x.size-512, 1024)
		x.want(one(eInval), 0, cmdBlockStatus, x.size, 512)
		x.do(0, cmdBlockStatus, 0, 0)
		x.wantAlive()
	}},
	{"S-5n", "BLOCK_STATUS without a context is invalid", func(p *probe) {
		p.contexts()
		x := p.haggle()
		x.setReplyMode(structured)
		x.goTo(p.Export)
		x.want(one(eInval), 0, cmdBlockStatus, 0, 4096)
		x.wantAlive()
	}},
	{"S-6", "what is told to be zero reads as zeroes, and what was written is told to be there", func(p *probe) {
		x := p.status(structured)
		x.wantOK(0, cmdWrite, 2<<20, 64<<10, pattern(64<<10, 1))
		if x.flags&hasTrim != 0 {
			x.wantOK(0, cmdTrim, 4<<20, 1<<20)
		}
		at := uint64(0)
		for at < 8<<20 {
			for _, e := range x.wantOK(0, cmdBlockStatus, at, 8<<20-at).extents {
				n := min(e.length, 8<<20-at)
				if n == 0 {
					break
				}
				x.truthful(at, n, e.flags)
				at += n
			}
		}
	}},
	{"CVE-2025-47711", "BLOCK_STATUS near 2^32 of an export that is one hole hurts no other client", func(p *probe) {
		x := p.status(structured)
		if x.flags&hasTrim != 0 {
			x.wantOK(0, cmdTrim, 0, 1<<32-4096)
		}
		for _, at := range []uint64{0, 512, 1 << 20, x.size - (1<<32 - 1)} {
			for _, length := range []uint64{1<<32 - 1, 1<<32 - 512, 1<<31 + 1} {
				if at+length <= x.size {
					x.wantExtentSum(x.do(0, cmdBlockStatus, at, length), length)
				}
			}
		}
		x.wantAlive()
	}},
}

// status enters transmission with base:allocation.
func (p *probe) status(d replyMode) *peer {
	x := p.connect(d)
	if !x.selected {
		p.notOffered("base:allocation")
	}
	return x
}

// wantExtents asks for the state of parts of several lengths.
func (x *peer) wantExtents() {
	x.wantOK(0, cmdWrite, 1<<20, 64<<10, pattern(64<<10, 1))
	for _, length := range []uint64{512, 4096, 64 << 10, 8 << 20, 1<<32 - 1<<16} {
		x.wantExtentSum(x.wantOK(0, cmdBlockStatus, 0, length), length)
		if a := x.wantOK(flagReqOne, cmdBlockStatus, 0, length); len(a.extents) != 1 || a.extents[0].length > length {
			x.failf("REQ_ONE of %d bytes: %v", length, a.extents)
		}
	}
}

// wantExtentSum checks the extents of a request of a length, unless it failed.
func (x *peer) wantExtentSum(a answer, length uint64) {
	if a.errno != ok {
		return
	}
	if len(a.extents) == 0 || len(a.extents) > 1<<20 {
		x.failf("%d extents", len(a.extents))
	}
	sum := uint64(0)
	for _, e := range a.extents[:len(a.extents)-1] {
		sum += e.length
	}
	if sum >= length {
		x.failf("the extents but the last have %d bytes, the request %d", sum, length)
	}
}

// truthful checks the state of a part of the export.
func (x *peer) truthful(at, n, flags uint64) {
	const isZero = 2
	data := x.wantOK(0, cmdRead, at, n).data
	zero := len(bytes.Trim(data, "\x00")) == 0
	if flags&isZero != 0 && !zero {
		x.failf("%d bytes at %d are told to be zero, and are not", n, at)
	}
	if at <= 2<<20 && at+n > 2<<20 && binary.BigEndian.Uint64(data[2<<20-at:]) == 0 {
		x.failf("what was written is gone")
	}
}
