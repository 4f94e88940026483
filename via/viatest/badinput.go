package viatest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/hook"
)

var badInputCases = []kitCase{
	{"BadArguments", Functional, "every call refuses arguments that make no sense, with its return code", anyLevel, 0, badArguments},
	{"BadStates", Functional, "every call refuses objects in use or in another state, with its return code", anyLevel, 0, badStates},
	{"GoneObjects", Functional, "every call of an object that is gone is refused or harmless", anyLevel, 0, goneObjects},
	{"GoneNIC", Functional, "every call of a NIC that is closed is refused or harmless", anyLevel, 0, goneNIC},
	{"BadDevices", EarlyAdopter, "a device that does not exist is not opened", anyLevel, 0, badDevices},
	{"GoneHandles", Functional, "a handle of a region that is gone is refused in a Send, in a receive and from afar, also when its slot is another's", anyLevel, 0, goneHandles},
}

// badCall is a call and the return code that it must have; nil where it is just
// harmless.
type badCall struct {
	name string
	code error
	call func() error
}

// refuses makes calls and expects their codes, and no panic.
func (e *env) refuses(calls []badCall) {
	e.t.Helper()
	for _, c := range calls {
		err := func() (err error) {
			defer func() {
				if p := recover(); p != nil {
					err = fmt.Errorf("panic: %v", p)
				}
			}()
			return c.call()
		}()
		if !errors.Is(err, c.code) {
			e.t.Errorf("%s: got error %v, want %v", c.name, err, c.code)
		}
	}
}

// only drops a call's result but for its error.
func only[T any](_ T, err error) error { return err }

// touch uses a descriptor whose memory is gone, and unmapped: it has nothing to
// say, and takes nothing.
func touch(d *via.Descriptor) error {
	d.Reset(via.OpRdmaWrite)
	d.SetImmediate(1)
	d.SetFence()
	if d.SetRemote(1, 1) || d.AddSegment(1, 1, 1) || d.Status() != 0 || d.Length() != 0 || d.Immediate() != 0 || d.Bytes() != nil {
		return errors.New("a descriptor without memory takes a segment or says something")
	}
	return nil
}

