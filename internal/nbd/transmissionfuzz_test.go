package nbd

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd/nbdtest"
)

// course is what a fuzzed connection goes through before its requests and
// beside them, as bits of a number that the fuzzer chooses.
type course uint32

const (
	courseLater    course = 1 << 0 // the disk completes elsewhere and in another order
	courseWay      course = 3 << 1 // how transmission begins, see way
	courseContexts course = 1 << 3 // base:allocation is selected, where chunks are agreed
	courseTLS      course = 1 << 4 // STARTTLS first, where there is a handshake
	courseProgram  course = 1 << 5 // the input is a program of requests, not their bytes
	courseReadOnly course = 1 << 6
	courseBlocks   course = 1 << 7 // the minimum block is 512
	courseTorn     course = 1 << 8 // half of the stream is sent beside TLS
)

// Ways into transmission.
const (
	wayBare     = course(iota) << 1 // ServeConn: no handshake
	waySimple                       // a handshake without options
	wayChunks                       // structured replies
	wayExtended                     // extended headers
)

func (c course) has(bit course) bool { return c&bit != 0 }
func (c course) way() course         { return c & courseWay }
func (c course) tls() bool           { return c.has(courseTLS) && c.way() != wayBare }
func (c course) torn() bool          { return c.has(courseTorn) && c.tls() }

// piece returns how many of n bytes are sent with one call: every 65536th
// course sends them in another size, and none in more than 256 pieces.
func (c course) piece(n int) int {
	size := int(c >> 16)
	if size == 0 {
		return max(n, 1)
	}
	return max(size, n/256, 1)
}

func (c course) terms() terms {
	t := terms{contexts: c.has(courseContexts) && c.way() >= wayChunks}
	switch c.way() {
	case wayChunks:
		t.replyMode = structured
	case wayExtended:
		t.replyMode = extended
	}
	return t
}

// fuzzedSize is the size of the disk, in bytes.
const fuzzedSize = 64 << 10

// FuzzTransmission negotiates what the course says with a whole server and
// sends it a stream of requests. Every request has one reply, with the errno,
// the data and the extents that a model of the protocol and of the disk
// expects; the connection ends when the client does, and leaves nothing behind.
func FuzzTransmission(f *testing.F) {
	for _, seed := range fuzzedStreams() {
		f.Add(seed, uint32(0))
		f.Add(seed, uint32(courseLater))
		f.Add(seed, uint32(wayChunks|courseTLS|courseContexts))
	}
	for _, seed := range [][]byte{
		bytes.Join([][]byte{
			extendedRequest(cmdFlagPayloadLen, cmdWrite, 1, 0, 3), []byte("abc"), extendedRequest(0, cmdRead, 2, 0, 512),
			extendedRequest(cmdFlagPayloadLen, cmdBlockStatus, 3, 4096, 12), be64(4096), be32(contextID),
			extendedRequest(0, cmdWrite, 4, 0, 3), []byte("abc"), extendedRequest(0, cmdTrim, 5, 0, 1<<40),
		}, nil),
		bytes.Join([][]byte{extendedRequest(cmdFlagPayloadLen, cmdFlush, 1, 0, 3), []byte("abc"), request(0, cmdRead, 2, 0, 512), make([]byte, 4)}, nil),
		extendedRequest(cmdFlagPayloadLen, cmdTrim, 1, 0, 1<<40),
		extendedRequest(cmdFlagPayloadLen, 77, 1, 0, 1<<21),
	} {
		f.Add(seed, uint32(wayExtended))
		f.Add(seed, uint32(wayExtended|courseContexts|courseTLS|courseLater))
		f.Add(seed, uint32(wayExtended|courseContexts|courseTLS|courseTorn)|40<<16)
	}
	program := []byte("\x00\x00\x00\x00\x40\x10\x01\x00\x00\x00\x40\x10\x06\x08\x40\x00\x40\x40\x06\x20\x00\x00\x00\x10\x05\x02\x00\x00\x40\x10\x00\x04\x80\x03\xc0\x00\x0b\x00")
	for way := wayBare; way <= wayExtended; way += 1 << 1 {
		for _, more := range []course{0, courseContexts, courseContexts | courseTLS, courseReadOnly | courseBlocks, courseTLS | courseLater | 7<<16} {
			f.Add(program, uint32(way|more|courseProgram))
		}
	}
	f.Fuzz(func(t *testing.T, input []byte, number uint32) {
		c := course(number)
		stream := input
		if c.has(courseProgram) {
			stream = c.assemble(input)
		}
		if len(stream) > 1<<20 {
			return
		}
		m := newMemory(fuzzedSize)
		fill(m.data[8<<10:32<<10], 1)
		model := requestModel{course: c, disk: bytes.Clone(m.data)}
		stream = bytes.Clone(stream)
		if model.walk(stream); model.volume > 64<<20 {
			return
		}
		m.later = c.has(courseLater)
		m.info.MaximumPayload = 1 << 20
		m.info.Features &^= block.CanFastZero
		if c.has(courseBlocks) {
			m.info.MinimumBlock = 512
		}
		model.check(t, c.run(t, m, stream))
		if m.open.Load() != 0 || m.leaked.Load() != 0 {
			t.Fatalf("%d queues open, %d reservations leaked", m.open.Load(), m.leaked.Load())
		}
		if !m.later && !c.torn() && !bytes.Equal(m.data, model.disk) {
			t.Fatal("the disk is not the model")
		}
	})
}

