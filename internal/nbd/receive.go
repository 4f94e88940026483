package nbd

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/block"
)

// phase is what the loop expects next from the client. All ends of a request lead
// back to awaitHeader.
//
//	─▶ awaitHeader ─┬─ FLUSH, TRIM, WRITE_ZEROES ──────────▶ submitted
//	                ├─ READ ──▶ awaitMemory ───────────────▶ submitted
//	                ├─ WRITE ─▶ awaitMemory ─▶ awaitPayload ▶ submitted
//	                ├─ refused WRITE ─▶ discarding ────────▶ answered
//	                ├─ anything else refused ──────────────▶ answered
//	                └─ DISC, end of the stream ─▶ ended
type phase uint8

const (
	awaitHeader  phase = iota // the next request begins
	awaitMemory               // the current request waits for bytes in flight and memory
	awaitPayload              // the current WRITE waits for its data
	awaitQueue                // the current request waits for a place in the queue
	discarding                // the payload of a refused WRITE is skipped
	ended                     // nothing is expected any more
)

// inbound is the receiving half of a transmission.
type inbound struct {
	phase   phase
	current *slot
	got     int    // bytes of the current WRITE's payload, received or skipped
	end     error  // why the phase is ended
	dry     bool   // the socket had nothing more when last asked
	total   uint64 // bytes received

	buffer []byte // private: what is in it cannot change after it was judged
	r, w   int    // buffer[r:w] is received and not parsed
	window int    // bytes to receive to the buffer at most

	batch int64 // payload bytes admitted in this turn

	message message // of a scatter
	iov     [2]unix.Iovec
}

// The sizes below are measured with fio over a UNIX socket, see docs/nbd.md.
const (
	// bufferSize is as much as a client gets into its socket at default sizes.
	bufferSize = 256 << 10

	// Behind the end of a WRITE of at least largePayload bytes, only the next header
	// is received: if that is a large WRITE too, none of its payload has to be
	// copied, and a stream of them costs one call each.
	largePayload = 16 << 10

	// batchBytes ends a batch, so that the client has replies to work on while the
	// next requests are executed.
	batchBytes = 256 << 10
)

func (in *inbound) init() {
	in.buffer = make([]byte, bufferSize)
	in.window = bufferSize
}

// partial reports whether the client has begun something and not ended it.
func (in *inbound) partial() bool {
	switch in.phase {
	case awaitHeader:
		return in.w > in.r
	case awaitPayload, discarding:
		return true
	}
	return false
}

// hungry reports whether the next step needs bytes from the socket.
func (t *transmission) hungry() bool {
	switch t.in.phase {
	case awaitHeader:
		return t.in.w-t.in.r < requestHeaderSize && len(t.free) > 0
	case awaitPayload, discarding:
		return t.in.w == t.in.r
	}
	return false
}

// fill receives what the next step needs, and what comes behind it: one call
// serves many small requests. The rest of a large payload goes straight to its
// place.
func (t *transmission) fill() (bool, error) {
	in := &t.in
	if in.dry || !t.hungry() {
		return false, nil
	}
	var n, want int
	var e syscall.Errno
	if in.phase == awaitPayload {
		rest := in.current.req.Data[in.got:]
		setIovec(&in.iov[0], rest)
		setIovec(&in.iov[1], in.buffer[:in.window])
		in.message.use(in.iov[:])
		want = len(rest) + in.window
		if n, e = t.sock.scatter(&in.message); n > len(rest) {
			in.r, in.w = 0, n-len(rest)
		}
		in.got += min(n, len(rest))
	} else {
		in.w = copy(in.buffer, in.buffer[in.r:in.w])
		in.r = 0
		free := in.buffer[in.w:min(in.w+in.window, bufferSize)]
		want = len(free)
		n, e = t.sock.receive(free)
		in.w += n
	}
	switch {
	case e == unix.EAGAIN:
		in.dry = true
		return false, nil
	case e != 0:
		return false, fmt.Errorf("receive: %w", e)
	case n == 0:
		t.finish(t.endOfStream())
		return true, nil
	}
	in.dry = n < want
	in.total += uint64(n)
	t.counts[countReceives]++
	return true, nil
}

// finish makes sure that nothing more is read; what is under way gets its reply.
func (t *transmission) finish(end error) {
	if t.in.phase == awaitPayload {
		t.giveBack(t.in.current)
	}
	if t.in.phase == discarding {
		t.giveBack(t.in.current)
	}
	t.in.phase = ended
	t.in.end = end
}

