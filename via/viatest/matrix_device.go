package viatest

import (
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/hook"
)

// deviceRows are the errors of an end as a whole: a completion that has no
// place, a connection that goes, a NIC that fails.
func deviceRows() []row {
	return []row{
		{14, "CompletionUnwritable", []variant{
			{name: "receive", act: receiveUnwritable, want: same3(expectation{sender: unreported, atReceiver: hears(via.AsyncCompletionProt)})},
			{name: "send", act: sendUnwritable, want: same3(expectation{
				sender: can(good, flushed, transport, remoteDesc), atSender: hears(via.AsyncCompletionProt),
			})},
		}},
		{16, "ConnectionLost", []variant{
			{name: "peer disconnects", check: peerGoes},
			{name: "cut in a message", needs: NeedsFaults, plan: struck(via.FaultCut), act: wireSend(20000), want: cutMessage},
		}},
		{17, "NicFails", []variant{
			{name: "with connections", plan: hook.Plan{FailNicAt: failingStep}, check: nicFails},
		}},
	}
}

// same3 is the same at all levels.
func same3(e expectation) [3]expectation { return [3]expectation{e, e, e} }

var cutMessage = [3]expectation{
	{sender: can(good, flushed, transport, partial), receiver: can(untold, transport, partial)},
	{sender: can(good, flushed, transport, partial), receiver: can(untold, transport, partial)},
	{sender: can(flushed, transport, partial), receiver: can(untold, transport, partial)},
}

func receiveUnwritable(s *errCase) {
	d, m := s.elsewhere(s.server, s.server.tag)
	b := s.guarded(s.server, 64)
	s.server.expectMemoryGone(s.server.postRecv(s.server.vi, build(d, via.OpRecv, nil, []buf{b})))
	s.receives(2)
	s.check(m.Deregister(), "deregister the descriptor's memory")
	s.named, s.memoryGone = d, d
	s.overtaken = true // later messages are placed when R finds the error
	s.keep(s.server, d.Bytes(), "the descriptor")
	s.strike(s.badSend(s.guarded(s.client, 40)))
}

func sendUnwritable(s *errCase) {
	s.receives(1)
	d, m := s.elsewhere(s.client, s.client.tag)
	b := s.guarded(s.client, 40)
	build(d, via.OpSend, nil, []buf{b})
	d.SetImmediate(badNumber)
	s.client.expectMemoryGone(d)
	s.named, s.arrives = d, true
	s.bad = s.client.stage(d)
	s.client.vi.Doorbell()
	s.check(m.Deregister(), "deregister the descriptor's memory")
	s.keep(s.client, d.Bytes(), "the descriptor")
}

// peerGoes checks the loss by a Disconnect of the peer: at the end that did not
// ask for it.
func peerGoes(e *env) {
	e.connect()
	e.passes(e.client, e.server)
	for _, x := range []*end{e.client, e.server} {
		x.recv()
		x.recv()
	}
	mine, theirs := len(e.client.done), len(e.server.done)
	e.check(e.client.vi.Disconnect(), "disconnect")
	e.state(e.client, via.StateIdle)
	e.breaks(e.server)
	e.until("all receives", func() bool { return e.client.allComplete() && e.server.allComplete() })
	e.quietly()
	for _, c := range append(e.client.done[mine:], e.server.done[theirs:]...) {
		if c.Status&via.StatusErrorMask != flushed {
			e.t.Errorf("a receive completed with %v", c.Status)
		}
	}
	if errs := e.server.errors(); len(errs) != 1 || errs[0].Code != via.AsyncConnectionLost || errs[0].VI != e.server.vi {
		e.t.Errorf("callbacks at the peer: %+v", errs)
	}
	if errs := e.client.errors(); len(errs) != 0 {
		e.t.Errorf("callbacks at the end that disconnected: %+v", errs)
	}
	e.rejoin()
	e.passes(e.client, e.server)
	e.passes(e.server, e.client)
}

// failingStep is the step at which the client's NIC fails: the server's does
// fewer.
const failingStep = 80

// nicFails fails the client's NIC under two connections and an idle VI.
func nicFails(e *env) {
	e.connect()
	second := [2]*via.VI{e.client.vi, e.server.vi}
	e.connect()
	first := [2]*via.VI{e.client.vi, e.server.vi}
	alone := e.client.newVI(e.client.attributes())
	for range failingStep / 4 {
		e.client.recv()
	}
	for n := 0; e.client.vi.State() == via.StateConnected && n < failingStep; n++ {
		e.server.recv(e.server.buffer(8))
		e.client.send(e.client.buffer(8))
		e.until("the message, or the failure", func() bool { // the server is not to be faster
			send, _ := e.client.vi.QueuesEmpty()
			return send || e.client.vi.State() != via.StateConnected
		})
	}
	for _, vi := range []*via.VI{first[0], second[0], alone, first[1], second[1]} {
		e.until("every vi to break", func() bool { return vi.State() == via.StateError })
	}
	e.until("all descriptors", func() bool { return e.client.allComplete() && e.server.allComplete() })
	if errs := e.client.errors(); len(errs) != 1 || errs[0].Code != via.AsyncCatastrophic || errs[0].NIC != e.client.nic {
		e.t.Errorf("callbacks of the nic that failed: %+v, want one catastrophe", errs)
	}
	if errs := e.server.errors(); len(errs) != 2 || e.server.count(via.AsyncConnectionLost) != 2 {
		e.t.Errorf("callbacks at the peer: %+v, want two lost connections", errs)
	}
	e.refusesAll(e.client)
	for _, vi := range []*via.VI{first[0], second[0], alone, first[1], second[1]} {
		e.check(vi.Disconnect(), "disconnect")
		if vi.State() != via.StateIdle {
			e.t.Errorf("a vi is %v after its Disconnect", vi.State())
		}
	}
	e.client.close() // everything can be torn down
	third := newEnd(e, "third", e.f.Open())
	e.t.Cleanup(third.close)
	e.client = third
	e.connect()
	e.passes(e.client, e.server)
	e.passes(e.server, e.client)
}

// refusesAll checks that nothing can be created on a NIC that failed.
func (e *env) refusesAll(x *end) {
	e.t.Helper()
	_, err := x.nic.CreatePtag()
	e.wants(err, via.ErrResource, "create tag")
	_, err = x.nic.NewArena(4096)
	e.wants(err, via.ErrResource, "map an arena")
	_, err = x.nic.RegisterMem(x.buffer(8).b, via.MemAttributes{Ptag: x.tag})
	e.wants(err, via.ErrResource, "register")
	_, err = x.nic.CreateCQ(4)
	e.wants(err, via.ErrResource, "create completion queue")
	_, err = x.nic.CreateVi(x.attributes(), via.ViConfig{SendCQ: x.cq, RecvCQ: x.cq, SendDepth: 1, RecvDepth: 1})
	e.wants(err, via.ErrResource, "create vi")
	_, err = x.nic.Listen(e.service())
	e.wants(err, via.ErrResource, "listen")
	_, err = x.vi.Connect(e.timeout(), e.service())
	e.wants(err, via.ErrResource, "connect")
}
