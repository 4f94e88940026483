package nbd

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/latency"
)

// phase is what the loop expects next from the client. All ends of a request
// lead back to awaitHeader.
//
//	─▶ awaitHeader ─┬─ FLUSH, TRIM, CACHE, WRITE_ZEROES ───▶ submitted
//	                ├─ READ, BLOCK_STATUS ─▶ awaitMemory ──▶ submitted
//	                ├─ BLOCK_STATUS + payload ─▶ awaitPayload─▶ awaitMemory
//	                │                                            ─▶ submitted
//	                ├─ WRITE ─▶ awaitMemory ─▶ awaitPayload ▶ submitted
//	                ├─ refused with payload ─▶ discarding ─▶ answered
//	                ├─ anything else refused ──────────────▶ answered
//	                └─ DISC, end of the stream ─▶ ended
type phase uint8

const (
	awaitHeader  phase = iota // the next request begins
	awaitMemory               // the current request waits for bytes in flight and memory
	awaitPayload              // the current request waits for its payload
	awaitQueue                // the current request waits for a place in the queue
	discarding                // the payload of a refused request is skipped
	ended                     // nothing is expected any more
)

// inbound is the receiving half of a transmission.
type inbound struct {
	phase      phase
	current    *entry
	got        int    // bytes of the current payload, received or skipped
	end        error  // why the phase is ended
	wouldBlock bool   // the socket had nothing more when last asked
	total      uint64 // bytes received
	left       int    // requests that may begin while the server drains
	closed     bool   // no request begins any more
	abandoned  bool   // the queue drops requests

	buffer       []byte // private: what is in it cannot change after it was validated
	r, w         int    // buffer[r:w] is received and not parsed
	receiveLimit int    // bytes to receive to the buffer at most, if it is that long

	batch int64 // payload bytes admitted in this iteration

	message message // of a scatter
	iov     [2]unix.Iovec
}

// The sizes below suit fio over a UNIX socket ("make bench-nbd").
const (
	// Behind the end of a WRITE of at least largePayload bytes, only the next
	// header is received: if that is a large WRITE too, none of its payload has
	// to be copied, and a stream of them costs one call each.
	largePayload = 16 << 10

	// batchBytes ends a batch, so that the client has replies to work on while
	// the next requests are executed.
	batchBytes = 256 << 10
)

// widen gets the buffer of the next size.
func (in *inbound) widen() {
	in.buffer = widen(in.buffer, in.buffer[in.r:in.w])
	in.r, in.w = 0, in.w-in.r
}

