package viatest

import (
	"sync/atomic"

	"github.com/viablk/viablk/via"
)

var noticeCases = []kitCase{
	{"NotifyIsOneShot", Full, "a notification is called once; what completes afterwards stays in the queue", anyLevel, 0, notifyIsOneShot},
	{"NotifyAtOnce", Full, "a notification is called at once where something is complete already", anyLevel, 0, notifyAtOnce},
	{"NotificationsInOrder", Full, "several notifications are served in the order in which they were armed", anyLevel, 0, notificationsInOrder},
	{"SendNotify", Full, "a send queue notifies as a receive queue does", anyLevel, 0, sendNotify},
	{"CQNotify", Full, "a completion queue's notification takes the entry and leaves the descriptor", anyLevel, 0, cqNotify},
	{"HandlerMayPostAndArm", Full, "a notification may post and arm itself again", anyLevel, 0, handlerMayPostAndArm},
	{"NotifyWithoutDriver", Full, "notifications are called although no consumer polls the queue", anyLevel, 0, notifyWithoutDriver},
	{"ErrorsNotify", Full, "descriptors that are flushed notify as others do", anyLevel, 0, errorsNotify},
	{"DestroyCancelsNotify", Full, "a notification of a queue that is destroyed is never called", anyLevel, 0, destroyCancelsNotify},
	{"NotifyRefusals", Full, "a notification needs a handler, and a queue of its own kind that exists", anyLevel, 0, notifyRefusals},
}

// notified collects what notifications were called with.
type notified struct{ calls chan noticed }

type noticed struct {
	vi   *via.VI
	d    *via.Descriptor
	recv bool
	id   int
}

func newNotified() *notified { return &notified{calls: make(chan noticed, 1024)} }

// queue returns a handler for a work queue, entry one for a completion queue.
func (n *notified) queue(id int) func(*via.VI, *via.Descriptor) {
	return func(vi *via.VI, d *via.Descriptor) { n.calls <- noticed{vi: vi, d: d, id: id} }
}

func (n *notified) entry(id int) func(*via.VI, bool) {
	return func(vi *via.VI, recv bool) { n.calls <- noticed{vi: vi, recv: recv, id: id} }
}

// called waits for a call, while the kit drives the server alone.
func (e *env) called(n *notified) noticed {
	e.t.Helper()
	var got noticed
	e.untilBy("a notification", func() bool {
		select {
		case got = <-n.calls:
			return true
		default:
			return false
		}
	}, e.server)
	return got
}

// uncalled checks that nothing more is called for a while.
func (e *env) uncalled(n *notified) {
	e.t.Helper()
	for range 200 {
		e.server.poll()
		pause()
	}
	if len(n.calls) != 0 {
		e.t.Fatalf("%d notifications are called that were not armed", len(n.calls))
	}
}

func notifyIsOneShot(e *env) {
	e.connectBare()
	n := newNotified()
	first, second := e.bareRecv(), e.bareRecv()
	e.check(e.client.vi.RecvNotify(n.queue(1)), "notify")
	e.uncalled(n)
	e.server.send()
	if got := e.called(n); got.vi != e.client.vi || got.d != first {
		e.t.Fatalf("called with %p, want the first receive", got.d)
	}
	s := e.server.send()
	e.takes(e.client.vi.RecvDone, second, nil)
	e.served(s)
	e.uncalled(n)
}

func notifyAtOnce(e *env) {
	e.connectBare()
	vi, n := e.client.vi, newNotified()
	receives := []*via.Descriptor{e.bareRecv(), e.bareRecv(), e.bareRecv()}
	e.check(vi.Disconnect(), "disconnect")
	for i, r := range receives {
		e.check(vi.RecvNotify(n.queue(i)), "notify")
		select {
		case got := <-n.calls:
			if got.d != r || got.id != i {
				e.t.Fatalf("notification %d is called with %p, want %p", got.id, got.d, r)
			}
		default:
			e.t.Fatalf("notification %d is not called although a receive is complete", i)
		}
	}
	e.empty(vi.RecvDone)
}

func notificationsInOrder(e *env) {
	e.connectBare()
	const count = 10
	n := newNotified()
	var receives []*via.Descriptor
	for i := range count {
		receives = append(receives, e.bareRecv())
		e.check(e.client.vi.RecvNotify(n.queue(i)), "notify")
	}
	for range count {
		e.server.send()
	}
	for i, r := range receives {
		if got := e.called(n); got.id != i || got.d != r {
			e.t.Fatalf("notification %d is called with %p; want %d with %p", got.id, got.d, i, r)
		}
	}
	e.uncalled(n)
}

func sendNotify(e *env) {
	e.connectBare()
	n := newNotified()
	for i := range 5 {
		e.check(e.client.vi.SendNotify(n.queue(i)), "notify")
		e.server.recv()
		s := e.bareSend(uint32(i))
		if got := e.called(n); got.vi != e.client.vi || got.d != s || got.id != i || s.Status() != via.StatusDone {
			e.t.Fatalf("notification %d is called with %p, %v", got.id, got.d, s.Status())
		}
		e.empty(e.client.vi.SendDone)
	}
}

func cqNotify(e *env) {
	e.connect()
	cq, n := e.client.cq, newNotified()
	e.check(cq.Notify(n.entry(1)), "notify")
	r := e.client.recv()
	s := e.server.send()
	if got := e.called(n); got.vi != e.client.vi || !got.recv {
		e.t.Fatalf("called for vi %p, receive %v", got.vi, got.recv)
	}
	if _, _, err := cq.Done(); err != via.ErrNotDone {
		e.t.Errorf("the entry is there although a notification took it: %v", err)
	}
	d, err := e.client.vi.RecvDone()
	e.check(err, "take the receive")
	if d != r {
		e.t.Fatalf("took %p, want the receive", d)
	}
	e.client.collect([]via.Completion{{VI: e.client.vi, Descriptor: d, Recv: true, Status: d.Status()}})
	e.ok(e.server, s)
	e.passes(e.client, e.server)
	if len(n.calls) != 0 {
		e.t.Errorf("a notification is called twice")
	}
}