// fuzzedStreams are seeds of compact requests.
func fuzzedStreams() [][]byte {
	return [][]byte{
		{},
		request(0, cmdRead, 1, 0, 512),
		bytes.Join([][]byte{request(0, cmdRead, 1, 0, 512), request(0, cmdDisconnect, 2, 0, 0)}, nil),
		bytes.Join([][]byte{request(cmdFlagFUA, cmdWrite, 1, 4096, 3), []byte("abc"), request(0, cmdFlush, 2, 0, 0)}, nil),
		bytes.Join([][]byte{request(0x8000, cmdWrite, 1, 1<<63, 5), []byte("abcde"), request(0, cmdTrim, 2, 0, 1<<20)}, nil),
		bytes.Join([][]byte{request(cmdFlagFastZero, cmdWriteZeroes, 1, 0, 1<<20), request(0, cmdCache, 2, 0, 1), request(0, 77, 3, 0, 1)}, nil),
		bytes.Join([][]byte{request(cmdFlagReqOne, cmdBlockStatus, 1, 0, 1<<16), request(cmdFlagDF, cmdRead, 2, 0, 1<<16)}, nil),
		request(0, cmdWrite, 1, 0, 0xffffffff),
		make([]byte, requestHeaderSize),
	}
}

// run serves one connection of the course, and returns what came back in
// transmission.
func (c course) run(t *testing.T, m *memory, stream []byte) []byte {
	server, client := pair(t)
	export := Export{Name: "disk", Device: m, ReadOnly: c.has(courseReadOnly)}
	s := &Server{Limits: Limits{Progress: -1, Depth: 8, InFlight: 128 << 10}}
	ended := make(chan struct{})
	defer func() { <-ended }()
	defer client.Close()
	client.SetDeadline(time.Now().Add(testTimeout))
	if c.way() == wayBare {
		go func() {
			defer close(ended)
			s.ServeConn(t.Context(), server, &export, nil)
		}()
		return exchange(t, client, stream, c.piece(len(stream)))
	}
	s.Exports, _ = NewExports(export)
	if c.tls() {
		s.TLS = TLS{Config: certificates(t).server}
	}
	go func() {
		defer close(ended)
		s.serve(s.admitConn(nil, server))
	}()
	p := newPeer(t, client)
	p.greet(bothFlags)
	if c.tls() {
		p.startTLS("alice")
	}
	terms := c.terms()
	p.speak(terms.replyMode)
	if terms.contexts {
		p.option(optSetMeta, nbdtest.MetaData("disk", contextName))
		p.wantContexts(optSetMeta, contextName)
	}
	p.option(optGo, nbdtest.GoData("disk", infoBlockSize))
	p.infos(optGo)
	if c.torn() {
		return p.tear(stream)
	}
	return exchange(t, p.Conn, stream, c.piece(len(stream)))
}

// tear sends half of the stream by TLS and the rest past it, and returns what
// comes back until the connection ends.
func (p *peer) tear(stream []byte) []byte {
	half := len(stream) / 2
	below := p.Conn.(*tls.Conn).NetConn()
	go func() {
		p.Write(stream[:half])
		below.Write(stream[half:])
		below.(*net.UnixConn).CloseWrite()
	}()
	b, err := io.ReadAll(p)
	if e, ok := err.(net.Error); ok && e.Timeout() {
		p.t.Fatal("the server does not end")
	}
	return b
}