// releaseBuffer gives the buffer back. Its contents are lost.
func (in *inbound) releaseBuffer() {
	recycle(in.buffer)
	in.buffer, in.r, in.w = nil, 0, 0
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

// drain limits what is still read to the requests that have arrived, and to n:
// a client that sends all the time must not keep the server from its end.
func (in *inbound) drain(n int) {
	in.wouldBlock = false
	in.left = n
}

// closeDrained ends the reading of a server that drains, when every request
// that has arrived has begun; size is that of a header. Later requests are not
// executed and get no reply: the client resends them to the next server.
func (in *inbound) closeDrained(size int) {
	if in.phase == awaitHeader && (in.wouldBlock && in.w-in.r < size || in.left == 0) {
		in.closed = true
	}
}

// needsInput reports whether the next step needs bytes from the socket.
func (t *transmission) needsInput() bool {
	switch t.in.phase {
	case awaitHeader:
		return !t.in.closed && t.in.w-t.in.r < t.terms.replyMode.requestSize() && t.requests.available()
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
	if in.wouldBlock || !t.needsInput() {
		return false, nil
	}
	if t.secure != nil {
		return t.decrypt()
	}
	var n, want int
	var e syscall.Errno
	if in.phase == awaitPayload {
		rest := in.current.req.Data[in.got:]
		behind := in.buffer[:min(in.receiveLimit, len(in.buffer))]
		buffers := in.iov[:]
		if len(rest) > visitBytes { // else one call receives all that the client sends meanwhile
			rest, behind, buffers = rest[:visitBytes], nil, in.iov[:1]
		} else {
			setIovec(&in.iov[1], behind)
		}
		setIovec(&in.iov[0], rest)
		in.message.use(buffers)
		want = len(rest) + len(behind)
		if n, e = t.sock.scatter(&in.message); n > len(rest) {
			in.r, in.w = 0, n-len(rest)
		}
		in.got += min(n, len(rest))
	} else {
		free := in.room()
		want = len(free)
		n, e = t.sock.receive(free)
		in.w += n
	}
	t.counts[countSyscalls]++
	switch {
	case e == unix.EAGAIN:
		in.wouldBlock = true
		return false, nil
	case e != 0:
		return false, fmt.Errorf("receive: %w", e)
	case n == 0 && t.conn.kernel && !t.sock.hungUp(): // this process leaves the device
		t.finish(t.endOfStream())
		return true, nil
	case n == 0:
		t.abandon(t.endOfStream())
		return true, nil
	}
	if in.wouldBlock = n < want && !t.wakers.closed; !in.wouldBlock && n == want && in.receiveLimit > len(in.buffer) {
		in.widen()
	}
	in.total += uint64(n)
	t.counts[countReceives]++
	return true, nil
}

// room returns where in the buffer the next bytes go.
func (in *inbound) room() []byte {
	in.w = copy(in.buffer, in.buffer[in.r:in.w])
	in.r = 0
	return in.buffer[in.w:min(in.w+in.receiveLimit, len(in.buffer))]
}

// decrypt is fill under TLS. Only EAGAIN says that there is nothing more: the
// socket may be empty while records wait.
func (t *transmission) decrypt() (bool, error) {
	in := &t.in
	var n int
	var err error
	if in.phase == awaitPayload {
		n, err = t.secure.receive(in.current.req.Data[in.got:])
		in.got += n
	} else {
		n, err = t.secure.receive(in.room())
		if in.w += n; in.w == len(in.buffer) && in.receiveLimit > in.w {
			in.widen()
		}
	}
	t.counts[countSyscalls] += t.secure.drainSyscalls()
	switch {
	case err == unix.EAGAIN:
		in.wouldBlock = true
		return false, nil
	case err != nil:
		return false, fmt.Errorf("receive: %w", err)
	case n == 0:
		t.abandon(t.endOfStream())
		return true, nil
	}
	in.total += uint64(n)
	t.counts[countReceives]++
	return true, nil
}

// abandon is finish for a client that left without a DISC: it has died, or
// takes replies and sends no more. The queue drops what it has not begun, which
// gets no reply: an error would be the disk's.
func (t *transmission) abandon(end error) {
	t.finish(end)
	t.in.abandoned = true
	t.queue.Abort()
}

// finish makes sure that nothing more is read; what is in flight gets its
// reply.
func (t *transmission) finish(end error) {
	if t.in.phase != awaitHeader && t.in.phase != ended {
		t.releaseEntry(t.in.current)
	}
	t.in.phase = ended
	t.in.end = end
}

// parse makes requests of what was received and submits them, until something
// is missing or the batch is large enough.
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
		return t.countWait(t.reserve()), nil
	case awaitPayload:
		return t.receivePayload(), nil
	case awaitQueue:
		return t.countWait(t.submit(t.in.current)), nil
	case discarding:
		return t.discard(), nil
	}
	return false, nil
}

// countWait counts a request that cannot go on now, once.
func (t *transmission) countWait(progress bool) bool {
	if s := t.in.current; !progress && !s.waited {
		s.waited = true
		t.counts[countWaits]++
	}
	return progress
}

// begin takes the next header from the buffer and decides what becomes of the
// request.
func (t *transmission) begin() (bool, error) {
	in := &t.in
	size := t.terms.replyMode.requestSize()
	if in.w-in.r < size || in.closed || t.draining && in.left == 0 {
		return false, nil
	}
	s := t.requests.acquire()
	if s == nil {
		return false, nil
	}
	if t.draining {
		in.left--
	}
	h := &s.header
	if !h.decode(in.buffer[in.r:in.w], t.terms.replyMode) {
		return false, fmt.Errorf("%w: bad request magic", errProtocol)
	}
	in.r += size
	s.began, s.given, s.waited = t.timing.Now(), latency.NotGiven, false
	in.current = s
	in.receiveLimit = bufferSize
	t.counts[commandCounter(h.command)]++
	if h.command == cmdDisconnect {
		t.releaseEntry(s)
		t.finish(nil)
		return true, nil
	}
	if h.payload > 2*uint64(t.info.MaximumPayload) {
		return false, fmt.Errorf("%w: %s with %d bytes", errProtocol, h.name(), h.payload)
	}
	if h.filtered(t.terms) {
		s.req.Data = s.filter[:]
		in.phase, in.got = awaitPayload, 0
		return true, nil
	}
	t.dispatch(s)
	return true, nil
}