// parse makes requests of what was received and submits them, until something is
// missing or the batch is large enough.
func (t *transmission) parse() (bool, error) {
	progress := false
	t.in.batch = 0
	for t.in.batch < batchBytes {
		advanced, err := t.step()
		if err != nil {
			return false, err
		}
		if !advanced {
			break
		}
		progress = true
	}
	return progress, nil
}

// step takes the current request to its next phase, or reports that it cannot.
func (t *transmission) step() (bool, error) {
	switch t.in.phase {
	case awaitHeader:
		return t.begin()
	case awaitMemory:
		return t.admit(), nil
	case awaitPayload:
		return t.collect(), nil
	case awaitQueue:
		return t.submit(t.in.current), nil
	case discarding:
		return t.discard(), nil
	}
	return false, nil
}

// begin takes the next header from the buffer and decides what becomes of the
// request.
func (t *transmission) begin() (bool, error) {
	in := &t.in
	if in.w-in.r < requestHeaderSize {
		return false, nil
	}
	s := t.take()
	if s == nil {
		return false, nil
	}
	h := &s.header
	if !h.decode(in.buffer[in.r:in.w]) {
		return false, fmt.Errorf("%w: bad request magic", errProtocol)
	}
	in.r += requestHeaderSize
	in.current = s
	in.window = bufferSize
	t.counts[commandCounter(h.command)]++
	if h.command == cmdDisconnect {
		t.giveBack(s)
		t.finish(nil)
		return true, nil
	}
	if uint64(h.payload()) > 2*uint64(t.info.MaximumPayload) {
		return false, fmt.Errorf("%w: WRITE of %d bytes", errProtocol, h.length)
	}
	op, flags, errno := h.judge(&t.info, t.structured)
	if errno == 0 && t.draining {
		errno = syscall.ESHUTDOWN
	}
	if errno != 0 {
		t.refuse(s, errno)
		return true, nil
	}
	s.req.Op, s.req.Flags = op, flags
	s.req.Offset, s.req.Length = int64(h.offset), int64(h.length)
	if op == block.Read || op == block.Write {
		in.phase = awaitMemory
		return true, nil
	}
	t.submit(s)
	return true, nil
}

// refuse answers a request that is not executed, when its payload is out of the
// way.
func (t *transmission) refuse(s *slot, errno syscall.Errno) {
	s.req.Err = errno
	if errno == syscall.ESHUTDOWN {
		s.why = "the server is shutting down"
	} else if t.structured {
		s.why = s.header.explain(&t.info, errno)
	}
	if s.header.payload() > 0 {
		t.in.phase = discarding
		t.in.got = 0
		return
	}
	t.reply(s, errno)
}

// admit gets memory for the current READ or WRITE.
func (t *transmission) admit() bool {
	s := t.in.current
	length := s.req.Length
	if t.inFlight > 0 && t.inFlight+length > t.limits.InFlight {
		return false
	}
	if !t.queue.Reserve(&s.req) {
		return false
	}
	s.payload = length
	t.inFlight += length
	t.in.batch += length
	if s.req.Op == block.Read {
		t.submit(s)
		return true
	}
	t.in.phase = awaitPayload
	t.in.got = 0
	if length >= largePayload {
		t.in.window = requestHeaderSize
	}
	return true
}

// collect copies what the buffer has of the current WRITE's payload, and submits
// the WRITE if that was all of it.
func (t *transmission) collect() bool {
	in := &t.in
	data := in.current.req.Data
	n := copy(data[in.got:], in.buffer[in.r:in.w])
	in.r += n
	in.got += n
	if in.got == len(data) {
		t.counts[countBytesWritten] += uint64(len(data))
		t.submit(in.current)
		return true
	}
	return n > 0
}

// discard skips what the buffer has of a refused WRITE's payload.
func (t *transmission) discard() bool {
	in := &t.in
	length := int(in.current.header.length)
	n := min(length-in.got, in.w-in.r)
	in.r += n
	in.got += n
	if in.got == length {
		in.phase = awaitHeader
		t.reply(in.current, in.current.req.Err.(syscall.Errno))
		return true
	}
	return n > 0
}

// submit hands a request to the queue. A queue is as deep as there are slots; one
// that refuses all the same is asked again after the next request has finished.
func (t *transmission) submit(s *slot) bool {
	if !t.queue.Submit(&s.req) {
		t.in.phase = awaitQueue
		return false
	}
	t.underWay++
	t.unkicked = true
	t.in.phase = awaitHeader
	return true
}

// commandCounter returns the counter of a command.
func commandCounter(command uint16) int {
	switch command {
	case cmdRead:
		return countReads
	case cmdWrite:
		return countWrites
	case cmdFlush:
		return countFlushes
	case cmdTrim:
		return countTrims
	case cmdWriteZeroes:
		return countWriteZeroes
	default:
		return countOthers
	}
}
