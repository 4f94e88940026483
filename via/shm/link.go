package shm

import (
	"net"
	"sync/atomic"

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

	out writer
	in  reader

	sq, rq     workRing
	current    *via.Work // receive that a message is arriving in
	stalled    bool      // the ring has no room
	awaiting   bool      // the head of the send queue waits for an arena of the peer
	awaited    *peerArena
	epoch      uint64 // sleeps of this end
	rungData   uint64 // sleep of the peer that was answered, for data
	rungSpace  uint64 // and for space
	dataFD     int    // the peer's eventfds
	spaceFD    int
	broken     bool
	reported   bool
	event      via.AsyncCode
	cause      error
	cache      [4]mapping // recent translations of the peer's regions
	stats      via.LinkStats
	exposed    map[*via.Memory]struct{} // own regions in the table; guarded by adapter.mu
	sentArenas map[uint64]struct{}      // guarded by adapter.mu

	conn   *net.UnixConn
	gone   atomic.Bool               // agent: the peer is gone
	arenas atomic.Pointer[peerArena] // agent: the peer's arenas, a list
	done   chan struct{}             // closed when the agent goroutine ended
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
		ringEvent(l.dataFD)
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
	if l.sendCQ == c && !l.sq.empty() {
		l.progressSend()
		l.Doorbell()
	}
	if l.recvCQ == c {
		l.progressRecv()
	}
}

// hasWork reports, for a sleep, whether progress could do something now.
func (l *link) hasWork(c *cq) bool {
	if l.broken {
		return !l.reported
	}
	if l.gone.Load() {
		return true
	}
	if l.recvCQ == c && loadWord(l.peer.mem, offTail) != l.in.head {
		return true
	}
	switch {
	case l.sendCQ != c || l.sq.empty():
		return false
	case l.stalled:
		return loadWord(l.peer.mem, offHead) != l.out.head
	case l.awaiting:
		return l.arenas.Load() != l.awaited
	default:
		return true
	}
}

// setWants tells the peer that this end sleeps, under a new epoch, so that one
// sleep is answered by one system call.
func (l *link) setWants(c *cq) {
	if l.broken {
		return
	}
	wants := loadWord(l.own.mem, offWants) & (wantData | wantSpace)
	if l.recvCQ == c {
		wants |= wantData
	}
	if l.sendCQ == c && l.stalled {
		wants |= wantSpace
	}
	l.epoch++
	storeWord(l.own.mem, offWants, l.epoch<<wantShift|wants)
}

func (l *link) clearWants() {
	if !l.broken {
		storeWord(l.own.mem, offWants, l.epoch<<wantShift)
	}
}

// fail breaks the connection from this end.
func (l *link) fail(code via.AsyncCode, cause error) {
	if l.broken {
		return
	}
	l.broken, l.event, l.cause = true, code, cause
	_ = l.conn.CloseWrite() // the peer learns at once; Close does the rest
}

// refuse tells the peer why the connection ends, then breaks it.
func (l *link) refuse(notice, own via.AsyncCode, cause error) {
	if l.out.free() >= recordHeader {
		l.out.begin(record{kind: recordRefused, immediate: uint32(notice)})
		l.out.end()
		l.Doorbell()
	}
	l.fail(own, cause)
}

// Close ends the connection: the peer's access to memory of this end is withdrawn
// and over before anything else, for the owner reuses the memory afterwards.
func (l *link) Close() error {
	err := l.adapter.revoke(l)
	if e := l.conn.Close(); err == nil {
		err = e
	}
	<-l.done
	l.sendCQ.unbind(l)
	l.recvCQ.unbind(l)
	l.broken, l.reported = true, true
	closeEvents(l.dataFD, l.spaceFD)
	for a := l.arenas.Load(); a != nil; a = a.next {
		a.unmap()
	}
	l.peer.close()
	l.own.close()
	return err
}