// requestModel is what a stream of requests has to bring about.
type requestModel struct {
	course
	disk   []byte
	sent   []*expectation // by cookie
	cut    bool           // the stream breaks the protocol: the end may be sudden
	volume int            // bytes that READs return
}

// expectation is the only right answer to a request.
type expectation struct {
	header
	errno    syscall.Errno
	data     []byte // of a READ
	before   []byte // the disk, when a BLOCK_STATUS is executed
	answered bool
}

// walk reads a stream as the protocol says. It numbers the cookies, which are
// the client's to choose.
func (m *requestModel) walk(stream []byte) {
	d := m.terms().replyMode
	m.cut = m.torn()
	for len(stream) >= d.requestSize() {
		e := &expectation{}
		if !e.decode(stream, d) {
			m.cut = true
			return
		}
		if e.command == cmdDisconnect {
			return
		}
		e.cookie = uint64(len(m.sent))
		binary.BigEndian.PutUint64(stream[8:], e.cookie)
		if stream = stream[d.requestSize():]; e.payload > 2<<20 {
			m.cut = true
			return
		}
		if e.payload > uint64(len(stream)) {
			return
		}
		payload := stream[:e.payload]
		stream = stream[e.payload:]
		m.sent = append(m.sent, e)
		m.execute(e, payload)
	}
}

// execute decides what a request does, and does it to the model's disk.
func (m *requestModel) execute(e *expectation, payload []byte) {
	if e.command == cmdBlockStatus && len(payload) == 12 && m.terms().contexts {
		e.length = binary.BigEndian.Uint64(payload)
		e.flags &^= cmdFlagPayloadLen
		if binary.BigEndian.Uint32(payload[8:]) != contextID {
			e.errno = einval
			return
		}
	}
	if e.errno = m.expectedErrno(&e.header); e.errno != 0 {
		return
	}
	switch e.command {
	case cmdRead:
		if m.volume += int(e.length); m.volume <= 64<<20 {
			e.data = bytes.Clone(m.disk[e.offset:][:e.length])
		}
	case cmdWrite:
		copy(m.disk[e.offset:], payload)
	case cmdTrim, cmdWriteZeroes:
		clear(m.disk[e.offset:][:e.length])
	case cmdBlockStatus:
		if m.volume += fuzzedSize; m.volume <= 64<<20 {
			e.before = bytes.Clone(m.disk)
		}
	}
}

// expectedErrno is what the protocol and docs/nbd.md say of a request.
func (m *requestModel) expectedErrno(h *header) syscall.Errno {
	const fua, all = cmdFlagFUA, uint64(fuzzedSize)
	terms := m.terms()
	allowed, known := map[uint16]uint16{
		cmdRead: fua, cmdWrite: fua, cmdFlush: fua, cmdTrim: fua, cmdCache: fua,
		cmdWriteZeroes: fua | cmdFlagNoHole, cmdBlockStatus: fua | cmdFlagReqOne,
	}[h.command]
	needed := uint16(0)
	if h.command == cmdRead && terms.replyMode != simple {
		allowed |= cmdFlagDF
	}
	if h.command == cmdWrite && terms.replyMode == extended {
		needed = cmdFlagPayloadLen
		allowed |= needed
	}
	changes := h.command == cmdWrite || h.command == cmdTrim || h.command == cmdWriteZeroes
	if h.command == cmdWriteZeroes && m.has(courseReadOnly) {
		allowed |= cmdFlagFastZero // that it is read-only comes before that it is not fast
	}
	switch {
	case !known, h.flags&^allowed != 0, h.flags&needed != needed:
		return syscall.EINVAL
	case h.command == cmdBlockStatus && !terms.contexts:
		return syscall.EINVAL
	case changes && m.has(courseReadOnly):
		return syscall.EPERM
	case h.command == cmdFlush && h.offset|h.length == 0:
		return 0
	case h.command == cmdFlush, h.length == 0:
		return syscall.EINVAL
	case h.offset > all || h.length > all-h.offset:
		if h.command == cmdWrite || h.command == cmdWriteZeroes {
			return syscall.ENOSPC
		}
		return syscall.EINVAL
	case m.has(courseBlocks) && (h.offset|h.length)%512 != 0:
		return syscall.EINVAL
	}
	return 0
}

