package loopback

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/viablk/viablk/via"
)

// Network is a via.Provider whose devices reach each other by host name. It is
// safe for concurrent use.
type Network struct {
	// access is held shared by every copy and exclusively for a moment by every
	// change of a region: a change that returned has no copy running under the
	// former rights.
	access sync.RWMutex

	mu sync.Mutex
	// +checklocks:mu
	hosts map[string]*listening
}

// New returns an empty network.
func New() *Network {
	return &Network{hosts: make(map[string]*listening)}
}

// Name returns "loopback".
func (n *Network) Name() string { return "loopback" }

// Open opens a device; there is only the default one, "".
func (n *Network) Open(device string) (via.Adapter, error) {
	if device != "" {
		return nil, fmt.Errorf("no device %q: %w", device, via.ErrInvalidParameter)
	}
	return &adapter{net: n, regions: make(map[uint32]*via.Memory)}, nil
}

var (
	errPeerClosed = errors.New("the peer disconnected")
	errLocal      = errors.New("a send's memory is withdrawn")
	errCut        = errors.New("the connection is cut in the middle of a message")
	errLost       = errors.New("a message is lost")
)

// listening is an active Listen.
type listening struct {
	net      *Network
	adapter  *adapter
	host     string
	incoming func(via.Incoming)
	calls    sync.WaitGroup // running calls of incoming

	mu sync.Mutex
	// +checklocks:mu
	closed bool
	// +checklocks:mu
	pending map[*request]struct{} // not yet answered
}

func (n *Network) listen(a *adapter, host string, incoming func(via.Incoming)) (via.Listening, error) {
	l := &listening{net: n, adapter: a, host: host, incoming: incoming, pending: make(map[*request]struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.hosts[host] != nil {
		return nil, fmt.Errorf("host %q is listened at: %w", host, via.ErrResource)
	}
	n.hosts[host] = l
	return l, nil
}

// discoverHosts lists the hosts with a listener; all are one hop away.
func (n *Network) discoverHosts() []via.DiscoveredHost {
	n.mu.Lock()
	defer n.mu.Unlock()
	var found []via.DiscoveredHost
	for _, host := range slices.Sorted(maps.Keys(n.hosts)) {
		found = append(found, via.DiscoveredHost{Host: host, Hops: 1})
	}
	return found
}

// Close stops the listener and refuses what is not yet answered.
func (l *listening) Close() error {
	l.net.mu.Lock()
	if l.net.hosts[l.host] == l {
		delete(l.net.hosts, l.host)
	}
	l.net.mu.Unlock()
	l.mu.Lock()
	l.closed = true
	pending := l.pending
	l.pending = nil
	l.mu.Unlock()
	for r := range pending {
		_ = r.finish(answer{err: &via.Refused{}}) // it may be answered meanwhile
	}
	l.calls.Wait()
	return nil
}

// submit hands a request to the listener's consumer.
func (l *listening) submit(r *request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.pending[r] = struct{}{}
	l.calls.Add(1)
	go func() {
		defer l.calls.Done()
		l.incoming(r)
	}()
	return true
}

// answer ends a request.
type answer struct {
	link  *link
	reply []byte
	err   error
}

// request is a via.Incoming.
type request struct {
	from *adapter
	// +checklocks:mu
	l     *listening
	to    *adapter
	hello []byte
	cfg   via.LinkConfig
	// +checklocks:mu
	answer chan answer // holds one

	mu sync.Mutex
	// +checklocks:mu
	done bool // answered or withdrawn
}

// finish answers the request; the requester knows when it returns.
func (r *request) finish(a answer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done {
		return fmt.Errorf("connection request is gone: %w", via.ErrTimeout)
	}
	r.done = true
	r.l.mu.Lock()
	delete(r.l.pending, r)
	r.l.mu.Unlock()
	r.answer <- a
	return nil
}

// withdraw ends the request by the requester; false means it is answered.
func (r *request) withdraw() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done {
		return false
	}
	r.done = true
	r.l.mu.Lock()
	delete(r.l.pending, r)
	r.l.mu.Unlock()
	return true
}

// Hello returns the requester's message.
func (r *request) Hello() []byte { return r.hello }

// RemoteHost names the requester.
func (r *request) RemoteHost() string { return "loopback" }

// Refuse refuses the request.
func (r *request) Refuse(reply []byte) error {
	return r.finish(answer{err: &via.Refused{Reply: reply}})
}

// Accept connects. Both links exist before either end hears of it.
func (r *request) Accept(ctx context.Context, reply []byte, cfg via.LinkConfig) (via.Link, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	c := &conn{net: r.to.net}
	mine, theirs := c.attach(0, r.to, cfg), c.attach(1, r.from, r.cfg)
	if err := r.finish(answer{link: theirs, reply: reply}); err != nil {
		_ = theirs.Close() // first: the requester is gone
		_ = mine.Close()
		return nil, err
	}
	return mine, nil
}

// connect asks the listener at a host and waits for its answer.
func (a *adapter) connect(ctx context.Context, host string, hello []byte, cfg via.LinkConfig) (via.Link, []byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", via.ErrTimeout, err)
	}
	a.net.mu.Lock()
	l := a.net.hosts[host]
	a.net.mu.Unlock()
	if l == nil {
		return nil, nil, fmt.Errorf("no listener at %q: %w", host, via.ErrNotReachable)
	}
	r := &request{from: a, l: l, to: l.adapter, hello: hello, cfg: cfg, answer: make(chan answer, 1)}
	if !l.submit(r) {
		return nil, nil, fmt.Errorf("no listener at %q: %w", host, via.ErrNotReachable)
	}
	select {
	case ans := <-r.answer:
		return ans.unpack()
	case <-ctx.Done():
		if r.withdraw() {
			return nil, nil, fmt.Errorf("%w: %w", via.ErrTimeout, context.Cause(ctx))
		}
		return (<-r.answer).unpack()
	}
}

func (a answer) unpack() (via.Link, []byte, error) {
	if a.err != nil {
		return nil, nil, a.err
	}
	return a.link, a.reply, nil
}