func badArguments(e *env) {
	e.connect()
	x, y := e.client, e.server
	nic, l := x.nic, x.nic.Limits()
	ctx := e.timeout()
	long := e.f.Address(strings.Repeat("x", l.MaxDiscriminatorLen+1))
	good := via.ViConfig{SendCQ: x.cq, RecvCQ: x.cq, SendDepth: 1, RecvDepth: 1}
	vi := func(change func(a *via.ViAttributes, c *via.ViConfig)) func() error {
		return func() error {
			a, c := x.attributes(), good
			change(&a, &c)
			return only(nic.CreateVi(a, c))
		}
	}
	idle := x.newVI(x.attributes())
	for _, host := range []string{"", "a\x00b", strings.Repeat("y", 300)} {
		// The fabric decides whether that is no address or one without a
		// listener.
		_, err := idle.Connect(ctx, via.Address{Host: host})
		if !errors.Is(err, via.ErrInvalidParameter) && !errors.Is(err, via.ErrNotReachable) {
			e.t.Errorf("connect to host %.10q of %d bytes: got error %v", host, len(host), err)
		}
	}
	local := via.MemAttributes{Ptag: x.tag}
	memory := x.buffer(64).b
	e.refuses([]badCall{
		{"create vi with zero attributes", via.ErrInvalidReliability, func() error { return only(nic.CreateVi(via.ViAttributes{}, good)) }},
		{"create vi with two levels", via.ErrInvalidReliability, vi(func(a *via.ViAttributes, _ *via.ViConfig) { a.Reliability = reliable })},
		{"create vi with zero tag", via.ErrInvalidPtag, vi(func(a *via.ViAttributes, _ *via.ViConfig) { a.Ptag = via.Ptag{} })},
		{"create vi with foreign tag", via.ErrInvalidPtag, vi(func(a *via.ViAttributes, _ *via.ViConfig) { a.Ptag = y.tag })},
		{"create vi on a foreign queue", via.ErrInvalidParameter, vi(func(_ *via.ViAttributes, c *via.ViConfig) { c.SendCQ = y.cq })},
		{"create vi without depth", via.ErrInvalidParameter, vi(func(_ *via.ViAttributes, c *via.ViConfig) { c.SendDepth = 0 })},
		{"create vi of negative depth", via.ErrInvalidParameter, vi(func(_ *via.ViAttributes, c *via.ViConfig) { c.RecvDepth = -1 })},
		{"create vi too deep", via.ErrInvalidParameter, vi(func(_ *via.ViAttributes, c *via.ViConfig) { c.RecvDepth = l.MaxDescriptorsPerQueue + 1 })},
		{"create cq of nothing", via.ErrInvalidParameter, func() error { return only(nic.CreateCQ(0)) }},
		{"create cq too large", via.ErrInvalidParameter, func() error { return only(nic.CreateCQ(l.MaxCQEntries + 1)) }},
		{"resize cq to nothing", via.ErrInvalidParameter, func() error { return x.cq.Resize(0) }},
		{"destroy the zero tag", via.ErrInvalidPtag, func() error { return nic.DestroyPtag(via.Ptag{}) }},
		{"destroy a foreign tag", via.ErrInvalidPtag, func() error { return nic.DestroyPtag(y.tag) }},
		{"map nothing", via.ErrInvalidParameter, func() error { return only(nic.NewArena(0)) }},
		{"map less than nothing", via.ErrInvalidParameter, func() error { return only(nic.NewArena(-1 << 62)) }},
		{"discard outside", via.ErrInvalidParameter, func() error { return x.arena.Discard(len(x.arena.Bytes()), 1) }},
		{"discard with overflow", via.ErrInvalidParameter, func() error { return x.arena.Discard(1, int(^uint(0)>>1)) }},
		{"register nil", via.ErrInvalidParameter, func() error { return only(nic.RegisterMem(nil, local)) }},
		{"register with zero tag", via.ErrInvalidPtag, func() error { return only(nic.RegisterMem(memory, via.MemAttributes{})) }},
		{"set memory attributes with zero tag", via.ErrInvalidPtag, func() error { return x.data.SetAttributes(via.MemAttributes{}) }},
		{"make a descriptor outside", via.ErrInvalidParameter, func() error { return only(x.descs.NewDescriptor(-64, 64)) }},
		{"make a descriptor with overflow", via.ErrInvalidParameter, func() error { return only(x.descs.NewDescriptor(int(^uint(0)>>1), 64)) }},
		{"make a descriptor without control segment", via.ErrInvalidParameter, func() error { return only(x.descs.NewDescriptor(0, 31)) }},
		{"post no send", via.ErrInvalidParameter, func() error { return x.vi.PostSend(nil) }},
		{"stage no send", via.ErrInvalidParameter, func() error { return x.vi.StageSend(nil) }},
		{"post no receive", via.ErrInvalidParameter, func() error { return x.vi.PostRecv(nil) }},
		{"post the zero send", via.ErrInvalidParameter, func() error { return x.vi.PostSend(&via.Descriptor{}) }},
		{"post the zero receive", via.ErrInvalidParameter, func() error { return x.vi.PostRecv(&via.Descriptor{}) }},
		{"post a foreign send", via.ErrInvalidParameter, func() error { return x.vi.PostSend(build(y.desc(0), via.OpSend, nil, nil)) }},
		{"listen at a long name", via.ErrInvalidParameter, func() error { return only(nic.Listen(long)) }},
		{"connect to a long name", via.ErrInvalidParameter, func() error { return only(idle.Connect(ctx, long)) }},
		{"connect to an unknown host", via.ErrNotReachable, func() error { return only(idle.Connect(ctx, via.Address{Host: "no such host"})) }},
		{"request a peer without time", via.ErrInvalidParameter, func() error { return idle.PeerRequest(e.service(), e.service(), 0) }},
		{"result of no request", via.ErrInvalidState, func() error { return only(idle.PeerDone()) }},
		{"wait for no request", via.ErrInvalidState, func() error { return only(idle.PeerWait()) }},
		{"notify of a send without a handler", via.ErrInvalidParameter, func() error { return x.vi.SendNotify(nil) }},
		{"notify of a receive without a handler", via.ErrInvalidParameter, func() error { return x.vi.RecvNotify(nil) }},
		{"notify of an entry without a handler", via.ErrInvalidParameter, func() error { return x.cq.Notify(nil) }},
		{"init no name service", via.ErrInvalidParameter, func() error { return nic.InitNameService(nil) }},
		{"ask no name service", via.ErrNameService, func() error { return only(nic.HostByName(ctx, "server", 0)) }},
		{"discover no hop", via.ErrInvalidParameter, func() error { return only(nic.Discover(ctx, 0)) }},
		{"poll into nothing", nil, func() error { x.cq.Poll(nil); return nil }},
		{"restore the default error handler", nil, func() error { nic.ErrorCallback(nil); nic.ErrorCallback(x.record); return nil }},
	})
	// None of that has done anything.
	e.passes(e.client, e.server)
	e.passes(e.server, e.client)
}

