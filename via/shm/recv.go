package shm

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/viablk/viablk/internal/ring"
	"github.com/viablk/viablk/via"
)

// receiver reads records from the peer's ring. A pass of progress receives up
// to recvQuantum of them:
//
//  1. loadTail loads how far the peer has published
//  2. next copies a record's header out of the ring and checks it
//  3. receive copies the payload into the posted receive, still the provider's
//  4. complete pushes the work to cq; Poll returns it to the consumer
//  5. publishHead publishes the read position
//
// The driver of the queue owns all fields.
type receiver struct {
	cq         *cq
	in         reader
	rq         ring.Ring[*via.Work]
	current    *via.Work // receive that a message is arriving in
	total      uint32    // bytes of that message
	tag        uint32    // of the memory that posted works may name
	step       uint32    // bytes to read before the position is published
	predicted  uint32    // entry of the link that the ready log named after this one
	unreliable bool      // the level is unreliable delivery
	reception  bool      // the level is reliable reception
	skipping   bool      // the rest of the arriving message is discarded
	ended      bool      // the peer is gone; its ring up to in.tail counts
	answered   bool      // a record has arrived since the last doorbell
	arriving   bool      // the link is in cq.arriving
	name       uint64    // in ready logs of the peer; 0 if it has none
	peerLog    *peerLog  // announces arrivals; nil if cq watches the link
	received   uint64    // messages
	copied     uint64    // bytes, from the ring

	// Small messages do not touch the rest.
	local       *segment
	peer        *segment
	space       peerBell
	maxTransfer uint32 // bytes of an RDMA Write
	rdmaWrite   bool   // the VI allows the peer RDMA Writes
	dropped     uint64 // messages
	events      events
}

// makeReceiver makes the receiver of a link.
func makeReceiver(w wire, cfg via.LinkConfig, flags *atomic.Pointer[peerFlags]) receiver {
	r := receiver{
		cq: cfg.RecvCQ.(*cq), in: reader{ring: w.peer.ring()}, rq: ring.New[*via.Work](cfg.RecvDepth),
		tag: cfg.Tag, step: headStep, unreliable: cfg.Reliability == via.UnreliableDelivery, reception: cfg.Reliability == via.ReliableReception,
		local: w.local, peer: w.peer, space: peerBell{fd: w.peerSpace, peer: w.peer, flags: flags},
		maxTransfer: cfg.MaxTransferSize, rdmaWrite: cfg.RdmaWrite, events: events{owner: cfg.Owner},
	}
	if r.reception {
		r.step = 1
	}
	return r
}

// errPeerGone is the cause of a connection lost because the peer closed it or
// died.
var errPeerGone = errors.New("the peer closed the connection")

// progress receives for one quantum. gone is whether the peer has left: records
// that it published before count.
func (r *receiver) progress(gone bool) error {
	if !r.ended {
		r.ended = gone
		if r.in.head == r.in.tail || gone {
			if err := r.loadTail(); err != nil {
				return err
			}
		}
	}
	for left := recvQuantum; left > 0 && r.in.head != r.in.tail && r.cq.room(); left-- {
		rec, ok, err := r.in.next()
		if err == nil && ok {
			err = r.receive(rec)
		}
		if err != nil {
			return err // the failed record is not acknowledged
		}
		r.in.skip(rec)
	}
	r.publishHead()
	if r.ended && r.in.head == r.in.tail {
		return errPeerGone
	}
	return nil
}

// pending reports whether records wait.
func (r *receiver) pending() bool {
	return loadWord(r.peer.mem, offTail) != r.in.word || r.in.head != r.in.tail
}

// loadTail loads the position up to which the peer has published records.
func (r *receiver) loadTail() error {
	if word := loadWord(r.peer.mem, offTail); word != r.in.word {
		return r.in.setWord(word)
	}
	return nil
}

// headStep is the number of bytes that this end reads before it publishes its
// position. Publishing costs both ends a cache miss, and the peer needs less
// room than the rest of the ring. At reliable reception the position is an
// acknowledgement, and each byte counts.
const headStep = 1 << 10

// publishHead publishes the read position of this end and wakes the peer if it
// waits for room.
func (r *receiver) publishHead() {
	if r.in.head-r.in.pub >= uint64(r.step) {
		r.storeHead()
	}
}

func (r *receiver) storeHead() {
	r.in.pub = r.in.head
	storeWord(r.local.mem, offHead, r.in.head)
	r.space.wake(wantSpace)
}

