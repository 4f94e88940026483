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
	// What a turn for arrivals touches is three cache lines.
	recvCQ     *cq
	in         reader
	rq         workRing
	current    *via.Work             // receive that a message is arriving in
	total      uint32                // bytes of that message, as its first fragment said
	tag        uint32                // of the memory that this end's works may name
	broken     bool                  //
	skipping   bool                  // the rest of the arriving message is dropped
	unreliable bool                  // the level is unreliable delivery
	reception  bool                  // the level is reliable reception
	ended      bool                  // the peer is gone; its ring up to in.tail counts
	answered   bool                  // something has arrived since the last doorbell
	queued     uint8                 // turns that the link is in line for
	gone       atomic.Bool           // the peer closed the connection or died
	after      uint32                // slot of the link that the journal named next, the last time
	name       uint64                // in journals of the peer; 0 is none
	journal    *peerJournal          // that says what arrives; nil if the queue watches the link
	cut        atomic.Pointer[error] // the peer broke a rule outside the data path
	received   uint64                // messages
	copied     uint64                // bytes, from the ring

	stats     via.LinkStats // but for those two
	sendCQ    *cq
	out       writer
	sq        workRing
	own       *segment
	peer      *segment
	ends      []uint64                // reliable reception: where the records of a work end, by its place in sq
	unacked   uint32                  // of sq: works at its head that are sent and not acknowledged
	faulty    *faultyWire             // nil but under test
	mention   atomic.Pointer[mention] // in a journal for the peer
	rungData  uint64                  // sleep of the peer that was answered, for data
	rungSpace uint64                  // and for space
	stalled   bool                    // the ring has no room, or works wait for acknowledgements
	awaiting  bool                    // the head of the send queue waits for an arena of the peer
	awaited   *peerArena              // the newest arena when it began to
	wants     uint64                  // what this end waits for, as in its segment
	epoch     uint64                  // sleeps of this end
	cache     [4]mapping              // recent translations of the peer's regions

	adapter  *adapter
	cfg      via.LinkConfig
	bells    bells // what the peer rings
	dataFD   int   // the peer's bells
	spaceFD  int
	reported bool
	event    via.AsyncCode
	cause    error
	bound    bool // the queues know the link

	watchedAt   int                         // place in recvCQ.watched; -1 is none
	alertedSend bool                        // guarded by the lock of the send queue's alerts
	alertedRecv bool                        // by that of the receive queue's, if that is another
	asked       bool                        // for a journal; guarded by recvCQ.binding
	keeps       uint64                      // token of the journal that mentions the link; of the agent goroutine
	offered     atomic.Pointer[peerJournal] // what the peer passed

	patience time.Duration
	waits    wait                              // of the work at the head of sq, see patience
	events   [via.AsyncCatastrophic]*via.Event // that do not break the connection
	raised   []via.AsyncCode                   // events in the receive queue's CQ
	handed   int                               // of these: taken

	// Guarded by adapter.mu.
	exposed map[*via.Memory]struct{} // own regions in the table
	passed  map[*arena]struct{}      // own arenas that the peer has, or gets when the link is live
	started bool                     // the peer takes arenas
	closing bool                     // nothing is exposed any more

	conn   *net.UnixConn
	arenas peerArenas    // of the peer
	done   chan struct{} // closed when the agent goroutine ended
}

// The turns that a link may be in line for.
const (
	queuedSend = 1
	queuedRecv = 2
)

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

func (r *workRing) empty() bool   { return r.head == r.tail }
func (r *workRing) count() uint32 { return r.tail - r.head }
func (r *workRing) full() bool    { return r.count() == uint32(len(r.ring)) }
func (r *workRing) mask() uint32  { return uint32(len(r.ring) - 1) }
func (r *workRing) push(w *via.Work) {
	r.ring[r.tail&uint32(len(r.ring)-1)] = w
	r.tail++
}
func (r *workRing) first() *via.Work      { return r.at(0) }
func (r *workRing) at(i uint32) *via.Work { return r.ring[(r.head+i)&r.mask()] }
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
	if l.sq.count()-l.unacked == 1 {
		l.progressSend()
	}
	if !l.sq.empty() {
		l.sends()
		l.sendCQ.signal() // what it waits for now, it did not wait for when it was armed
	}
	return true
}

