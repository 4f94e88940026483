package hook

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/via"
)

// tap is what a decorator adds. Calls about a link and its queues come from the
// goroutine that drives them, the others from any.
type tap interface {
	opened(a *adapter)
	register(a *adapter, m *via.Memory) error // before; an error fails it
	registered(a *adapter, m *via.Memory)
	updated(a *adapter, m *via.Memory)
	deregistered(a *adapter, m *via.Memory)
	queued(a *adapter, q *queue)
	connect(ctx context.Context, host string) error // before; an error fails it
	linked(l *link)
	offer(l *link, w *via.Work) bool // before a post; false: no room
	posted(l *link, t *ticket, w *via.Work)
	refused(l *link, w *via.Work)
	rung(l *link)
	poll(q *queue, dst []via.Done) int
	arm(q *queue) bool
	closed(l *link)
}

// passive is a tap that adds nothing.
type passive struct{}

func (passive) opened(*adapter)                       {}
func (passive) register(*adapter, *via.Memory) error  { return nil }
func (passive) registered(*adapter, *via.Memory)      {}
func (passive) updated(*adapter, *via.Memory)         {}
func (passive) deregistered(*adapter, *via.Memory)    {}
func (passive) queued(*adapter, *queue)               {}
func (passive) connect(context.Context, string) error { return nil }
func (passive) linked(*link)                          {}
func (passive) offer(*link, *via.Work) bool           { return true }
func (passive) posted(*link, *ticket, *via.Work)      {}
func (passive) refused(*link, *via.Work)              {}
func (passive) rung(*link)                            {}
func (passive) poll(q *queue, dst []via.Done) int     { return q.AdapterCQ.Poll(dst) }
func (passive) arm(q *queue) bool                     { return q.AdapterCQ.Arm() }
func (passive) closed(*link)                          {}

// layer is a decorated provider.
type layer struct {
	via.Provider
	tap tap
	ids struct{ devices, queues, links atomic.Uint64 }
}

// Open opens a device and decorates it.
func (p *layer) Open(device string) (via.Adapter, error) {
	inner, err := p.Provider.Open(device)
	if err != nil {
		return nil, err
	}
	a := &adapter{Adapter: inner, layer: p, id: p.ids.devices.Add(1)}
	p.tap.opened(a)
	return a, nil
}

// adapter is a decorated device. Arenas and limits are the inner device's.
type adapter struct {
	via.Adapter
	layer *layer
	id    uint64
}

// Register registers a region.
func (a *adapter) Register(m *via.Memory) error {
	if err := a.layer.tap.register(a, m); err != nil {
		return err
	}
	if err := a.Adapter.Register(m); err != nil {
		return err
	}
	a.layer.tap.registered(a, m)
	return nil
}

// Update applies changed attributes.
func (a *adapter) Update(m *via.Memory) error {
	err := a.Adapter.Update(m)
	a.layer.tap.updated(a, m)
	return err
}

// Deregister withdraws a region.
func (a *adapter) Deregister(m *via.Memory) error {
	err := a.Adapter.Deregister(m)
	a.layer.tap.deregistered(a, m)
	return err
}

// NewCQ creates a decorated queue.
func (a *adapter) NewCQ(entries int) (via.AdapterCQ, error) {
	inner, err := a.Adapter.NewCQ(entries)
	if err != nil {
		return nil, err
	}
	q := &queue{AdapterCQ: inner, layer: a.layer, id: a.layer.ids.queues.Add(1), tickets: make(map[*via.Work]*ticket)}
	a.layer.tap.queued(a, q)
	return q, nil
}

// Listen decorates the requests.
func (a *adapter) Listen(host string, incoming func(via.Incoming)) (via.Listening, error) {
	return a.Adapter.Listen(host, func(in via.Incoming) { incoming(&request{Incoming: in, adapter: a}) })
}

// Connect connects and decorates the link.
func (a *adapter) Connect(ctx context.Context, host string, hello []byte, cfg via.LinkConfig) (via.Link, []byte, error) {
	if err := a.layer.tap.connect(ctx, host); err != nil {
		return nil, nil, err
	}
	inner, reply, err := a.Adapter.Connect(ctx, host, hello, unwrap(cfg))
	if err != nil {
		return nil, nil, err
	}
	return a.wrap(inner, cfg), reply, nil
}

// request is a decorated connection request.
type request struct {
	via.Incoming
	adapter *adapter
}