// dispatch sends a request on its way, or refuses it.
func (t *transmission) dispatch(s *entry) {
	h := &s.header
	op, flags, errno := h.validate(&t.info, t.terms)
	if errno != 0 && t.resized() {
		op, flags, errno = h.validate(&t.info, t.terms)
	}
	if errno != 0 {
		t.refuse(s, errno)
		return
	}
	s.req.Op, s.req.Flags = op, flags
	s.req.Offset, s.req.Length = int64(h.offset), int64(h.length)
	switch op {
	case block.Read, block.Write, block.Status:
		t.in.phase = awaitMemory
	default:
		t.submit(s)
	}
}

// resized takes over the present size of the disk, if the client goes by that,
// and returns whether it is another one.
func (t *transmission) resized() bool {
	if t.sizeSource == nil {
		return false
	}
	size := t.sizeSource.clientInfo(t.limits).Size
	if size == t.info.Size {
		return false
	}
	t.info.Size = size
	return true
}

// refuse answers a request that is not executed, when its payload is out of the
// way.
func (t *transmission) refuse(s *entry, errno syscall.Errno) {
	s.req.Err = errno
	if t.terms.replyMode != simple {
		s.why = s.header.explain(&t.info, t.terms, errno)
	}
	if s.header.payload > 0 {
		t.in.phase = discarding
		t.in.got = 0
		return
	}
	t.in.phase = awaitHeader
	t.reply(s, errno)
}

// reserve gets memory for the current READ, WRITE or BLOCK_STATUS.
func (t *transmission) reserve() bool {
	s := t.in.current
	length := s.req.Length
	if s.req.Op == block.Status {
		return t.statuses.acquire(s) && t.submit(s)
	}
	if t.payloadInFlight > 0 && t.payloadInFlight+length > t.limits.InFlight {
		return false
	}
	if !t.queue.Reserve(&s.req) {
		return false
	}
	s.payload = length
	t.payloadInFlight += length
	t.in.batch += length
	if s.req.Op == block.Read {
		t.submit(s)
		return true
	}
	t.in.phase = awaitPayload
	t.in.got = 0
	if length >= largePayload {
		t.in.receiveLimit = t.terms.replyMode.requestSize()
	}
	return true
}

// receivePayload copies what the buffer has of the current payload, and goes on
// with the request if that was all of it.
func (t *transmission) receivePayload() bool {
	in := &t.in
	data := in.current.req.Data
	n := copy(data[in.got:], in.buffer[in.r:in.w])
	in.r += n
	in.got += n
	if in.got == len(data) && in.current.header.command == cmdBlockStatus {
		t.filter(in.current)
		return true
	}
	if in.got == len(data) {
		t.counts[countBytesWritten] += uint64(len(data))
		t.submit(in.current)
		return true
	}
	return n > 0
}

// filter goes on with a BLOCK_STATUS whose payload is there.
func (t *transmission) filter(s *entry) {
	s.req.Data = nil
	if s.header.applyFilter(s.filter[:]) {
		t.dispatch(s)
		return
	}
	s.why = "BLOCK_STATUS: the context is not selected"
	t.in.phase = awaitHeader
	t.reply(s, syscall.EINVAL)
}

// discard skips what the buffer has of a refused request's payload.
func (t *transmission) discard() bool {
	in := &t.in
	length := int(in.current.header.payload)
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

// submit hands a request to the queue. A queue is as deep as there are entries;
// one that refuses all the same is asked again after the next request has
// finished.
func (t *transmission) submit(s *entry) bool {
	t.startAge()
	if t.reservation != nil && changesDisk(s.req.Op) {
		if err := t.reservation.BeforeWrite(); err != nil {
			t.conn.server.log().Error("write refused", "event", "write_refused", "client", t.conn.remote, "error", err)
			t.in.phase = awaitHeader
			t.reply(s, syscall.EIO)
			return true
		}
	}
	if !t.queue.Submit(&s.req) {
		t.in.phase = awaitQueue
		return false
	}
	s.given, s.inQueue = t.timing.Now(), true
	t.inQueue++
	t.unkicked = true
	t.in.phase = awaitHeader
	return true
}

// changesDisk reports whether an operation changes what is stored.
func changesDisk(op block.Op) bool {
	return op == block.Write || op == block.Trim || op == block.WriteZeroes
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
	case cmdCache:
		return countCaches
	case cmdBlockStatus:
		return countStatuses
	default:
		return countOthers
	}
}
