package nbdclient

import (
	"errors"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/internal/ring"
	"golang.org/x/sys/unix"
)

// sender sends requests in batches: headers out of its own memory, payload out
// of that of the requests, many of both with one system call.
type sender struct {
	extended bool
	slots    []slot
	left     func(i uint16) // the message of a slot has left

	headers []byte   // of the batch
	batch   [][]byte // what is left of it
	places  [nbd.StreamBuffers][]byte
	ends    ring.Ring[messageEnd]
	encoded uint64 // bytes of all batches
	sent    uint64
	blocked bool // the connection takes no more now
}

// messageEnd is where the message of a slot ends, in bytes of all batches.
type messageEnd struct {
	slot uint16
	at   uint64
}

func newSender(extended bool, slots []slot, left func(uint16)) *sender {
	return &sender{
		extended: extended, slots: slots, left: left,
		headers: make([]byte, 0, len(slots)*extendedRequestSize), ends: ring.New[messageEnd](len(slots)),
	}
}

// idle reports whether everything encoded has left.
func (s *sender) idle() bool { return len(s.batch) == 0 }

// send sends what is pending, and reports whether anything has left.
func (s *sender) send(stream *nbd.Stream, pending *ring.Ring[uint16]) (progress bool, err error) {
	s.blocked = false
	if stream.Pending() {
		if err := stream.Flush(); err != nil {
			return false, err
		}
	}
	for {
		if len(s.batch) == 0 && !s.encode(pending) {
			return progress, nil
		}
		n, err := stream.Send(s.batch)
		switch {
		case errors.Is(err, unix.EAGAIN):
			s.blocked = true
			return progress, nil
		case errors.Is(err, unix.EPIPE):
			return progress, errEnded
		case err != nil:
			return progress, err
		}
		progress = true
		s.advance(n)
	}
}

// encode makes the next batch, and reports whether there is anything in it.
func (s *sender) encode(pending *ring.Ring[uint16]) bool {
	s.headers = s.headers[:0]
	s.batch = s.places[:0]
	from := 0 // of the headers that are not in the batch
	for !pending.Empty() && len(s.batch) <= len(s.places)-3 {
		i := pending.Pop()
		p := &s.slots[i]
		p.state = slotSending
		before := len(s.headers)
		s.headers = p.appendRequest(s.headers, s.extended)
		s.encoded += uint64(len(s.headers) - before)
		if p.r.Op == block.Write {
			s.batch = append(s.batch, s.headers[from:], p.data())
			s.encoded += uint64(p.length())
			from = len(s.headers)
		}
		s.ends.Push(messageEnd{i, s.encoded})
	}
	if from < len(s.headers) {
		s.batch = append(s.batch, s.headers[from:])
	}
	return len(s.batch) > 0
}

// advance removes n bytes that have left.
func (s *sender) advance(n int) {
	s.sent += uint64(n)
	for n > 0 {
		if n < len(s.batch[0]) {
			s.batch[0] = s.batch[0][n:]
			break
		}
		n -= len(s.batch[0])
		s.batch[0] = nil
		s.batch = s.batch[1:]
	}
	for !s.ends.Empty() && s.ends.First().at <= s.sent {
		s.left(s.ends.Pop().slot)
	}
}
