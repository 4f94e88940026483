package loopback

import (
	"sync"

	"github.com/viablk/viablk/via"
)

// conn is a connection: two links under one lock.
type conn struct {
	// +checklocks:mu
	net *Network

	mu     sync.Mutex
	ends   [2]*link
	broken bool
}

// link is one end of a connection; conn.mu guards what changes.
type link struct {
	conn       *conn
	adapter    *adapter
	cfg        via.LinkConfig
	send, recv *queue
	staged     works // posted sends that wait for the doorbell
	receives   works
	out        wire      // to the peer
	sent       uint32    // number of the last unit that went out
	got        uint32    // number of the last that arrived
	pending    *via.Work // waits for its answer; nothing goes out meanwhile
	stats      via.LinkStats
	started    bool
	closed     bool

	notices      int // non-breaking events in recv; guarded by recv.mu
	sendN, recvN int // entries reserved in the queues
}

// maxNotices is how many events that do not break the connection wait in a
// completion queue for each link. Those beyond are not told.
const maxNotices = 64

// attach creates one end.
func (c *conn) attach(i int, a *adapter, cfg via.LinkConfig) *link {
	l := &link{
		conn: c, adapter: a, cfg: cfg, send: cfg.SendCQ.(*queue), recv: cfg.RecvCQ.(*queue),
		staged:   works{ring: make([]*via.Work, cfg.SendDepth)},
		receives: works{ring: make([]*via.Work, cfg.RecvDepth)},
		sendN:    cfg.SendDepth, recvN: cfg.RecvDepth + maxNotices + 1, // and the report of the loss
	}
	c.ends[i] = l
	return l
}

func (l *link) peer() *link {
	if l.conn.ends[0] == l {
		return l.conn.ends[1]
	}
	return l.conn.ends[0]
}

// unreliable says that errors break nothing.
func (l *link) unreliable() bool { return l.cfg.Reliability == via.UnreliableDelivery }

// Start takes the receives and lets data flow, also what the peer sent before.
func (l *link) Start(receives []*via.Work) error {
	l.send.reserve(l.sendN)
	l.recv.reserve(l.recvN)
	l.conn.mu.Lock()
	defer l.conn.mu.Unlock()
	for _, w := range receives {
		l.receives.push(w)
	}
	l.started = true
	if l.conn.broken {
		l.report(lost, true, errPeerClosed)
		return nil
	}
	l.peer().carryOut() // +checklocksfail
	return nil
}

// PostSend stages a work for the doorbell.
func (l *link) PostSend(w *via.Work) bool {
	l.conn.mu.Lock()
	defer l.conn.mu.Unlock()
	return l.staged.push(w)
}

// PostRecv offers a receive.
func (l *link) PostRecv(w *via.Work) {
	l.conn.mu.Lock()
	l.receives.push(w)
	l.conn.mu.Unlock()
}

// Doorbell carries out what was staged.
func (l *link) Doorbell() {
	l.conn.mu.Lock()
	defer l.conn.mu.Unlock()
	l.carryOut()
}

// Stats returns the link's counters.
func (l *link) Stats() via.LinkStats {
	l.conn.mu.Lock()
	defer l.conn.mu.Unlock()
	return l.stats
}

// Close ends the connection. The works are the consumer's again.
func (l *link) Close() error {
	c := l.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	c.breakLocked(lost, lost, errPeerClosed)
	l.staged, l.receives, l.pending, l.out = works{}, works{}, nil, wire{}
	for _, q := range []*queue{l.send, l.recv} {
		q.discard(l)
	}
	if l.started {
		l.send.reserve(-l.sendN)
		l.recv.reserve(-l.recvN)
	}
	return nil
}

// done completes a work.
func (l *link) done(q *queue, w *via.Work, s via.Status, length uint32) {
	w.Status, w.Moved = s, length
	q.push(l, via.Done{Work: w})
}

// report tells the owner of an event.
func (l *link) report(code via.AsyncCode, broken bool, cause error) {
	l.recv.push(l, via.Done{Event: &via.Event{Owner: l.cfg.Owner, Code: code, Broken: broken, Cause: cause}})
}

const lost = via.AsyncConnectionLost

// breakFrom breaks the connection: one end is told mine, its peer of the loss.
//
// The caller holds c.mu.
// +checklocksignore
func (c *conn) breakFrom(l *link, mine via.AsyncCode, cause error) {
	if l == c.ends[0] {
		c.breakLocked(mine, lost, cause)
	} else {
		c.breakLocked(lost, mine, cause)
	}
}

// breakLocked reports the loss to both ends, once.
//
// +checklocks:c.mu
func (c *conn) breakLocked(event0, event1 via.AsyncCode, cause error) {
	if c.broken {
		return
	}
	c.broken = true
	for i, event := range [2]via.AsyncCode{event0, event1} {
		if l := c.ends[i]; l.started && !l.closed {
			l.report(event, true, cause)
		}
	}
}

// works is a FIFO of bounded size.
type works struct {
	ring    []*via.Work
	head, n int
}

func (f *works) push(w *via.Work) bool {
	if f.n == len(f.ring) {
		return false
	}
	f.ring[(f.head+f.n)%len(f.ring)] = w
	f.n++
	return true
}

func (f *works) pop() *via.Work {
	if f.n == 0 {
		return nil
	}
	w := f.ring[f.head]
	f.ring[f.head] = nil
	f.head, f.n = (f.head+1)%len(f.ring), f.n-1
	return w
}
