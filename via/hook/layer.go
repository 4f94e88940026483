package hook

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/via"
)

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
	if err := p.tap.opened(a); err != nil {
		_ = inner.Close()
		return nil, err
	}
	return a, nil
}

// adapter is a decorated device. Arenas and limits are the inner device's.
type adapter struct {
	via.Adapter
	layer *layer
	id    uint64
	fault deviceFaults // Fault's
}

// Close closes the device.
func (a *adapter) Close() error {
	err := a.Adapter.Close()
	a.layer.tap.released(a)
	return err
}

// MapArena maps memory of the inner device.
func (a *adapter) MapArena(size int) (via.ArenaMemory, error) {
	if err := a.layer.tap.usable(a); err != nil {
		return nil, err
	}
	return a.Adapter.MapArena(size)
}

// Register registers a region.
func (a *adapter) Register(m *via.Memory) error {
	if err := a.layer.tap.usable(a); err != nil {
		return err
	}
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
	if err := a.layer.tap.usable(a); err != nil {
		return nil, err
	}
	inner, err := a.Adapter.NewCQ(entries)
	if err != nil {
		return nil, err
	}
	q := &queue{AdapterCQ: inner, adapter: a, id: a.layer.ids.queues.Add(1), tickets: make(map[*via.Work]*ticket)}
	if err := a.layer.tap.queued(a, q); err != nil {
		_ = inner.Close()
		return nil, err
	}
	return q, nil
}

// Listen decorates the requests.
func (a *adapter) Listen(host string, incoming func(via.Incoming)) (via.Listening, error) {
	if err := a.layer.tap.usable(a); err != nil {
		return nil, err
	}
	return a.Adapter.Listen(host, func(in via.Incoming) { incoming(&request{Incoming: in, adapter: a}) })
}

// Connect connects and decorates the link.
func (a *adapter) Connect(ctx context.Context, host string, hello []byte, cfg via.LinkConfig) (via.Link, []byte, error) {
	if err := a.layer.tap.usable(a); err != nil {
		return nil, nil, err
	}
	if err := a.layer.tap.connect(ctx, host); err != nil {
		return nil, nil, err
	}
	inner, reply, err := a.Adapter.Connect(ctx, host, hello, a.inner(cfg))
	if err != nil {
		return nil, nil, err
	}
	return a.wrap(inner, cfg), reply, nil
}

// DiscoverHosts is the inner device's, if it has discovery.
func (a *adapter) DiscoverHosts(ctx context.Context, hops int) ([]via.DiscoveredHost, error) {
	d, ok := a.Adapter.(via.Discoverer)
	if !ok {
		return nil, fmt.Errorf("%s has no discovery: %w", a.layer.Name(), via.ErrNotSupported)
	}
	return d.DiscoverHosts(ctx, hops)
}

// request is a decorated connection request.
type request struct {
	via.Incoming
	adapter *adapter
}

// Unwrap implements [via.Wrapper]: the request knows who its peer is.
func (r *request) Unwrap() via.Incoming { return r.Incoming }

// Accept accepts and decorates the link.
func (r *request) Accept(ctx context.Context, reply []byte, cfg via.LinkConfig) (via.Link, error) {
	if err := r.adapter.layer.tap.usable(r.adapter); err != nil {
		_ = r.Refuse(nil) // the requester may be gone
		return nil, err
	}
	inner, err := r.Incoming.Accept(ctx, reply, r.adapter.inner(cfg))
	if err != nil {
		return nil, err
	}
	return r.adapter.wrap(inner, cfg), nil
}

// inner returns the configuration that the inner device gets, with its queues.
func (a *adapter) inner(cfg via.LinkConfig) via.LinkConfig {
	a.layer.tap.configure(&cfg)
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
	a.layer.tap.linked(l)
	return l
}

// ticket is what a decorator remembers of a posted work. Tickets are made at
// the first post of a work and reused.
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
	adapter *adapter
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
		if l.cfg.Owner == d.Event.Owner {
			return l, nil
		}
	}
	return nil, nil
}

// Poll takes reports.
func (q *queue) Poll(dst []via.Done) int { return q.adapter.layer.tap.poll(q, dst) }

// Arm prepares to sleep.
func (q *queue) Arm() bool { return q.adapter.layer.tap.arm(q) }

// FD returns what to sleep on.
func (q *queue) FD() int {
	if q.hold.alarm.set {
		return q.hold.alarm.fd
	}
	return q.AdapterCQ.FD()
}

// Close closes the queue.
func (q *queue) Close() error {
	q.adapter.layer.tap.unqueued(q)
	return q.AdapterCQ.Close()
}

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

// Start starts the link.
func (l *link) Start(receives []*via.Work) error {
	l.send.links = append(l.send.links, l)
	if l.recv != l.send {
		l.recv.links = append(l.recv.links, l)
	}
	for _, w := range receives {
		l.layer.tap.posted(l, l.recv.book(l, w, &l.recvs), w)
	}
	return l.inner().Start(receives)
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

// Life returns the inner link's, which stands still once Fault cut it.
func (l *link) Life() uint64 {
	if x, ok := l.Link.(via.Lively); ok {
		return x.Life()
	}
	return 0
}

// KeepAlive is the inner link's.
func (l *link) KeepAlive() bool {
	x, ok := l.Link.(via.QuietLink)
	return ok && x.KeepAlive()
}

// AnswerTime returns the inner link's.
func (l *link) AnswerTime() time.Duration {
	if x, ok := l.Link.(via.Lively); ok {
		return x.AnswerTime()
	}
	return 0
}

// inner returns what the link forwards to: nothing any more if Fault cut it.
func (l *link) inner() via.Link {
	if l.fault.cut {
		return &l.fault.remains
	}
	return l.Link
}
