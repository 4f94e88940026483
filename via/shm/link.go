package shm

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/via"
)

// link is one end of a connection. The data path belongs to one goroutine; the
// agent goroutine reads the control socket and touches only the fields marked so.
//
// A Send travels: PostSend queues it ─▶ progressSend copies it into the ring and
// completes it ─▶ Doorbell publishes ─▶ the peer's progressRecv copies it into a
// receive and completes that. RDMA: progressSend copies between own memory and
// the peer's arena.
type link struct {
	adapter *adapter
	cfg     via.LinkConfig
	sendCQ  *cq
	recvCQ  *cq
	own     *segment
	peer    *segment
	bells   bells // what the peer rings

	out writer
	in  reader

	sq, rq    workRing
	current   *via.Work  // receive that a message is arriving in
	total     uint32     // bytes of that message, as its first fragment said
	stalled   bool       // the ring has no room
	awaiting  bool       // the head of the send queue waits for an arena of the peer
	awaited   *peerArena // the newest arena when it began to
	wants     uint64     // what this end waits for, as in its segment
	epoch     uint64     // sleeps of this end
	rungData  uint64     // sleep of the peer that was answered, for data
	rungSpace uint64     // and for space
	dataFD    int        // the peer's bells
	spaceFD   int
	broken    bool
	reported  bool
	event     via.AsyncCode
	cause     error
	cache     [4]mapping // recent translations of the peer's regions
	stats     via.LinkStats
	ended     bool // the peer is gone; its ring up to in.tail counts

	// Guarded by adapter.mu.
	exposed map[*via.Memory]struct{} // own regions in the table
	passed  map[*arena]struct{}      // own arenas that the peer has, or gets when the link is live
	started bool                     // the peer takes arenas
	closing bool                     // nothing is exposed any more

	conn   *net.UnixConn
	gone   atomic.Bool           // the peer closed the connection or died
	cut    atomic.Pointer[error] // the peer broke a rule outside the data path
	arenas peerArenas            // of the peer
	done   chan struct{}         // closed when the agent goroutine ended
}

// workRing is a FIFO of posted work.
type workRing struct {
	ring       []*via.Work
	head, tail uint32
}

func newWorkRing(depth int) workRing {
	size := 1
	for size < depth {
		size <<= 1
	}
	return workRing{ring: make([]*via.Work, size)}
}

func (r *workRing) empty() bool { return r.head == r.tail }
func (r *workRing) full() bool  { return r.tail-r.head == uint32(len(r.ring)) }
func (r *workRing) push(w *via.Work) {
	r.ring[r.tail&uint32(len(r.ring)-1)] = w
	r.tail++
}
func (r *workRing) first() *via.Work { return r.ring[r.head&uint32(len(r.ring)-1)] }
func (r *workRing) pop() *via.Work {
	i := r.head & uint32(len(r.ring)-1)
	w := r.ring[i]
	r.ring[i] = nil
	r.head++
	return w
}

// PostSend queues work and moves what it can.
func (l *link) PostSend(w *via.Work) bool {
	if l.sq.full() {
		return false
	}
	l.sq.push(w)
	if l.sq.tail-l.sq.head == 1 {
		l.progressSend()
	}
	if !l.sq.empty() {
		l.sendCQ.signal() // what it waits for now, it did not wait for when it was armed
	}
	return true
}

// PostRecv queues a receive.
func (l *link) PostRecv(w *via.Work) { l.rq.push(w) }

// Doorbell publishes what was written and wakes the peer if it sleeps.
func (l *link) Doorbell() {
	if l.out.tail == l.out.published || l.broken {
		return
	}
	l.out.published = l.out.tail
	storeWord(l.own.mem, offTail, l.out.tail)
	wants := loadWord(l.peer.mem, offWants)
	if wants&wantData != 0 && wants>>wantShift != l.rungData {
		l.rungData = wants >> wantShift
		l.stats.Doorbells++
		ringBell(l.dataFD)
	}
}

// Stats returns the counters.
func (l *link) Stats() via.LinkStats { return l.stats }

// progress gives the link its turn: sends for its send queue's CQ, arrivals for
// its receive queue's.
func (l *link) progress(c *cq) {
	if l.broken {
		return
	}
	if l.sendCQ == c {
		if l.arenas.stale.Load() {
			l.arenas.sweep()
			l.cache = [len(l.cache)]mapping{}
		}
		if !l.sq.empty() {
			l.progressSend()
			l.Doorbell()
		}
	}
	if l.recvCQ == c {
		l.progressRecv()
	}
}