// Accept accepts and decorates the link.
func (r *request) Accept(ctx context.Context, reply []byte, cfg via.LinkConfig) (via.Link, error) {
	inner, err := r.Incoming.Accept(ctx, reply, unwrap(cfg))
	if err != nil {
		return nil, err
	}
	return r.adapter.wrap(inner, cfg), nil
}

// unwrap puts the inner device's queues into a configuration.
func unwrap(cfg via.LinkConfig) via.LinkConfig {
	cfg.SendCQ = cfg.SendCQ.(*queue).AdapterCQ
	cfg.RecvCQ = cfg.RecvCQ.(*queue).AdapterCQ
	return cfg
}

// wrap decorates a new link.
func (a *adapter) wrap(inner via.Link, cfg via.LinkConfig) via.Link {
	l := &link{
		Link: inner, layer: a.layer, adapter: a, id: a.layer.ids.links.Add(1), cfg: cfg,
		send: cfg.SendCQ.(*queue), recv: cfg.RecvCQ.(*queue),
	}
	l.send.links = append(l.send.links, l)
	if l.recv != l.send {
		l.recv.links = append(l.recv.links, l)
	}
	a.layer.tap.linked(l)
	for _, w := range cfg.Receives {
		a.layer.tap.posted(l, l.recv.book(l, w, &l.recvs), w)
	}
	l.cfg.Receives = nil
	return l
}

// ticket is what a decorator remembers of a posted work. Tickets are made at the
// first post of a work and reused.
type ticket struct {
	link *link
	seq  uint64
	op   via.Opcode
	at   time.Time
	out  bool // posted and not done
}

// queue is a decorated completion queue.
type queue struct {
	via.AdapterCQ
	layer   *layer
	id      uint64
	links   []*link
	tickets map[*via.Work]*ticket
	hold    holding // Fault's
}

// book notes that a work is posted.
func (q *queue) book(l *link, w *via.Work, seq *uint64) *ticket {
	t := q.tickets[w]
	if t == nil {
		t = &ticket{}
		q.tickets[w] = t
	}
	*seq++
	*t = ticket{link: l, seq: *seq, op: w.Op, out: true}
	return t
}

// of returns the link that a report is about, and its ticket if it is a work's.
func (q *queue) of(d *via.Done) (*link, *ticket) {
	if d.Work != nil {
		if t := q.tickets[d.Work]; t != nil && t.out {
			return t.link, t
		}
		return nil, nil
	}
	for _, l := range q.links {
		if l.cfg.Owner == d.Owner {
			return l, nil
		}
	}
	return nil, nil
}

// Poll takes reports.
func (q *queue) Poll(dst []via.Done) int { return q.layer.tap.poll(q, dst) }

// Arm prepares to sleep.
func (q *queue) Arm() bool { return q.layer.tap.arm(q) }

// forget drops what the queue knows of a link.
func (q *queue) forget(l *link) {
	for i, k := range q.links {
		if k == l {
			q.links = append(q.links[:i], q.links[i+1:]...)
			break
		}
	}
	for w, t := range q.tickets {
		if t.link == l {
			delete(q.tickets, w)
		}
	}
}

// link is a decorated link.
type link struct {
	via.Link
	layer        *layer
	adapter      *adapter
	id           uint64
	cfg          via.LinkConfig
	send, recv   *queue
	sends, recvs uint64 // works posted so far
	fault        faulty // Fault's
}

// PostSend posts a Send, RDMA Write or RDMA Read.
func (l *link) PostSend(w *via.Work) bool {
	if !l.layer.tap.offer(l, w) || !l.inner().PostSend(w) {
		l.layer.tap.refused(l, w)
		return false
	}
	l.layer.tap.posted(l, l.send.book(l, w, &l.sends), w)
	return true
}

// PostRecv posts a receive.
func (l *link) PostRecv(w *via.Work) {
	l.inner().PostRecv(w)
	l.layer.tap.posted(l, l.recv.book(l, w, &l.recvs), w)
}

// Doorbell rings.
func (l *link) Doorbell() {
	l.inner().Doorbell()
	l.layer.tap.rung(l)
}

// Close ends the connection.
func (l *link) Close() error {
	err := l.inner().Close()
	l.send.forget(l)
	l.recv.forget(l)
	l.layer.tap.closed(l)
	return err
}

// Stats returns the inner link's counters.
func (l *link) Stats() via.LinkStats { return l.inner().Stats() }

// inner returns what the link forwards to: nothing any more if Fault cut it.
func (l *link) inner() via.Link {
	if l.fault.cut {
		return &l.fault.remains
	}
	return l.Link
}
