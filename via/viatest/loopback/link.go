package loopback

import (
	"sync"

	"github.com/viablk/viablk/via"
)

// conn is a connection: two links under one lock.
type conn struct {
	net *Network

	mu     sync.Mutex
	ends   [2]*link
	broken bool
}

func newConn(n *Network) *conn {
	c := &conn{net: n}
	n.mu.Lock()
	n.conns[c] = struct{}{}
	n.mu.Unlock()
	return c
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

// link is one end of a connection.
type link struct {
	conn         *conn
	adapter      *adapter
	cfg          via.LinkConfig
	send, recv   *queue
	staged       works // posted sends that wait for the doorbell; guarded by conn.mu
	receives     works // guarded by conn.mu
	stats        via.LinkStats
	closed       bool // guarded by conn.mu
	sendN, recvN int  // entries reserved in the queues
}

// attach creates one end.
func (c *conn) attach(i int, a *adapter, cfg via.LinkConfig) *link {
	l := &link{
		conn: c, adapter: a, cfg: cfg, send: cfg.SendCQ.(*queue), recv: cfg.RecvCQ.(*queue),
		staged:   works{ring: make([]*via.Work, cfg.SendDepth)},
		receives: works{ring: make([]*via.Work, cfg.RecvDepth)},
		sendN:    cfg.SendDepth, recvN: cfg.RecvDepth + 1, // and the report of the loss
	}
	for _, w := range cfg.Receives {
		l.receives.push(w)
	}
	l.cfg.Receives = nil
	l.send.reserve(l.sendN)
	l.recv.reserve(l.recvN)
	c.ends[i] = l
	return l
}

func (l *link) peer() *link {
	if l.conn.ends[0] == l {
		return l.conn.ends[1]
	}
	return l.conn.ends[0]
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
	for !l.conn.broken && l.staged.n > 0 {
		l.conn.net.access.RLock()
		l.execute(l.staged.pop())
		l.conn.net.access.RUnlock()
	}
}

// execute carries out one work; the connection's lock and access are held.
func (l *link) execute(w *via.Work) {
	if !l.allowed(w) {
		l.fail(l.send, w, via.StatusProtectionError)
		return
	}
	switch w.Op {
	case via.OpSend:
		l.stats.Sends++
		l.deliver(w)
		return
	case via.OpRdmaWrite:
		l.stats.RdmaWrites++
	default:
		l.stats.RdmaReads++
	}
	// An operation of no bytes touches nothing: only the connection matters.
	if w.Length > 0 {
		remote := l.peer().adapter.remote(l.peer(), w)
		if remote == nil {
			l.refuse(w)
			return
		}
		l.stats.BytesCopied += uint64(w.Length)
		for _, s := range w.Segments {
			if w.Op == via.OpRdmaWrite {
				copy(remote, s.Bytes)
			} else {
				copy(s.Bytes, remote)
			}
			remote = remote[len(s.Bytes):]
		}
	}
	if w.HasImmediate {
		l.deliver(w)
		return
	}
	l.send.push(l, via.Done{Work: w, Length: w.Length})
}

// deliver consumes the peer's next receive for a Send, or for the immediate data
// of an RDMA Write that is done.
func (l *link) deliver(w *via.Work) {
	p := l.peer()
	r := p.receives.pop()
	if r == nil {
		l.send.push(l, via.Done{Work: w, Length: w.Length})
		l.conn.breakFrom(p, via.AsyncRecvQueueEmpty, lost, errRemote)
		return
	}
	d := via.Done{Work: r, Length: w.Length, Immediate: w.Immediate}
	if w.HasImmediate {
		d.Status = via.StatusImmediate
	}
	switch {
	case w.Op == via.OpRdmaWrite:
		d.Status |= via.StatusOpRemoteWrite
	case r.Length < w.Length:
		p.fail(p.recv, r, via.StatusLengthError)
		return
	case !p.allowed(r):
		p.fail(p.recv, r, via.StatusProtectionError)
		return
	default:
		scatter(r.Segments, w.Segments)
		l.stats.BytesCopied += uint64(w.Length)
	}
	p.stats.Receives++
	p.recv.push(p, d)
	l.send.push(l, via.Done{Work: w, Length: w.Length})
}

// scatter copies the bytes of src over the segments of dst, which hold them.
func scatter(dst, src []via.Segment) {
	at := 0
	for _, s := range src {
		for b := s.Bytes; len(b) > 0; {
			n := copy(dst[0].Bytes[at:], b)
			b, at = b[n:], at+n
			if at == len(dst[0].Bytes) {
				dst, at = dst[1:], 0
			}
		}
	}
}

// allowed says whether the segments' regions are still what they were at the
// post: a region may be withdrawn while a descriptor names it.
func (l *link) allowed(w *via.Work) bool {
	for i := range w.Segments {
		if m := w.Segments[i].Memory; !m.Live() || m.Tag() != l.cfg.Tag {
			return false
		}
	}
	return true
}

// refuse ends an RDMA operation that the peer does not allow.
func (l *link) refuse(w *via.Work) {
	p := l.peer()
	event := via.AsyncRdmaWriteProt
	if w.Op == via.OpRdmaRead {
		event = via.AsyncRdmaReadProt
	}
	if w.HasImmediate {
		if r := p.receives.pop(); r != nil {
			p.recv.push(p, via.Done{Work: r, Status: via.StatusRdmaProtError | via.StatusOpRemoteWrite, Broken: true})
			event = told // not by a callback
		}
	}
	l.send.push(l, via.Done{Work: w, Status: via.StatusRdmaProtError, Broken: true})
	l.conn.breakFrom(p, event, told, errRemote)
}

// fail completes a work in error and breaks the connection.
func (l *link) fail(q *queue, w *via.Work, s via.Status) {
	q.push(l, via.Done{Work: w, Status: s, Broken: true})
	l.conn.breakFrom(l, told, lost, errRemote)
}

const (
	lost               = via.AsyncConnectionLost
	told via.AsyncCode = -1 // a completion says it
)

// breakFrom breaks the connection: one end is told mine, its peer theirs.
func (c *conn) breakFrom(l *link, mine, theirs via.AsyncCode, cause error) {
	if l == c.ends[0] {
		c.breakLocked(mine, theirs, cause)
	} else {
		c.breakLocked(theirs, mine, cause)
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
		if l := c.ends[i]; !l.closed && event != told {
			l.recv.push(l, via.Done{Owner: l.cfg.Owner, Event: event, Broken: true, Cause: cause})
		}
	}
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
	l.staged, l.receives = works{}, works{}
	for _, q := range []*queue{l.send, l.recv} {
		q.drop(l)
	}
	l.send.reserve(-l.sendN)
	l.recv.reserve(-l.recvN)
	if l.peer().closed {
		c.net.mu.Lock()
		delete(c.net.conns, c)
		c.net.mu.Unlock()
	}
	return nil
}

// Stats returns the link's counters.
func (l *link) Stats() via.LinkStats {
	l.conn.mu.Lock()
	defer l.conn.mu.Unlock()
	return l.stats
}