func badStates(e *env) {
	e.connect()
	x := e.client
	ctx := e.timeout()
	connected := x.vi
	broken := x.newVI(x.attributes())
	peer := e.server.newVI(e.server.attributes())
	e.join(broken, peer)
	e.check(peer.Disconnect(), "disconnect")
	e.until("the peer to notice", func() bool { return broken.State() == via.StateError })
	l := e.listen(e.service())
	dial := e.dial(ctx, x.newVI(x.attributes()), l.Addr())
	r, err := l.Wait(ctx)
	e.check(err, "wait for a request")
	calls := []badCall{
		{"accept without a vi", via.ErrInvalidParameter, func() error { return r.Accept(ctx, nil) }},
		{"accept with a foreign vi", via.ErrInvalidParameter, func() error { return r.Accept(ctx, x.vi) }},
		{"accept with a connected vi", via.ErrInvalidState, func() error { return r.Accept(ctx, e.server.vi) }},
		{"listen at an address in use", via.ErrResource, func() error { return only(e.server.nic.Listen(l.Addr())) }},
		{"close a nic in use", via.ErrResource, x.nic.Close},
		{"unmap an arena in use", via.ErrResource, x.arena.Close},
		{"destroy a tag in use", via.ErrResource, func() error { return x.nic.DestroyPtag(x.tag) }},
		{"destroy a queue in use", via.ErrResource, x.cq.Destroy},
		{"wait for a queue with a completion queue", via.ErrInvalidParameter, func() error { return only(connected.SendWait(0)) }},
		{"notify of a queue with a completion queue", via.ErrInvalidParameter, func() error {
			return connected.RecvNotify(func(*via.VI, *via.Descriptor) {})
		}},
	}
	for name, vi := range map[string]*via.VI{"connected": connected, "broken": broken} {
		calls = append(
			calls,
			badCall{name + ": connect", via.ErrInvalidState, func() error { return only(vi.Connect(ctx, l.Addr())) }},
			badCall{name + ": request a peer", via.ErrInvalidState, func() error { return vi.PeerRequest(e.service(), e.service(), caseTimeout) }},
			badCall{name + ": set attributes", via.ErrInvalidState, func() error { return vi.SetAttributes(x.attributes()) }},
			badCall{name + ": destroy", via.ErrResource, vi.Destroy},
		)
	}
	e.refuses(calls)
	e.check(r.Reject(), "reject")
	e.wants(dial.wait(), via.ErrReject, "connect")
	e.passes(e.client, e.server)
}

