package shm

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/internal/ring"
	"github.com/viablk/viablk/via"
)

// sender writes records to the ring of the local segment and carries out RDMA.
// A pass of progress sends the works of the send queue, in order, until the
// ring is full, the quantum is used up or none is left:
//
//  1. loadAcknowledgements completes the works that the peer has read, at
//     reliable reception
//  2. sendMessage copies a Send into the ring: room checks the peer's position,
//     fragment writes a record
//  3. rdma copies between local segments and the peer's arena (rdma.go)
//  4. sent completes the work or, at reliable reception, keeps it in the queue
//     until the peer acknowledges it
//  5. publish makes the records visible; Doorbell or stall calls it
//
// The driver of the queue owns all fields but log, which the control agent sets
// once, and remote.arenas.
type sender struct {
	cq     *cq
	events *events // identify the link in cq
	local  *segment
	peer   *segment

	out        writer
	sq         ring.Ring[*via.Work]
	ends       []uint64               // reliable reception: end of a work's records, by its place in sq
	unacked    uint32                 // works at the head of sq that wait for an acknowledgement
	tag        uint32                 // of the memory that posted works may name
	unreliable bool                   // the level is unreliable delivery
	sending    bool                   // the link is in cq.sending
	stalled    bool                   // the ring has no room, or works wait for acknowledgements
	awaiting   bool                   // the head of sq waits for an arena of the peer
	faulty     *faultyWire            // nil but under test
	log        atomic.Pointer[logRef] // in a ready log for the peer
	data       peerBell
	stats      via.LinkStats

	remote peerMemory
	timer  stallTimer // of the unreliable work at the head of sq
}

// init sets up the sender of a link. timeout is of an unreliable work that
// waits.
func (s *sender) init(w wire, cfg via.LinkConfig, timeout time.Duration, events *events, flags *atomic.Pointer[peerFlags]) {
	s.cq, s.events, s.local, s.peer = cfg.SendCQ.(*cq), events, w.local, w.peer
	s.out, s.sq = newWriter(w.local.ring()), ring.New[*via.Work](cfg.SendDepth)
	s.tag, s.timer.limit = cfg.Tag, timeout
	s.data = peerBell{fd: w.peerData, peer: w.peer, flags: flags}
	s.remote.local, s.remote.peer = w.local, w.peer
	s.unreliable = cfg.Reliability == via.UnreliableDelivery
	if cfg.Reliability == via.ReliableReception {
		s.ends = make([]uint64, s.sq.Cap())
	}
	if cfg.Faults != nil {
		s.faulty = newFaultyWire(cfg.Faults)
		s.out.kept += faultyBytes
	}
}

// errMemoryGone is the cause where local memory was deregistered under work.
var errMemoryGone = errors.New("local memory was deregistered under posted work")

// progress sends for one quantum.
func (s *sender) progress() error {
	budget := sendQuantum
	s.stalled, s.awaiting = false, false
	if s.unacked != 0 {
		if err := s.loadAcknowledgements(); err != nil {
			return err
		}
	}
	for uint32(s.sq.Len()) != s.unacked && s.cq.room() && budget > 0 {
		w := *s.sq.At(int(s.unacked))
		if s.faulty != nil {
			s.faulty.ask(w, s.sq.Popped()+s.unacked)
		}
		var done bool
		var err error
		switch w.Op {
		case via.OpSend:
			done, err = s.sendMessage(w, &budget)
		case via.OpRdmaWrite, via.OpRdmaRead:
			done, err = s.rdma(w, &budget)
		}
		if err != nil {
			return err
		}
		if !done {
			break
		}
	}
	if s.unacked != 0 {
		s.stalled = true // until the peer's position advances
	}
	return nil
}

// pending reports whether a pass would make progress. gone is whether the peer
// has left.
func (s *sender) pending(gone bool) bool {
	switch {
	case s.sq.Empty():
		return false
	case s.unreliable:
		return true // no wake-up marks the timeout
	case s.stalled:
		return loadWord(s.peer.mem, offHead) != s.out.head || s.unacked != 0 && gone
	case s.awaiting:
		return s.remote.arrived()
	default:
		return true
	}
}

// publish publishes the records and wakes the peer if it sleeps. It returns
// false if there are none.
func (s *sender) publish() bool {
	if s.faulty != nil {
		s.release()
	}
	if s.out.tail == s.out.published {
		return false
	}
	s.out.published = s.out.tail
	word := s.out.word()
	if m := s.log.Load(); m != nil {
		publishWord(s.local.mem, offTail, word)
		m.append(word)
	} else {
		storeWord(s.local.mem, offTail, word)
		// The peer may have switched to the ready log before the tail was
		// stored.
		if m := s.log.Load(); m != nil {
			m.append(word)
		}
	}
	s.data.wake(wantData)
	return true
}

