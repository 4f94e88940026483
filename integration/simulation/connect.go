package simulation

import (
	"context"
	"errors"
	"fmt"

	"github.com/viablk/viablk/via"
)

// listening is a host that accepts connections.
type listening struct {
	adapter  *adapter
	host     string
	incoming func(via.Incoming)
	pending  []*request
	offered  int // requests that the listener holds
	closed   bool
	arrived  waiters // tasks that accept
}

// request is a connection that is asked for.
type request struct {
	listening *listening
	from      *adapter
	hello     []byte
	cfg       via.LinkConfig
	done      bool // answered or withdrawn
	refused   bool
	known     bool // the requester has the answer
	link      *link
	reply     []byte
	err       error
	answered  waiters
}

var errNoListener = errors.New("nothing listens")

// connect asks the listener at a host and waits for its answer.
func (a *adapter) connect(ctx context.Context, host string, hello []byte, cfg via.LinkConfig) (via.Link, []byte, error) {
	n := a.network
	scope := scopeOf(ctx)
	path := n.path(a.host, host)
	r := &request{from: a, hello: hello, cfg: cfg}
	n.scheduler.block(n.latency())
	for path.cut && ctx.Err() == nil {
		n.scheduler.block(-1, &path.mended, &scope.waiting)
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", via.ErrTimeout, err)
	}
	l := n.hosts[host]
	if l == nil {
		return nil, nil, fmt.Errorf("%w at %q: %w", errNoListener, host, via.ErrNotReachable)
	}
	r.listening = l
	l.pending = append(l.pending, r)
	l.adapter.process.Go(func() {
		if l.incoming(r); !r.refused {
			l.offered++
		}
		l.arrived.wake(n.scheduler)
	})
	for !r.known {
		if ctx.Err() != nil && !r.done {
			r.done = true
			return nil, nil, fmt.Errorf("%w: %w", via.ErrTimeout, ctx.Err())
		}
		if ctx.Err() != nil {
			n.scheduler.block(-1, &r.answered)
		} else {
			n.scheduler.block(-1, &r.answered, &scope.waiting)
		}
	}
	if r.err != nil {
		return nil, nil, r.err
	}
	return r.link, r.reply, nil
}

// finish answers a request. The requester knows when the answer has arrived.
func (r *request) finish(l *link, reply []byte, err error) error {
	if r.done {
		return fmt.Errorf("connection request is gone: %w", via.ErrTimeout)
	}
	r.done, r.link, r.reply, r.err = true, l, reply, err
	n := r.from.network
	n.scheduler.After(n.latency(), func() {
		n.path(r.from.host, r.listening.host).pass(func() {
			r.known = true
			r.answered.wake(n.scheduler)
		})
	})
	return nil
}

// Hello implements [via.Incoming], as do the other methods of request.
func (r *request) Hello() []byte { return r.hello }

// RemoteHost names the requester.
func (r *request) RemoteHost() string { return r.from.host }

// Refuse refuses the request.
func (r *request) Refuse(reply []byte) error {
	r.refused = true
	return r.finish(nil, nil, &via.Refused{Reply: reply})
}

// Accept connects.
func (r *request) Accept(ctx context.Context, reply []byte, cfg via.LinkConfig) (via.Link, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("accept: %w: %w", via.ErrTimeout, err)
	}
	if r.done || r.from.process.dead {
		return nil, fmt.Errorf("connection request is gone: %w", via.ErrTimeout)
	}
	n := r.from.network
	mine, theirs := r.listening.adapter.newLink(cfg), r.from.newLink(r.cfg)
	mine.peer, theirs.peer = theirs, mine
	mine.path = n.path(r.from.host, r.listening.host)
	theirs.path = mine.path
	return mine, r.finish(theirs, reply, nil)
}

// Close stops the listener.
func (l *listening) Close() error {
	if l.closed {
		return nil
	}
	l.closed = true
	if l.adapter.network.hosts[l.host] == l {
		delete(l.adapter.network.hosts, l.host)
	}
	l.refuseAll()
	l.arrived.wake(l.adapter.network.scheduler)
	return nil
}

// refuseAll refuses what is not answered.
func (l *listening) refuseAll() {
	for _, r := range l.pending {
		_ = r.finish(nil, nil, &via.Refused{}) // it may be answered
	}
	l.pending = nil
}
