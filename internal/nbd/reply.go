package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/block"
)

// outbound is the sending half of a transmission: the replies that the socket
// has not taken yet, as one list of buffers.
type outbound struct {
	iov        []unix.Iovec // iov[head:] is to be sent
	frees      []*entry     // the entry that is free after the buffer is sent, or nil
	head       int
	wouldBlock bool          // the socket had no room when last asked
	total      uint64        // bytes sent
	part       [1]unix.Iovec // of a buffer longer than a share
	message    message
}

// buffersPerSend is UIO_MAXIOV.
const buffersPerSend = 1024

func (o *outbound) empty() bool { return o.head == len(o.iov) }

// pending returns the entries of replies that are not sent.
func (o *outbound) pending() []*entry { return o.frees[o.head:] }

// next returns the buffers to send in one call, the share of a visit at most: a
// socket takes any number of bytes from a client that receives meanwhile.
func (o *outbound) next() []unix.Iovec {
	iov := o.iov[o.head:min(len(o.iov), o.head+buffersPerSend)]
	left := uint64(visitBytes)
	for i := range iov {
		switch {
		case iov[i].Len <= left:
			left -= iov[i].Len
		case i > 0:
			return iov[:i]
		default:
			o.part[0] = iov[0]
			o.part[0].SetLen(visitBytes)
			return o.part[:]
		}
	}
	return iov
}

// push appends a buffer; last is the entry if it is its reply's last. The list
// grows to the longest there ever was.
func (o *outbound) push(p []byte, last *entry) {
	o.iov = append(o.iov, unix.Iovec{})
	setIovec(&o.iov[len(o.iov)-1], p)
	o.frees = append(o.frees, last)
}

// pack moves the list to the start of its array.
func (o *outbound) pack() {
	n := copy(o.iov, o.iov[o.head:])
	copy(o.frees, o.frees[o.head:])
	clear(o.frees[n:])
	o.iov, o.frees, o.head = o.iov[:n], o.frees[:n], 0
}

// reset forgets the list, which is empty.
func (o *outbound) reset() { o.iov, o.frees, o.head = nil, nil, 0 }

// reap takes finished requests from the queue and builds their replies.
func (t *transmission) reap() bool {
	progress := false
	for t.inQueue > 0 {
		n := t.queue.Reap(t.finished[:])
		for _, r := range t.finished[:n] {
			t.inQueue--
			s := t.requests.entryOf(r)
			s.inQueue = false
			t.age.answered(s.given)
			if t.in.abandoned && errors.Is(r.Err, syscall.ECANCELED) {
				t.releaseEntry(s)
				continue
			}
			errno := syscall.Errno(0)
			if r.Err != nil {
				errno = replyErrno(r)
				if t.terms.replyMode != simple {
					s.why = fmt.Sprintf("%s: %v", s.header.name(), r.Err)
				}
			} else if r.Op == block.Read && len(r.Data) != int(r.Length) || r.Op == block.Status && len(r.Extents) == 0 {
				errno = syscall.EIO // a broken device must not shift the stream
			}
			t.reply(s, errno)
		}
		progress = progress || n > 0
		if n < len(t.finished) {
			break
		}
	}
	return progress
}

// reply builds the reply to the request in s.
//
// With structured replies agreed, a READ is always answered by chunks, and so
// is every error, because a chunk carries a text; other commands succeed with a
// simple reply, as the protocol allows ("Simple reply message"). Extended
// replies are chunks in any case.
func (t *transmission) reply(s *entry, errno syscall.Errno) {
	if errno != 0 {
		t.counts[countErrors]++
	}
	t.timing.answered(s)
	switch {
	case t.terms.replyMode == simple:
		t.replySimple(s, errno)
	case errno != 0:
		t.replyError(s, errno)
	case s.header.command == cmdRead:
		t.replyData(s)
	case s.header.command == cmdBlockStatus:
		t.replyStatus(s)
	case t.terms.replyMode == extended:
		n := t.terms.replyMode.putChunk(s.reply[:], chunkFlagDone, chunkNone, &s.header, 0)
		t.out.push(s.reply[:n], s)
	default:
		t.replySimple(s, 0)
	}
}

// replySimple queues a simple reply, with the data of a READ behind it.
func (t *transmission) replySimple(s *entry, errno syscall.Errno) {
	b := s.reply[:simpleReplySize]
	binary.BigEndian.PutUint32(b, magicSimpleReply)
	binary.BigEndian.PutUint32(b[4:], uint32(errno))
	binary.BigEndian.PutUint64(b[8:], s.header.cookie)
	if s.header.command == cmdRead && errno == 0 {
		t.counts[countBytesRead] += uint64(len(s.req.Data))
		t.out.push(b, nil)
		t.out.push(s.req.Data, s)
		return
	}
	t.out.push(b, s)
}

// replyError queues an error chunk.
func (t *transmission) replyError(s *entry, errno syscall.Errno) {
	text := clip(s.why)
	b := s.reply[:]
	n := t.terms.replyMode.putChunk(b, chunkFlagDone, chunkError, &s.header, 6+len(text))
	binary.BigEndian.PutUint32(b[n:], uint32(errno))
	binary.BigEndian.PutUint16(b[n+4:], uint16(len(text)))
	if text == "" {
		t.out.push(b[:n+6], s)
		return
	}
	t.out.push(b[:n+6], nil)
	t.out.push([]byte(text), s)
}

// send gives the socket all replies there are, in one call if it takes them, up
// to the share of a visit or a bit more.
func (t *transmission) send() (bool, error) {
	o := &t.out
	if !t.sending() || o.wouldBlock {
		return false, nil
	}
	progress := false
	for most := o.total + visitBytes; t.sending() && o.total < most; {
		n, e := t.gather(o.next())
		if e == unix.EAGAIN {
			o.wouldBlock = true
			break
		}
		if e != nil {
			return false, fmt.Errorf("send: %w", e)
		}
		t.counts[countSends]++
		o.total += uint64(n)
		t.sent(n)
		progress = true
	}
	o.pack()
	return progress, nil
}

// gather sends buffers in order, and returns how many bytes it took.
func (t *transmission) gather(iov []unix.Iovec) (int, error) {
	if t.secure != nil {
		n, err := t.secure.gather(iov)
		t.counts[countSyscalls] += t.secure.drainSyscalls()
		return n, err
	}
	t.out.message.use(iov)
	n, e := t.sock.gather(&t.out.message)
	t.counts[countSyscalls]++
	if e != 0 {
		return 0, e
	}
	return n, nil
}

// sent drops the first n bytes from the list and frees the entries of replies
// that the socket has taken completely.
func (t *transmission) sent(n int) {
	o := &t.out
	for n > 0 {
		v := &o.iov[o.head]
		if uint64(n) < v.Len {
			advance(v, n)
			return
		}
		n -= int(v.Len)
		if s := o.frees[o.head]; s != nil {
			t.releaseEntry(s)
			o.frees[o.head] = nil
		}
		o.head++
	}
}
