package nbd

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/block"
)

// outbound is the sending half of a transmission: the replies that the socket has
// not taken yet, as one list of buffers.
type outbound struct {
	iov        []unix.Iovec // iov[head:tail] is to be sent
	last       []*slot      // the slot that is free after the buffer is sent, or nil
	head, tail int
	bytes      int    // in iov[head:tail]
	full       bool   // the socket had no room when last asked
	total      uint64 // bytes sent
	message    message
}

// A reply has a header, and data or an error text behind it.
const (
	buffersPerReply = 2
	buffersPerSend  = 1024 // UIO_MAXIOV
)

func (o *outbound) init(slots int) {
	o.iov = make([]unix.Iovec, buffersPerReply*slots)
	o.last = make([]*slot, buffersPerReply*slots)
}

func (o *outbound) empty() bool { return o.head == o.tail }

// pending returns the slots of replies that are not sent.
func (o *outbound) pending() []*slot { return o.last[o.head:o.tail] }

// push appends a buffer; last is the slot if it is its reply's last.
func (o *outbound) push(p []byte, last *slot) {
	setIovec(&o.iov[o.tail], p)
	o.last[o.tail] = last
	o.tail++
	o.bytes += len(p)
}

// pack moves the list to the start of its array, where there is room for the
// replies of every slot.
func (o *outbound) pack() {
	if o.empty() {
		o.head, o.tail = 0, 0
		return
	}
	n := copy(o.iov, o.iov[o.head:o.tail])
	copy(o.last, o.last[o.head:o.tail])
	clear(o.last[n:o.tail])
	o.head, o.tail = 0, n
}

// reap takes finished requests from the queue and builds their replies.
func (t *transmission) reap() bool {
	progress := false
	for t.underWay > 0 {
		n := t.queue.Reap(t.finished[:])
		for _, r := range t.finished[:n] {
			t.underWay--
			s := &t.slots[r.User]
			errno := syscall.Errno(0)
			if r.Err != nil {
				errno = replyErrno(r)
				if t.structured {
					s.why = fmt.Sprintf("%s: %v", s.header.name(), r.Err)
				}
			} else if r.Op == block.Read && len(r.Data) != int(r.Length) {
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
// With structured replies agreed, a READ is always answered by a chunk, and so is
// every error, because a chunk carries a text; other commands succeed with a
// simple reply, as the protocol allows ("Simple reply message").
func (t *transmission) reply(s *slot, errno syscall.Errno) {
	read := s.header.command == cmdRead
	if errno != 0 {
		t.counts[countErrors]++
	}
	b := s.reply[:]
	switch {
	case !t.structured || errno == 0 && !read:
		binary.BigEndian.PutUint32(b, magicSimpleReply)
		binary.BigEndian.PutUint32(b[4:], uint32(errno))
		binary.BigEndian.PutUint64(b[8:], s.header.cookie)
		if read && errno == 0 {
			t.replyWith(s, b[:simpleReplySize], s.req.Data)
			return
		}
		t.out.push(b[:simpleReplySize], s)
	case errno == 0:
		putChunk(b, chunkOffsetData, s.header.cookie, 8+len(s.req.Data))
		binary.BigEndian.PutUint64(b[chunkHeaderSize:], s.header.offset)
		t.replyWith(s, b[:chunkHeaderSize+8], s.req.Data)
	default:
		text := clip(s.why)
		putChunk(b, chunkError, s.header.cookie, 6+len(text))
		binary.BigEndian.PutUint32(b[chunkHeaderSize:], uint32(errno))
		binary.BigEndian.PutUint16(b[chunkHeaderSize+4:], uint16(len(text)))
		if text == "" {
			t.out.push(b[:chunkHeaderSize+6], s)
			return
		}
		t.out.push(b[:chunkHeaderSize+6], nil)
		t.out.push([]byte(text), s)
	}
}

// replyWith queues a reply with the data of a READ behind its header.
func (t *transmission) replyWith(s *slot, header, data []byte) {
	t.counts[countBytesRead] += uint64(len(data))
	t.out.push(header, nil)
	t.out.push(data, s)
}

// putChunk writes the header of the only chunk of a structured reply, with length
// bytes behind it.
func putChunk(b []byte, kind uint16, cookie uint64, length int) {
	binary.BigEndian.PutUint32(b, magicStructured)
	binary.BigEndian.PutUint16(b[4:], chunkFlagDone)
	binary.BigEndian.PutUint16(b[6:], kind)
	binary.BigEndian.PutUint64(b[8:], cookie)
	binary.BigEndian.PutUint32(b[16:], uint32(length))
}

// send gives the socket all replies there are, in one call if it takes them.
func (t *transmission) send() (bool, error) {
	o := &t.out
	if o.empty() || o.full {
		return false, nil
	}
	progress := false
	for !o.empty() {
		o.message.use(o.iov[o.head:min(o.tail, o.head+buffersPerSend)])
		n, e := t.sock.gather(&o.message)
		if e == unix.EAGAIN {
			o.full = true
			break
		}
		if e != 0 {
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

// sent drops the first n bytes from the list and frees the slots of replies that
// the socket has taken completely.
func (t *transmission) sent(n int) {
	o := &t.out
	o.bytes -= n
	for n > 0 {
		v := &o.iov[o.head]
		if uint64(n) < v.Len {
			advance(v, n)
			return
		}
		n -= int(v.Len)
		if s := o.last[o.head]; s != nil {
			t.giveBack(s)
			o.last[o.head] = nil
		}
		o.head++
	}
}