// complete completes the work at the head of the send queue.
func (s *sender) complete(w *via.Work, status via.Status) {
	s.sq.Pop()
	w.Status = status
	s.cq.push(s.events, w)
}

// sent is called when the last record of a work is in the ring.
func (s *sender) sent(w *via.Work) {
	if s.ends != nil {
		s.awaitAcknowledgement()
		return
	}
	s.complete(w, 0)
}

// sendMessage copies a Send into the ring, in fragments if it is long. It
// returns false if it has to wait or the quantum is used up.
func (s *sender) sendMessage(w *via.Work, budget *int) (bool, error) {
	if s.unreliable && w.Moved == 0 {
		if fits, err := s.fits(w.Length); err != nil {
			return false, err
		} else if !fits {
			s.dropMessage(w)
			return true, nil
		}
	}
	for {
		room, err := s.room(recordHeader + min(int(w.Length-w.Moved), maxFragment))
		if err != nil {
			return false, err
		}
		n := min(int(w.Length-w.Moved), maxFragment, room-recordHeader)
		if room < recordHeader || n < int(w.Length-w.Moved) && n < maxFragment/4 {
			if s.unreliable && !s.withinTimeout() {
				s.abandonMessage(w)
				return true, nil
			}
			s.stall()
			return false, nil
		}
		if !segmentsLive(w, s.tag) {
			return s.failSend(w)
		}
		if err := s.fragment(w, uint32(n)); err != nil {
			return false, err
		}
		if w.Moved == w.Length {
			s.stats.Sends++
			s.sent(w)
			return true, nil
		}
		if *budget -= int(n); *budget <= 0 {
			return false, nil
		}
	}
}

// room returns the free bytes of the ring. It loads the peer's position only if
// fewer than want bytes are known to be free.
func (s *sender) room(want int) (int, error) {
	if s.out.far() && loadWord(s.peer.mem, offHead) == s.out.tail && s.out.setHead(s.out.tail) == nil {
		s.out.rewind()
	}
	if free := s.out.free(); free >= want {
		return free, nil
	}
	err := s.out.setHead(loadWord(s.peer.mem, offHead))
	return s.out.free() &^ (recordAlign - 1), err
}

// stall marks the ring full and publishes its records.
func (s *sender) stall() {
	s.stalled = true
	s.stats.Stalls++
	s.publish()
}

// fragment writes one record of n bytes of a message.
func (s *sender) fragment(w *via.Work, n uint32) error {
	r := record{length: n, tag: tag{kind: recordMessage}, total: w.Length}
	if w.Moved == 0 {
		r.flags |= flagFirst
	}
	if w.Moved+n == w.Length {
		r.flags |= flagLast
		if w.HasImmediate {
			r.flags |= flagImmediate
			r.immediate = w.Immediate
		}
	}
	start := s.out.tail
	s.out.begin(r)
	if len(w.Segments) == 1 {
		s.out.put(w.Segments[0].Bytes[w.Moved : w.Moved+n])
	} else {
		s.gather(w, int(n))
	}
	s.out.end()
	w.Moved += n
	s.stats.BytesCopied += uint64(n)
	if s.faulty != nil {
		return s.disturb(start, r)
	}
	return nil
}

// gather puts n bytes of the message into the ring, from byte w.Moved on.
func (s *sender) gather(w *via.Work, n int) {
	skip, left := int(w.Moved), n
	for i := range w.Segments {
		b := w.Segments[i].Bytes
		if skip >= len(b) {
			skip -= len(b)
			continue
		}
		b = b[skip:min(len(b), skip+left)]
		skip = 0
		s.out.put(b)
		if left -= len(b); left == 0 {
			break
		}
	}
}

// segmentsLive reports whether the memory of a work is still registered under
// the VI's tag: the work may have waited since PostSend checked it.
func segmentsLive(w *via.Work, tag uint32) bool {
	for i := range w.Segments {
		if m := w.Segments[i].Memory; !m.Live() || m.Tag() != tag {
			return false
		}
	}
	return true
}

// failSend completes a Send whose local memory is gone, and aborts the message
// if the peer has a part of it. It returns false if the work has to wait for
// acknowledgements, so that works complete in order.
func (s *sender) failSend(w *via.Work) (bool, error) {
	if s.unacked != 0 {
		return false, nil
	}
	if w.Moved != 0 {
		s.abortMessage()
	}
	s.complete(w, via.StatusProtectionError)
	if s.unreliable {
		return true, nil
	}
	s.publish()
	return true, errMemoryGone
}