// hasWork reports, for a sleep, whether progress could do something now.
func (l *link) hasWork(c *cq) bool {
	if l.recvCQ == c {
		if l.broken {
			return l.reportable(c)
		}
		if l.gone.Load() || l.cut.Load() != nil || loadWord(l.peer.mem, offTail) != l.in.head {
			return true
		}
	}
	switch {
	case l.broken || l.sendCQ != c || l.sq.empty():
		return false
	case l.stalled:
		return loadWord(l.peer.mem, offHead) != l.out.head
	case l.awaiting:
		return l.arenas.head.Load() != l.awaited
	default:
		return true
	}
}

// reportable reports whether the link's end is to be reported by a queue: once,
// by the receive queue's, after what the send queue's still holds.
func (l *link) reportable(c *cq) bool {
	return l.broken && !l.reported && l.recvCQ == c && (l.sendCQ == c || l.sendCQ.empty())
}

// setWants tells the peer that the owner of a queue sleeps, under a new epoch, so
// that one sleep is answered by one system call. The owner of the link's other
// queue may sleep already.
func (l *link) setWants(c *cq) {
	if l.broken {
		return
	}
	if l.recvCQ == c {
		l.wants |= wantData
	}
	if l.sendCQ == c && l.stalled {
		l.wants |= wantSpace
	}
	l.epoch++
	storeWord(l.own.mem, offWants, l.epoch<<wantShift|l.wants)
}

// clearWants withdraws what setWants asked for on behalf of a queue.
func (l *link) clearWants(c *cq) {
	if l.broken {
		return
	}
	if l.recvCQ == c {
		l.wants &^= wantData
	}
	if l.sendCQ == c {
		l.wants &^= wantSpace
	}
	storeWord(l.own.mem, offWants, l.epoch<<wantShift|l.wants)
}

// fail breaks the connection from this end.
func (l *link) fail(code via.AsyncCode, cause error) {
	if l.broken {
		return
	}
	l.broken, l.event, l.cause = true, code, cause
	if l.reportable(l.recvCQ) {
		l.recvCQ.signal()
	}
	_ = l.conn.CloseWrite() // the peer learns at once; Close does the rest
}

// refuse tells the peer why the connection ends, then breaks it.
func (l *link) refuse(notice record, own via.AsyncCode, cause error) {
	if l.room(recordHeader) >= recordHeader && !l.broken {
		l.out.begin(notice)
		l.out.end()
		l.Doorbell()
	}
	l.fail(own, cause)
}

// refusal is the record that ends a connection.
func refusal(code via.AsyncCode) record {
	return record{kind: recordRefused, immediate: uint32(code)}
}

// Close ends the connection: the peer's access to memory of this end is withdrawn
// and over before anything else, for the owner reuses the memory afterwards.
func (l *link) Close() error {
	left := l.adapter.revoke(l)
	var err error
	if left {
		err = l.conn.Close()
	} else { // the ghost keeps the connection, to see the peer's end
		err = errStillAccessed
		_ = l.conn.CloseWrite()
		_ = l.conn.SetReadDeadline(time.Unix(1, 0))
	}
	<-l.done
	l.unbind()
	l.broken, l.reported = true, true
	l.arenas.close()
	if left {
		l.peer.close()
	}
	closePair(l.dataFD, l.spaceFD)
	l.bells.close()
	l.own.close()
	return err
}

// bind gives the link's queues its bells to watch.
func (l *link) bind() error {
	if err := l.recvCQ.watch(l.bells.data); err != nil {
		return err
	}
	if l.bells.space != l.bells.data {
		if err := l.sendCQ.watch(l.bells.space); err != nil {
			l.recvCQ.unwatch(l.bells.data)
			return err
		}
	}
	l.sendCQ.bind(l)
	l.recvCQ.bind(l)
	return nil
}

func (l *link) unbind() {
	l.recvCQ.unwatch(l.bells.data)
	if l.bells.space != l.bells.data {
		l.sendCQ.unwatch(l.bells.space)
	}
	l.sendCQ.unbind(l)
	l.recvCQ.unbind(l)
}