// check compares what came back with what has to.
func (m *requestModel) check(t *testing.T, replies []byte) {
	t.Helper()
	terms := m.terms()
	dataOf := func(cookie uint64) int {
		if cookie >= uint64(len(m.sent)) {
			t.Fatalf("reply to %#x, and %d requests were sent", cookie, len(m.sent))
		}
		return len(m.sent[cookie].data)
	}
	whole := wholeReplies(t, replies, terms.replyMode, dataOf)
	if whole < len(replies) && !m.cut {
		t.Fatalf("the last %d bytes are no reply", len(replies)-whole)
	}
	left := &replay{Reader: bytes.NewReader(replies[:whole])}
	p := &peer{t: t, Conn: left, replyMode: terms.replyMode}
	for left.Len() > 0 {
		m.validate(t, p.answer(dataOf))
	}
	for cookie, e := range m.sent {
		if !e.answered && !m.cut {
			t.Fatalf("request %d is not answered: %+v", cookie, e.header)
		}
	}
}

// validate checks one answer.
func (m *requestModel) validate(t *testing.T, a answer) {
	t.Helper()
	e, terms := m.sent[a.cookie], m.terms()
	switch {
	case e.answered:
		t.Fatalf("a second answer to %+v", e.header)
	case a.errno != e.errno:
		t.Fatalf("errno %d %q, want %d: %+v", a.errno, a.text, e.errno, e.header)
	case len(a.data) != len(e.data):
		t.Fatalf("%d bytes of data, want %d: %+v", len(a.data), len(e.data), e.header)
	case !m.has(courseLater) && !bytes.Equal(a.data, e.data):
		t.Fatalf("wrong data: %+v", e.header)
	case a.chunk && (terms.replyMode == extended || len(a.data) > 0) && a.offset != e.offset:
		t.Fatalf("a reply at %d: %+v", a.offset, e.header)
	case e.flags&cmdFlagDF != 0 && a.pieces > 1:
		t.Fatalf("%d chunks: %+v", a.pieces, e.header)
	case (e.command == cmdBlockStatus && e.errno == 0) != (len(a.extents) > 0):
		t.Fatalf("%d extents: %+v", len(a.extents), e.header)
	}
	e.answered = true
	at := e.offset
	for _, x := range a.extents {
		left := e.offset + e.length - at
		if x.Length <= 0 || uint64(x.Length) > left || m.has(courseBlocks) && x.Length%512 != 0 {
			t.Fatalf("extent of %d bytes where %d are left: %+v", x.Length, left, e.header)
		}
		here := e.before[at:][:x.Length]
		if x.Flags&block.Zero != 0 && !m.has(courseLater) && len(bytes.Trim(here, "\x00")) > 0 {
			t.Fatalf("an extent at %d is not zero: %+v", at, e.header)
		}
		at += uint64(x.Length)
	}
	if e.flags&cmdFlagReqOne != 0 && len(a.extents) > 1 {
		t.Fatalf("%d extents: %+v", len(a.extents), e.header)
	}
}

// wholeReplies returns how many bytes of b are whole replies.
func wholeReplies(t *testing.T, b []byte, d replyMode, dataOf func(cookie uint64) int) (whole int) {
	t.Helper()
	at := 0
	for {
		head, last := b[at:], true
		size := uint64(simpleReplySize)
		if len(head) < simpleReplySize {
			return whole
		}
		switch magic := binary.BigEndian.Uint32(head); {
		case magic == magicSimpleReply && d != extended:
			if binary.BigEndian.Uint32(head[4:]) == 0 && d == simple {
				size += uint64(dataOf(binary.BigEndian.Uint64(head[8:])))
			}
		case magic == magicStructured && d == structured && len(head) >= chunkHeaderSize:
			size = chunkHeaderSize + uint64(binary.BigEndian.Uint32(head[16:]))
			last = binary.BigEndian.Uint16(head[4:])&chunkFlagDone != 0
		case magic == magicExtendedReply && d == extended && len(head) >= extendedReplySize:
			size = extendedReplySize + binary.BigEndian.Uint64(head[24:])
			last = binary.BigEndian.Uint16(head[4:])&chunkFlagDone != 0
		case magic == magicStructured || magic == magicExtendedReply:
			return whole
		default:
			t.Fatalf("reply magic %#x", magic)
		}
		if size > uint64(len(head)) {
			return whole
		}
		if at += int(size); last {
			whole = at
		}
	}
}

// replay is a connection of which the bytes are there already.
type replay struct {
	net.Conn
	*bytes.Reader
}

func (r *replay) Read(p []byte) (int, error) { return r.Reader.Read(p) }