func goneObjects(e *env) {
	x := e.client
	ctx := e.timeout()
	cq, err := x.nic.CreateCQ(4)
	e.check(err, "create completion queue")
	announced, err := x.nic.CreateVi(x.attributes(), via.ViConfig{SendCQ: cq, RecvCQ: cq, SendDepth: 1, RecvDepth: 1})
	e.check(err, "create vi")
	bare, err := x.nic.CreateVi(x.attributes(), via.ViConfig{SendDepth: 1, RecvDepth: 1})
	e.check(err, "create vi")
	d, m := e.elsewhere(x, x.tag)
	build(d, via.OpSend, nil, nil)
	e.check(announced.Destroy(), "destroy vi")
	e.check(bare.Destroy(), "destroy vi")
	e.check(cq.Destroy(), "destroy completion queue")
	e.check(m.Deregister(), "deregister")
	arena := m.Arena()
	e.check(arena.Close(), "unmap")
	ignore := func(*via.VI, *via.Descriptor) {}
	calls := []badCall{
		{"cq: done", via.ErrInvalidParameter, func() error { _, _, err := cq.Done(); return err }},
		{"cq: wait", via.ErrInvalidParameter, func() error { _, _, err := cq.Wait(via.Infinite); return err }},
		{"cq: notify", via.ErrInvalidParameter, func() error { return cq.Notify(func(*via.VI, bool) {}) }},
		{"cq: resize", via.ErrInvalidParameter, func() error { return cq.Resize(4) }},
		{"cq: destroy", via.ErrInvalidParameter, cq.Destroy},
		{"cq: the rest", nil, func() error { cq.Poll(x.batch[:]); cq.Arm(); cq.FD(); return nil }},
		{"create vi on it", via.ErrInvalidParameter, func() error {
			return only(x.nic.CreateVi(x.attributes(), via.ViConfig{SendCQ: cq, RecvCQ: x.cq, SendDepth: 1, RecvDepth: 1}))
		}},
		{"memory: deregister", via.ErrInvalidParameter, m.Deregister},
		{"memory: set attributes", via.ErrInvalidParameter, func() error { return m.SetAttributes(x.open()) }},
		{"memory: make a descriptor", via.ErrInvalidParameter, func() error { return only(m.NewDescriptor(0, 64)) }},
		{"descriptor: use", nil, func() error { return touch(d) }},
		{"memory: the rest", nil, func() error {
			m.Attributes()
			m.Live()
			m.Handle()
			m.Addr()
			m.Tag()
			return nil
		}},
		{"arena: discard", via.ErrInvalidParameter, func() error { return arena.Discard(0, 1) }},
		{"arena: close", via.ErrInvalidParameter, arena.Close},
	}
	for name, vi := range map[string]*via.VI{"vi": announced, "vi without queues": bare} {
		calls = append(
			calls,
			badCall{name + ": post send", via.ErrInvalidParameter, func() error { return vi.PostSend(d) }},
			badCall{name + ": stage send", via.ErrInvalidParameter, func() error { return vi.StageSend(d) }},
			badCall{name + ": post receive", via.ErrInvalidParameter, func() error { return vi.PostRecv(d) }},
			badCall{name + ": connect", via.ErrInvalidParameter, func() error { return only(vi.Connect(ctx, e.service())) }},
			badCall{name + ": request a peer", via.ErrInvalidParameter, func() error { return vi.PeerRequest(e.service(), e.service(), caseTimeout) }},
			badCall{name + ": disconnect", via.ErrInvalidParameter, vi.Disconnect},
			badCall{name + ": set attributes", via.ErrInvalidParameter, func() error { return vi.SetAttributes(x.attributes()) }},
			badCall{name + ": send done", via.ErrInvalidParameter, func() error { return only(vi.SendDone()) }},
			badCall{name + ": receive done", via.ErrInvalidParameter, func() error { return only(vi.RecvDone()) }},
			badCall{name + ": send wait", via.ErrInvalidParameter, func() error { return only(vi.SendWait(via.Infinite)) }},
			badCall{name + ": receive wait", via.ErrInvalidParameter, func() error { return only(vi.RecvWait(via.Infinite)) }},
			badCall{name + ": notify send", via.ErrInvalidParameter, func() error { return vi.SendNotify(ignore) }},
			badCall{name + ": notify receive", via.ErrInvalidParameter, func() error { return vi.RecvNotify(ignore) }},
			badCall{name + ": result of a request", via.ErrInvalidParameter, func() error { return only(vi.PeerDone()) }},
			badCall{name + ": wait for a request", via.ErrInvalidParameter, func() error { return only(vi.PeerWait()) }},
			badCall{name + ": destroy", via.ErrInvalidParameter, vi.Destroy},
			badCall{name + ": the rest", nil, func() error {
				vi.Doorbell()
				vi.QueuesEmpty()
				vi.Stats()
				vi.SendQueueStats()
				vi.Attributes()
				return nil
			}},
		)
	}
	e.refuses(calls)
	e.connect()
	e.passes(e.client, e.server)
}

