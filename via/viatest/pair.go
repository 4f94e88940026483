package viatest

import (
	"context"

	"github.com/viablk/viablk/via"
)

// connect gives both ends a VI and connects them.
func (e *env) connect() {
	e.t.Helper()
	e.client.vi = e.client.newVI(e.client.attributes())
	e.server.vi = e.server.newVI(e.server.attributes())
	e.join(e.client.vi, e.server.vi)
}

// join connects an idle VI of the client to one of the server.
func (e *env) join(client, server *via.VI) {
	e.t.Helper()
	addr := e.service()
	l, err := e.server.nic.Listen(addr)
	e.check(err, "listen")
	defer func() { e.check(l.Close(), "close listener") }()
	ctx, cancel := context.WithTimeout(context.Background(), caseTimeout)
	defer cancel()
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Wait(ctx)
		if err == nil {
			err = r.Accept(ctx, server)
		}
		accepted <- err
	}()
	_, err = client.Connect(ctx, addr)
	e.check(err, "connect")
	e.check(<-accepted, "accept")
	if client.State() != via.StateConnected || server.State() != via.StateConnected {
		e.t.Fatalf("after connecting the client is %v, the server %v", client.State(), server.State())
	}
}

// rejoin disconnects both default VIs, takes what was flushed and connects them
// again.
func (e *env) rejoin() {
	e.t.Helper()
	for _, x := range []*end{e.client, e.server} {
		e.check(x.vi.Disconnect(), "disconnect")
		for x.poll() != 0 {
		}
		x.forget()
	}
	e.join(e.client.vi, e.server.vi)
}

// request is a connection attempt that runs on a goroutine of its own.
type request struct {
	attrs via.ViAttributes
	err   error
	done  chan struct{}
}

// dial starts to connect a VI; it drives the VI until it is done.
func (e *env) dial(ctx context.Context, vi *via.VI, addr via.Address) *request {
	r := &request{done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.attrs, r.err = vi.Connect(ctx, addr)
	}()
	return r
}

// wait returns the attempt's result.
func (r *request) wait() error {
	<-r.done
	return r.err
}

// timeout returns a context for what must not take longer.
func (e *env) timeout() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), caseTimeout)
	e.t.Cleanup(cancel)
	return ctx
}