// receive handles one record. Its header is checked, its payload is still in
// the ring.
func (r *receiver) receive(rec record) error {
	if rec.seq != r.in.seq {
		if passed, err := r.outOfSequence(rec); passed || err != nil {
			return err
		}
	}
	r.in.seq = rec.seq + 1
	r.answered = true
	if rec.flags&flagSum != 0 && !r.in.intact(rec) {
		return r.receiveDamaged(rec)
	}
	switch rec.kind {
	case recordMessage:
		return r.receiveFragment(rec)
	case recordWritten:
		return r.receiveWritten(rec)
	case recordFailed:
		return r.receiveNotice(rec)
	case recordAborted, recordLost:
		return r.receiveEnd(rec)
	default:
		return fmt.Errorf("record of unknown kind %d", rec.kind)
	}
}

// receiveFragment copies a piece of a message into the receive at the head of
// the queue.
func (r *receiver) receiveFragment(rec record) error {
	if first := rec.flags&flagFirst != 0; first == (r.current != nil || r.skipping) {
		return errors.New("message fragments out of order")
	}
	if rec.flags&(flagImmediate|flagLast) == flagImmediate {
		return errors.New("immediate data before the end of a message")
	}
	if r.skipping {
		r.skipRest(rec)
		return nil
	}
	if r.current == nil {
		w, err := r.dequeue(rec)
		if w == nil {
			return err
		}
		r.current, r.total = w, rec.total
		if rec.total > w.Length {
			return r.failReceive(rec, via.StatusLengthError, via.StatusRemoteDescError)
		}
	}
	w := r.current
	if rec.total != r.total || rec.length > r.total-w.Moved {
		return errors.New("message longer than its first fragment said")
	}
	// Check for each fragment: memory may be unmapped once it is deregistered.
	if !segmentsLive(w, r.tag) {
		return r.failReceive(rec, via.StatusProtectionError, via.StatusRemoteDescError)
	}
	r.scatter(w, int(rec.length))
	if rec.flags&flagLast == 0 {
		return nil
	}
	if w.Moved != r.total {
		return errors.New("message shorter than its first fragment said")
	}
	r.current = nil
	r.received++
	r.complete(w, 0, rec)
	return nil
}

// scatter copies n payload bytes into the receive, from byte w.Moved on.
func (r *receiver) scatter(w *via.Work, n int) {
	skip, off := int(w.Moved), 0
	if len(w.Segments) == 1 {
		r.in.payload(0, w.Segments[0].Bytes[skip:skip+n])
		off = n
	}
	for i := 0; off < n; i++ {
		b := w.Segments[i].Bytes
		if skip >= len(b) {
			skip -= len(b)
			continue
		}
		b = b[skip:min(len(b), skip+n-off)]
		skip = 0
		r.in.payload(off, b)
		off += len(b)
	}
	w.Moved += uint32(n)
	r.copied += uint64(n)
}

// receiveWritten consumes a receive for an RDMA Write with immediate data.
func (r *receiver) receiveWritten(rec record) error {
	if r.current != nil || r.skipping || rec.length != 0 || rec.flags&^flagSum != flagImmediate || rec.total > r.maxTransfer {
		return errors.New("malformed notice of an rdma write")
	}
	if rec.total > 0 && !r.rdmaWrite {
		return errors.New("notice of an rdma write that the vi does not allow")
	}
	w, err := r.dequeue(rec)
	if w == nil {
		return err
	}
	w.Moved = rec.total
	r.received++
	r.complete(w, via.StatusOpRemoteWrite, rec)
	return nil
}

// dequeue returns the next posted receive. Without one it returns nil, and the
// message is lost: VIA has no retry.
func (r *receiver) dequeue(rec record) (*via.Work, error) {
	if !r.rq.Empty() {
		return r.rq.Pop(), nil
	}
	if r.unreliable {
		r.dropped++
		r.skipRest(rec)
		r.raise(via.AsyncRecvQueueEmpty, errNoReceive)
		return nil, nil
	}
	return nil, r.refuse(via.StatusRemoteDescError, via.AsyncRecvQueueEmpty, errNoReceive)
}

func (r *receiver) complete(w *via.Work, status via.Status, rec record) {
	if rec.flags&flagImmediate != 0 {
		status |= via.StatusImmediate
	}
	w.Status, w.Immediate = status, rec.immediate
	r.cq.push(&r.events, w)
}

// failReceive completes the current receive in error. At unreliable delivery it
// skips the rest of the message. At the other levels it returns the failure of
// the connection; at reliable reception the peer's work gets the status remote.
func (r *receiver) failReceive(rec record, status, remote via.Status) error {
	w := r.current
	r.current = nil
	w.Status = status
	r.cq.push(&r.events, w)
	if r.unreliable {
		r.skipRest(rec)
		return nil
	}
	return r.refuse(remote, via.AsyncConnectionLost, fmt.Errorf("an arriving message failed: %v", status|via.StatusDone))
}