func goneNIC(e *env) {
	x := e.client
	addr, ctx := e.service(), e.timeout()
	other := e.f.Open() // of the same provider: it stays
	memory := make([]byte, 64)
	attrs := x.attributes()
	vi, d := x.newVI(attrs), x.desc(1)
	e.client.close()
	nic := x.nic
	e.refuses([]badCall{
		{"close", via.ErrInvalidParameter, nic.Close},
		{"create tag", via.ErrInvalidParameter, func() error { return only(nic.CreatePtag()) }},
		{"destroy tag", via.ErrInvalidParameter, func() error { return nic.DestroyPtag(x.tag) }},
		{"map an arena", via.ErrInvalidParameter, func() error { return only(nic.NewArena(4096)) }},
		{"register", via.ErrInvalidParameter, func() error { return only(nic.RegisterMem(memory, via.MemAttributes{Ptag: x.tag})) }},
		{"create completion queue", via.ErrInvalidParameter, func() error { return only(nic.CreateCQ(4)) }},
		{"create vi", via.ErrInvalidParameter, func() error { return only(nic.CreateVi(attrs, via.ViConfig{SendDepth: 1, RecvDepth: 1})) }},
		{"listen", via.ErrInvalidParameter, func() error { return only(nic.Listen(addr)) }},
		{"discover", via.ErrInvalidParameter, func() error { return only(nic.Discover(ctx, 1)) }},
		{"init name service", via.ErrInvalidParameter, func() error { return nic.InitNameService(&via.Hosts{}) }},
		{"host by name", via.ErrInvalidParameter, func() error { return only(nic.HostByName(ctx, "server", 0)) }},
		{"host by address", via.ErrInvalidParameter, func() error { return only(nic.HostByAddr(ctx, "server")) }},
		{"shut name service down", via.ErrInvalidParameter, nic.ShutdownNameService},
		{"unmap an arena", via.ErrInvalidParameter, x.arena.Close},
		{"deregister", via.ErrInvalidParameter, x.data.Deregister},
		{"make a descriptor", via.ErrInvalidParameter, func() error { return only(x.data.NewDescriptor(0, 64)) }},
		{"use a descriptor", nil, func() error { return touch(d) }},
		{"post send", via.ErrInvalidParameter, func() error { return vi.PostSend(d) }},
		{"send done", via.ErrInvalidParameter, func() error { return only(vi.SendDone()) }},
		{"connect", via.ErrInvalidParameter, func() error { return only(vi.Connect(ctx, addr)) }},
		{"destroy completion queue", via.ErrInvalidParameter, x.cq.Destroy},
		{"the rest", nil, func() error { nic.Name(); nic.Limits(); nic.LookupMemory(1); nic.ErrorCallback(nil); return nil }},
	})
	third := newEnd(e, "third", other)
	e.t.Cleanup(third.close)
	e.client = third
	e.connect()
	e.passes(e.client, e.server)
}

func badDevices(e *env) {
	var provider *hook.FaultProvider
	newEnv(e.t, func(t testing.TB, decorate func(via.Provider) via.Provider) *Fabric {
		return e.open(t, func(p via.Provider) via.Provider {
			provider = hook.Fault(decorate(p), hook.Plan{})
			return provider
		})
	}, plain, e.level)
	e.refuses([]badCall{
		{"open no provider", via.ErrInvalidParameter, func() error { return only(via.OpenNic(nil, "")) }},
		{"open no such device", via.ErrInvalidParameter, func() error { return only(via.OpenNic(provider, "no such device")) }},
		{"open and close", nil, func() error {
			n, err := via.OpenNic(provider, "")
			if err != nil {
				return err
			}
			return n.Close()
		}},
	})
}

// goneHandles uses the handle of a region that is gone, when nothing else has
// its slot and when another region has. It waits for the slot to come again at
// one level: the table of regions is the NIC's, and knows none.
func goneHandles(e *env) {
	e.connect()
	claimed := e.client.nic.Limits().ReliabilityLevels & e.server.nic.Limits().ReliabilityLevels
	for _, x := range []*end{e.client, e.server} {
		b := x.buffer(64)
		old := e.region(x, b, x.open())
		e.check(old.Deregister(), "deregister")
		m, others := old, 1
		// Every slot of the table once: arithmetic of one goroutine.
		if e.level == claimed&-claimed && !testing.Short() {
			others = x.nic.Limits().MaxRegisterRegions + 1
		}
		for range others {
			m = e.region(x, b, x.open())
			if m.Handle()&0xffff == old.Handle()&0xffff {
				break // it has the slot
			}
			e.check(m.Deregister(), "deregister")
		}
		if m.Handle() == old.Handle() {
			e.t.Fatalf("%s: handle %#x comes again with the next region of its slot", x.name, m.Handle())
		}
		if x == e.server {
			e.refused("handle of a region that is gone", via.OpRdmaWrite, 64, &target{old.Addr(), old.Handle()})
			if x.open().EnableRdmaRead && e.client.open().EnableRdmaRead {
				e.refused("handle of a region that is gone, read", via.OpRdmaRead, 64, &target{old.Addr(), old.Handle()})
			}
		}
		for _, op := range []via.Opcode{via.OpSend, via.OpRecv} {
			d := x.desc(1)
			d.Reset(op)
			d.AddSegment(old.Addr(), old.Handle(), 64)
			if op == via.OpSend {
				x.postSend(x.vi, d)
			} else {
				x.postRecv(x.vi, d)
			}
			e.fails(x, d, via.StatusProtectionError)
			e.costs()
		}
		if m.Live() {
			e.check(m.Deregister(), "deregister")
		}
	}
}