func handlerMayPostAndArm(e *env) {
	e.connectBare()
	const rounds = 50
	vi, n := e.client.vi, newNotified()
	var again func(*via.VI, *via.Descriptor)
	var failed atomic.Pointer[error]
	again = func(_ *via.VI, d *via.Descriptor) {
		if d.Status().Failed() {
			return // flushed: the case is over
		}
		number := d.Immediate()
		err := vi.PostRecv(build(d, via.OpRecv, nil, nil))
		if err == nil {
			err = vi.RecvNotify(again)
		}
		if err != nil {
			failed.Store(&err)
		}
		n.calls <- noticed{d: d, id: int(number)}
	}
	r := e.bareRecv()
	e.check(vi.RecvNotify(again), "notify")
	for i := range rounds {
		e.server.sendImmediate(uint32(i))
		if got := e.called(n); got.d != r || got.id != i {
			e.t.Fatalf("round %d: called with message %d", i, got.id)
		}
	}
	if err := failed.Load(); err != nil {
		e.t.Fatalf("the handler's call: %v", *err)
	}
}

func notifyWithoutDriver(e *env) {
	e.connectBare()
	n := newNotified()
	for i := range 20 {
		r := e.bareRecv()
		e.check(e.client.vi.RecvNotify(n.queue(i)), "notify")
		for range i {
			pause()
		}
		s := e.server.send()
		if got := e.called(n); got.d != r || got.id != i {
			e.t.Fatalf("notification %d is called with %p", got.id, got.d)
		}
		e.served(s)
	}
}

func errorsNotify(e *env) {
	e.connectBare()
	vi, n := e.client.vi, newNotified()
	receives := []*via.Descriptor{e.bareRecv(), e.bareRecv()}
	for i := range receives {
		e.check(vi.RecvNotify(n.queue(i)), "notify")
	}
	e.check(e.server.vi.Disconnect(), "disconnect")
	for i, r := range receives {
		if got := e.called(n); got.id != i || got.d != r || r.Status()&via.StatusErrorMask != via.StatusFlushed {
			e.t.Fatalf("notification %d is called with %p, %v", got.id, got.d, r.Status())
		}
	}
	// Handlers run in order: the callback comes behind those of the receives.
	e.until("the callback of the loss", func() bool { return e.client.count(via.AsyncConnectionLost) == 1 })
	if vi.State() != via.StateError {
		e.t.Errorf("the vi is %v", vi.State())
	}
	e.check(vi.SendNotify(n.queue(7)), "notify")
	s := e.bareSend(0)
	if got := e.called(n); got.id != 7 || got.d != s {
		e.t.Errorf("notification %d is called with %p", got.id, got.d)
	}
}

func destroyCancelsNotify(e *env) {
	x, n := e.client, newNotified()
	cq, err := x.nic.CreateCQ(4)
	e.check(err, "create completion queue")
	for range 3 {
		e.check(cq.Notify(n.entry(1)), "notify")
	}
	e.check(cq.Destroy(), "destroy completion queue")
	vi, err := x.nic.CreateVi(x.attributes(), via.ViConfig{SendDepth: 4, RecvDepth: 4})
	e.check(err, "create vi")
	e.check(vi.SendNotify(n.queue(2)), "notify")
	e.check(vi.RecvNotify(n.queue(3)), "notify")
	e.check(vi.Destroy(), "destroy vi")
	// Others are made where they were, and complete.
	e.client.vi = x.newViOn(x.attributes(), via.ViConfig{SendCQ: x.newCQ(8), SendDepth: 4, RecvDepth: 4})
	r := e.bareRecv()
	e.check(e.client.vi.Disconnect(), "disconnect")
	e.takes(e.client.vi.RecvDone, r, via.ErrDescriptor)
	e.uncalled(n)
}

func notifyRefusals(e *env) {
	e.connect()
	x, n := e.client, newNotified()
	bare, err := x.nic.CreateVi(x.attributes(), via.ViConfig{SendDepth: 1, RecvDepth: 1})
	e.check(err, "create vi")
	e.wants(x.cq.Notify(nil), via.ErrInvalidParameter, "notify without a handler")
	e.wants(bare.SendNotify(nil), via.ErrInvalidParameter, "notify without a handler")
	e.wants(bare.RecvNotify(nil), via.ErrInvalidParameter, "notify without a handler")
	e.wants(x.vi.SendNotify(n.queue(1)), via.ErrInvalidParameter, "notify of a queue with a completion queue")
	e.wants(x.vi.RecvNotify(n.queue(1)), via.ErrInvalidParameter, "notify of a queue with a completion queue")
	e.check(bare.Destroy(), "destroy vi")
	e.wants(bare.SendNotify(n.queue(1)), via.ErrInvalidParameter, "notify of a destroyed vi")
	e.wants(bare.RecvNotify(n.queue(1)), via.ErrInvalidParameter, "notify of a destroyed vi")
	cq, err := x.nic.CreateCQ(4)
	e.check(err, "create completion queue")
	e.check(cq.Destroy(), "destroy completion queue")
	e.wants(cq.Notify(n.entry(1)), via.ErrInvalidParameter, "notify of a destroyed completion queue")
	e.passes(e.client, e.server)
	e.passes(e.server, e.client)
	e.uncalled(n)
}
