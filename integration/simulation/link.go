package simulation

import (
	"errors"
	"slices"
	"time"

	"github.com/viablk/viablk/via"
)

// link is one end of a connection.
type link struct {
	adapter  *adapter
	cfg      via.LinkConfig
	peer     *link
	path     *path
	send     *queue
	recv     *queue
	staged   []*via.Work // posted sends that wait for the doorbell
	outgoing []*via.Work // sends that wait for an RDMA operation before them
	receives []*via.Work
	inbox    []message // arrived before the start
	active   *transfer // of this end; later works wait for it
	outside  waiters   // for the end of active
	arrival  time.Duration
	silent   *timer // ends the link
	started  bool
	broken   bool // the owner is told, or will be at the start
	closed   bool
	strayed  bool // a late message went to the next connection
	haunted  bool // one came from an earlier connection
	cause    error
	stats    via.LinkStats
	life     uint64 // calls of KeepAlive by the peer that have arrived
}

// newLink returns an end of a connection.
func (a *adapter) newLink(cfg via.LinkConfig) *link {
	l := &link{adapter: a, cfg: cfg, send: cfg.SendCQ.(*queue), recv: cfg.RecvCQ.(*queue)}
	a.links = append(a.links, l)
	a.network.links++
	return l
}

var (
	errPeerClosed = errors.New("the peer disconnected")
	errSilence    = errors.New("the peer does not answer")
	errCut        = errors.New("the connection is cut")
)

// Start implements [via.Link], as do the other methods with capitals.
func (l *link) Start(receives []*via.Work) error {
	l.started = true
	l.receives = append(l.receives, receives...)
	inbox := l.inbox
	l.inbox = nil
	for _, m := range inbox {
		l.arrive(m)
	}
	if l.broken {
		l.report()
	}
	l.pump()
	return nil
}

// PostSend stages a work.
func (l *link) PostSend(w *via.Work) bool {
	if len(l.staged)+len(l.outgoing) >= l.cfg.SendDepth {
		return false
	}
	l.staged = append(l.staged, w)
	return true
}

// PostRecv offers a receive.
func (l *link) PostRecv(w *via.Work) { l.receives = append(l.receives, w) }

// Doorbell starts what was staged.
func (l *link) Doorbell() {
	if l.closed || l.broken {
		l.staged = l.staged[:0]
		return
	}
	l.outgoing = append(l.outgoing, l.staged...)
	clear(l.staged)
	l.staged = l.staged[:0]
	l.pump()
}

// KeepAlive shows the peer that this end is alive, where memory is shared.
func (l *link) KeepAlive() bool {
	if l.adapter.network.Shared && !l.closed {
		l.path.pass(func() { l.peer.life++ })
	}
	return l.adapter.network.Shared
}

// Life counts the peer's calls of KeepAlive.
func (l *link) Life() uint64 { return l.life }

// AnswerTime is 0: the rounds are short.
func (l *link) AnswerTime() time.Duration { return 0 }

// Stats returns the counters.
func (l *link) Stats() via.LinkStats { return l.stats }

// Close ends the connection. A peer inside a copy is given time to leave.
func (l *link) Close() error {
	if l.closed || l.adapter.process.dead {
		return nil
	}
	n := l.adapter.network
	l.end()
	n.scheduler.After(n.latency(), func() { l.path.pass(func() { l.peer.lose(errPeerClosed) }) })
	if !n.Shared {
		l.peer.abort() // nothing of it is placed any more
	}
	err := l.adapter.await(func() *link {
		if t := l.peer.active; t != nil && t.running {
			return l
		}
		return nil
	})
	if t := l.peer.active; err != nil && t != nil {
		t.left = slices.Clone(t.remote[len(t.remote)/2:])
	}
	if err != nil {
		l.adapter.left = append(l.adapter.left, l)
	}
	return err
}

// end takes a link out of use.
func (l *link) end() {
	l.closed = true
	l.abort()
	l.send.discard(l)
	l.recv.discard(l)
	n := l.adapter.network
	n.scheduler.timers.unset(l.silent)
	l.staged, l.outgoing, l.receives, l.inbox = nil, nil, nil, nil
	l.adapter.links = slices.DeleteFunc(l.adapter.links, func(o *link) bool { return o == l })
	n.links--
}

// die is the end of a link whose process was killed.
func (l *link) die() {
	l.end()
	n := l.adapter.network
	delay := n.Silence + n.latency()
	if n.Shared {
		delay = n.latency()
	}
	n.scheduler.After(delay, func() { l.peer.lose(errSilence) })
	if n.Shared {
		return // a copy of the peer's goes on, to memory without a user
	}
	l.peer.abort()
}

// lose tells the owner that the connection is gone.
func (l *link) lose(cause error) {
	if l.broken || l.closed {
		return
	}
	l.broken, l.cause = true, cause
	l.abort()
	l.staged, l.outgoing = nil, nil
	l.adapter.network.scheduler.timers.unset(l.silent)
	if l.started {
		l.report()
	}
}

func (l *link) report() {
	l.recv.push(l, via.Done{Event: &via.Event{Owner: l.cfg.Owner, Code: via.AsyncConnectionLost, Broken: true, Cause: l.cause}})
}

// waits begins the time after which a link without answers is given up.
func (l *link) waits() {
	n := l.adapter.network
	if l.silent == nil {
		l.silent = &timer{call: func() {
			if l.path.cut {
				l.lose(errSilence)
			}
		}}
	}
	if l.silent.index == 0 {
		n.scheduler.timers.set(l.silent, n.scheduler.now+n.Silence, n.random.Uint32())
	}
}

// done completes a work.
func (l *link) done(q *queue, w *via.Work, s via.Status, length uint32) {
	w.Status, w.Moved = s, length
	q.push(l, via.Done{Work: w})
}