// PostRecv queues a receive.
func (l *link) PostRecv(w *via.Work) { l.rq.push(w) }

// Doorbell publishes what was written and wakes the peer if it sleeps.
func (l *link) Doorbell() {
	if l.faulty != nil {
		l.release()
	}
	if l.out.tail == l.out.published || l.broken {
		return
	}
	l.out.published = l.out.tail
	word := l.out.word()
	if m := l.mention.Load(); m != nil {
		publishWord(l.own.mem, offTail, word)
		m.enter(word)
	} else {
		storeWord(l.own.mem, offTail, word)
		if m := l.mention.Load(); m != nil { // it may be read since before the tail was stored
			m.enter(word)
		}
	}
	wants := loadWord(l.peer.mem, offWants)
	if wants&wantData != 0 && wants>>wantShift != l.rungData {
		l.rungData = wants >> wantShift
		l.stats.Doorbells++
		ringBell(l.dataFD)
	}
	if l.answered { // a stream that nobody answers expects nothing
		l.answered = false
		l.expect()
	}
}

// Stats returns the counters.
func (l *link) Stats() via.LinkStats {
	s := l.stats
	s.Receives += l.received
	s.BytesCopied += l.copied
	s.Records = l.out.seq
	return s
}

// hasWork reports, for a sleep, whether a turn could do something now.
func (l *link) hasWork(c *cq) bool {
	if l.recvCQ == c {
		if l.broken {
			return l.reportable(c)
		}
		if l.gone.Load() || l.cut.Load() != nil || loadWord(l.peer.mem, offTail) != l.in.word || l.in.head != l.in.tail {
			return true
		}
	}
	switch {
	case l.broken || l.sendCQ != c || l.sq.empty():
		return false
	case l.unreliable:
		return true // its patience has an end
	case l.stalled:
		return loadWord(l.peer.mem, offHead) != l.out.head || l.unacked != 0 && l.gone.Load()
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
	publishWord(l.own.mem, offWants, l.epoch<<wantShift|l.wants)
}

// fail breaks the connection from this end.
func (l *link) fail(code via.AsyncCode, cause error) {
	if l.broken {
		return
	}
	l.broken, l.event, l.cause = true, code, cause
	l.failing(1)
	if l.unacked != 0 && l.out.setHead(loadWord(l.peer.mem, offHead)) == nil {
		l.completeAcknowledged()
	}
	if l.reportable(l.recvCQ) {
		l.recvCQ.signal()
	}
	_ = l.conn.CloseWrite() // the peer learns at once; Close does the rest
}

// failing counts, at the link's queues, that its end is to be reported, or was.
func (l *link) failing(n int) {
	l.recvCQ.failing += n
	if l.sendCQ != l.recvCQ {
		l.sendCQ.failing += n
	}
}

// told notes that the link's end needs no report any more.
func (l *link) told() {
	if l.broken && !l.reported {
		l.failing(-1)
	}
	l.broken, l.reported = true, true
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
	if l.bound {
		l.unbind()
	}
	l.told()
	l.sendCQ.forsake(l)
	l.recvCQ.abandonJournal(l)
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
	l.bound = true
	slot := l.recvCQ.bind(l)
	err := l.recvCQ.watch(l.bells.data, slot)
	if err == nil && l.sendCQ != l.recvCQ {
		slot = l.sendCQ.bind(l)
		err = l.sendCQ.watch(l.bells.space, slot)
	}
	if err != nil {
		return err // Close unbinds
	}
	l.recvCQ.ask(l.adapter)
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
