package attack

import (
	"context"
	"sync"

	"github.com/viablk/viablk/via"
)

// channel is a way by which bytes travel.
type channel int

const (
	hellos   channel = iota // what connects, both ways
	messages                // Sends
	placed                  // RDMA Writes
	pulled                  // RDMA Reads, as they arrive
	channels
)

var channelNames = [channels]string{"hellos", "messages", "placed", "pulled"}

// attacker owns the fabric between ends that use provider. It sees what an end
// gives the fabric and what an RDMA Read brings, and may change it.
type attacker struct {
	see    func(channel, []byte)
	change func(channel, *via.Work) // nil: nothing

	mu      sync.Mutex
	exposed map[*via.Memory]bool // regions that peers reach
}

func newAttacker(see func(channel, []byte)) *attacker {
	return &attacker{see: see, exposed: map[*via.Memory]bool{}}
}

// over returns a provider that the attacker owns.
func (a *attacker) over(p via.Provider) via.Provider { return owned{p, a} }

// travels shows the attacker a work whose bytes travel.
func (a *attacker) travels(c channel, w *via.Work) {
	if a.change != nil {
		a.change(c, w)
	}
	for i := range w.Segments {
		a.see(c, w.Segments[i].Bytes)
	}
}

// reach calls f with the memory that peers can read or write now. No region is
// withdrawn meanwhile.
func (a *attacker) reach(f func(b []byte, writable bool)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for m := range a.exposed {
		f(m.Bytes(), m.RemoteWrite())
	}
}

type owned struct {
	via.Provider
	by *attacker
}

// Open opens a device.
func (p owned) Open(device string) (via.Adapter, error) {
	a, err := p.Provider.Open(device)
	if err != nil {
		return nil, err
	}
	return &adapter{a, p.by}, nil
}

type adapter struct {
	via.Adapter
	by *attacker
}

// Register makes a region known.
func (a *adapter) Register(m *via.Memory) error {
	err := a.Adapter.Register(m)
	if err == nil && (m.RemoteRead() || m.RemoteWrite()) {
		a.by.mu.Lock()
		a.by.exposed[m] = true
		a.by.mu.Unlock()
	}
	return err
}

// Deregister withdraws a region.
func (a *adapter) Deregister(m *via.Memory) error {
	a.by.mu.Lock()
	delete(a.by.exposed, m)
	a.by.mu.Unlock()
	return a.Adapter.Deregister(m)
}

// NewCQ creates a queue.
func (a *adapter) NewCQ(entries int) (via.AdapterCQ, error) {
	q, err := a.Adapter.NewCQ(entries)
	if err != nil {
		return nil, err
	}
	return &queue{q, a.by}, nil
}

// inner returns a configuration with the queues of the fabric.
func inner(cfg via.LinkConfig) via.LinkConfig {
	cfg.SendCQ, cfg.RecvCQ = cfg.SendCQ.(*queue).AdapterCQ, cfg.RecvCQ.(*queue).AdapterCQ
	return cfg
}

// Listen accepts connections.
func (a *adapter) Listen(host string, incoming func(via.Incoming)) (via.Listening, error) {
	return a.Adapter.Listen(host, func(in via.Incoming) { incoming(&request{in, a.by}) })
}

// Connect connects.
func (a *adapter) Connect(ctx context.Context, host string, hello []byte, cfg via.LinkConfig) (via.Link, []byte, error) {
	a.by.see(hellos, hello)
	l, reply, err := a.Adapter.Connect(ctx, host, hello, inner(cfg))
	if err != nil {
		return nil, reply, err
	}
	return &link{Link: l, by: a.by}, reply, nil
}

type request struct {
	via.Incoming
	by *attacker
}

// Accept accepts the connection.
func (r *request) Accept(ctx context.Context, reply []byte, cfg via.LinkConfig) (via.Link, error) {
	r.by.see(hellos, reply)
	l, err := r.Incoming.Accept(ctx, reply, inner(cfg))
	if err != nil {
		return nil, err
	}
	return &link{Link: l, by: r.by}, nil
}

type link struct {
	via.Link
	by      *attacker
	refused *via.Work // which the attacker has seen
}

// PostSend posts what travels.
func (l *link) PostSend(w *via.Work) bool {
	if l.refused != w && w.Op != via.OpRdmaRead {
		c := messages
		if w.Op == via.OpRdmaWrite {
			c = placed
		}
		l.by.travels(c, w)
	}
	l.refused = nil
	ok := l.Link.PostSend(w)
	if !ok {
		l.refused = w
	}
	return ok
}

type queue struct {
	via.AdapterCQ
	by *attacker
}

// Poll shows what RDMA Reads brought.
func (q *queue) Poll(dst []via.Done) int {
	n := q.AdapterCQ.Poll(dst)
	for i := range dst[:n] {
		if w := dst[i].Work; w != nil && w.Op == via.OpRdmaRead && !w.Status.Failed() {
			q.by.travels(pulled, w)
		}
	}
	return n
}
