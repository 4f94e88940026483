package viatest

import (
	"slices"
	"sync/atomic"

	"github.com/viablk/viablk/via"
)

var protectionCases = []kitCase{
	{"RemoteWriteRefused", Functional, "an RDMA Write that the region or the VI does not allow touches nothing, is reported, and costs a reliable connection", anyLevel, 0, remoteWriteRefused},
	{"RemoteReadRefused", Full, "an RDMA Read that the region or the VI does not allow reveals nothing and breaks the connection", reliable, NeedsRdmaRead, remoteReadRefused},
	{"LocalSegmentRefused", EarlyAdopter, "a local segment outside a live region of the VI's tag is a protection error", anyLevel, 0, localSegmentRefused},
	{"ReceiveSegmentRefused", EarlyAdopter, "a receive's segments are checked as a send's", anyLevel, 0, receiveSegmentRefused},
	{"SetAttributesRevokes", Functional, "withdrawing remote access takes effect at once, and so does granting it", anyLevel, 0, setAttributesRevokes},
	{"SetAttributesMovesTag", Functional, "moving a region to another tag hides it from the peers of the first", anyLevel, 0, setAttributesMovesTag},
	{"DeregisterWaits", Functional, "after Deregister no RDMA access that began before it touches the memory", anyLevel, 0, deregisterWaits},
	{"RevokeWaits", Functional, "after SetAttributes no RDMA access under the former rights touches the memory", anyLevel, 0, revokeWaits},
	{"HandleIsNotReused", Functional, "a handle of a deregistered region is refused when the memory is registered again", anyLevel, 0, handleIsNotReused},
}

// refusal is a remote operand that must be refused.
type refusal struct {
	name  string
	bytes int
	to    func(e *env, guarded buf) *target
}

// region registers a piece of the server's data once more.
func (e *env) region(x *end, b buf, attrs via.MemAttributes) *via.Memory {
	e.t.Helper()
	m, err := x.nic.RegisterMem(b.b, attrs)
	e.check(err, x.name+": register region")
	return m
}

// withRegion returns a target in a region that exists for the case only.
func withRegion(attrs func(x *end, a *via.MemAttributes)) func(*env, buf) *target {
	return func(e *env, b buf) *target {
		a := e.server.open()
		attrs(e.server, &a)
		m := e.region(e.server, b, a)
		e.t.Cleanup(func() { _ = m.Deregister() }) // may be done
		return &target{m.Addr(), m.Handle()}
	}
}

// refusals lists the remote operands that fail the check for one operation.
func refusals() []refusal {
	return []refusal{
		{"handle 0", 8, func(e *env, b buf) *target { return &target{b.addr(), 0} }},
		{"forged index", 8, func(e *env, b buf) *target { return &target{b.addr(), b.mem.Handle() ^ 0x8000} }},
		{"forged generation", 8, func(e *env, b buf) *target { return &target{b.addr(), b.mem.Handle() ^ 0x10000} }},
		{"handle of the requester", 8, func(e *env, b buf) *target {
			return &target{e.client.data.Addr(), e.client.descs.Handle()}
		}},
		{"region without remote access", 8, func(e *env, b buf) *target {
			return &target{e.server.descs.Addr(), e.server.descs.Handle()}
		}},
		{"one byte past the end", 65, withRegion(func(*end, *via.MemAttributes) {})},
		{"one byte before the start", 8, func(e *env, b buf) *target {
			t := withRegion(func(*end, *via.MemAttributes) {})(e, b)
			t.addr--
			return t
		}},
		{"far outside", 8, func(e *env, b buf) *target { return &target{b.addr() + 1<<40, b.mem.Handle()} }},
		{"address 0", 8, func(e *env, b buf) *target { return &target{0, b.mem.Handle()} }},
		{"end of the address space", 8, func(e *env, b buf) *target { return &target{^uint64(0) - 3, b.mem.Handle()} }},
		{"wrap to the region's start", 64, func(e *env, b buf) *target { return &target{b.addr() - 1<<63, b.mem.Handle()} }},
		{"deregistered", 8, func(e *env, b buf) *target {
			m := e.region(e.server, b, e.server.open())
			e.check(m.Deregister(), "deregister")
			return &target{m.Addr(), m.Handle()}
		}},
		{"another tag", 8, func(e *env, b buf) *target {
			tag, err := e.server.nic.CreatePtag()
			e.check(err, "create tag")
			return withRegion(func(x *end, a *via.MemAttributes) { a.Ptag = tag })(e, b)
		}},
	}
}

// refused runs one refused operation and checks what it costs, with the
// callback that names it at the target and no byte of either side changed.
func (e *env) refused(name string, op via.Opcode, bytes int, to *target) {
	e.t.Helper()
	local := e.client.buffer(bytes)
	fill(local.b, 77)
	before := append([]byte(nil), e.server.arena.Bytes()[:descriptorBytes+e.server.used]...)
	d := e.client.postSend(e.client.vi, build(e.client.desc(2), op, to, []buf{local}))
	c := e.completion(e.client, d)
	code := via.AsyncRdmaWriteProt
	if op == via.OpRdmaRead {
		code = via.AsyncRdmaReadProt
		if c.Status&via.StatusErrorMask != via.StatusRdmaProtError {
			e.t.Errorf("%s: the reader's descriptor says %v, want a remote protection error", name, c.Status)
		}
	} else if !slices.Contains(refusedWrite[e.level], c.Status&via.StatusErrorMask) {
		e.t.Errorf("%s: the writer's descriptor says %v", name, c.Status)
	}
	e.raised(e.server, code)
	e.same(e.server.arena.Bytes()[:len(before)], before, name+": target memory")
	e.same(local.b, pattern(bytes, 77), name+": requester's memory")
	e.costs()
}

// refusedWrite is what the descriptor of a refused RDMA Write may say: reliable
// delivery may not know yet when it is done.
var refusedWrite = map[via.ReliabilityLevel][]via.Status{
	via.UnreliableDelivery: {0},
	via.ReliableDelivery:   {0, via.StatusRdmaProtError, via.StatusFlushed},
	via.ReliableReception:  {via.StatusRdmaProtError},
}

func remoteRefused(e *env, op via.Opcode, wrongWay via.MemAttributes) {
	e.connect()
	guarded := e.server.buffer(4096)
	fill(guarded.b, 5)
	list := append(refusals(), refusal{"the other direction only", 8, withRegion(func(_ *end, a *via.MemAttributes) {
		a.EnableRdmaRead, a.EnableRdmaWrite = wrongWay.EnableRdmaRead, wrongWay.EnableRdmaWrite
	})})
	for _, r := range list {
		e.refused(r.name, op, r.bytes, r.to(e, guarded.part(512, 64)))
	}
	// The region allows it, the VI does not.
	attrs := e.server.attributes()
	attrs.EnableRdmaRead, attrs.EnableRdmaWrite = wrongWay.EnableRdmaRead, wrongWay.EnableRdmaWrite
	e.client.vi, e.server.vi = e.client.newVI(e.client.attributes()), e.server.newVI(attrs)
	e.join(e.client.vi, e.server.vi)
	e.refused("vi without remote access", op, 8, at(guarded))
}

func remoteWriteRefused(e *env) {
	reads := e.server.open().EnableRdmaRead
	remoteRefused(e, via.OpRdmaWrite, via.MemAttributes{EnableRdmaRead: reads})
}

func remoteReadRefused(e *env) {
	remoteRefused(e, via.OpRdmaRead, via.MemAttributes{EnableRdmaWrite: true})
}

// locals lists local segments that fail the check.
func locals(e *env, x *end) map[string]target {
	tag, err := x.nic.CreatePtag()
	e.check(err, "create tag")
	b := x.buffer(64)
	other := e.region(x, b, via.MemAttributes{Ptag: tag})
	small := e.region(x, b, via.MemAttributes{Ptag: x.tag})
	gone := e.region(x, b, via.MemAttributes{Ptag: x.tag})
	e.check(gone.Deregister(), "deregister")
	e.t.Cleanup(func() {
		e.check(other.Deregister(), "deregister")
		e.check(small.Deregister(), "deregister")
	})
	return map[string]target{
		"handle 0":         {b.addr(), 0},
		"another tag":      {other.Addr(), other.Handle()},
		"deregistered":     {gone.Addr(), gone.Handle()},
		"one byte too far": {small.Addr() + 1, small.Handle()},
		"one byte before":  {small.Addr() - 1, small.Handle()},
		"wrap":             {^uint64(0) - 3, small.Handle()},
		"forged handle":    {b.addr(), small.Handle() ^ 0x10000},
	}
}

func localSegmentRefused(e *env) {
	e.connect()
	for name, seg := range locals(e, e.client) {
		e.server.recv(e.server.buffer(64))
		d := e.client.desc(1)
		d.Reset(via.OpSend)
		d.AddSegment(seg.addr, seg.handle, 64)
		e.client.postSend(e.client.vi, d)
		if c := e.completion(e.client, d); c.Status&via.StatusErrorMask != via.StatusProtectionError {
			e.t.Errorf("%s: completed with %v, want a protection error", name, c.Status)
		}
		e.costs()
	}
}

func receiveSegmentRefused(e *env) {
	e.connect()
	for name, seg := range locals(e, e.server) {
		d := e.server.desc(1)
		d.Reset(via.OpRecv)
		d.AddSegment(seg.addr, seg.handle, 64)
		e.server.postRecv(e.server.vi, d)
		if c := e.completion(e.server, d); c.Status&via.StatusErrorMask != via.StatusProtectionError {
			e.t.Errorf("%s: completed with %v, want a protection error", name, c.Status)
		}
		e.costs()
	}
}

func setAttributesRevokes(e *env) {
	e.connect()
	b := e.server.buffer(64)
	m := e.region(e.server, b, e.server.open())
	defer func() { e.check(m.Deregister(), "deregister") }()
	to := &target{m.Addr(), m.Handle()}
	e.ok(e.client, e.client.write(to, e.client.buffer(64)))
	e.marker(e.client, e.server)
	e.check(m.SetAttributes(via.MemAttributes{Ptag: e.server.tag}), "revoke")
	e.refused("revoked", via.OpRdmaWrite, 64, to)
	e.check(m.SetAttributes(e.server.open()), "grant")
	to = &target{m.Addr(), m.Handle()} // a device that names regions has given another
	e.ok(e.client, e.client.write(to, e.client.buffer(64)))
	e.marker(e.client, e.server)
}

func setAttributesMovesTag(e *env) {
	e.connect()
	tag, err := e.server.nic.CreatePtag()
	e.check(err, "create tag")
	m := e.region(e.server, e.server.buffer(64), e.server.open())
	attrs := e.server.open()
	attrs.Ptag = tag
	e.check(m.SetAttributes(attrs), "move")
	if got := m.Attributes(); got != attrs {
		e.t.Errorf("attributes are %+v, want %+v", got, attrs)
	}
	e.wants(e.server.nic.DestroyPtag(tag), via.ErrResource, "destroy the tag in use")
	e.refused("moved", via.OpRdmaWrite, 64, &target{m.Addr(), m.Handle()})
	e.check(m.Deregister(), "deregister")
	e.check(e.server.nic.DestroyPtag(tag), "destroy the tag")
}

// withdrawWhileWritten takes a region's access away while the peer writes to it
// without a pause, and checks that the memory rests afterwards.
func withdrawWhileWritten(e *env, withdraw func(m *via.Memory) error) {
	const rounds = 12
	size := min(1<<20, int(maxTransfer(e))) // long enough to be in flight most of the time
	e.connect()
	b := e.server.buffer(size)
	src := [2]buf{e.client.buffer(size), e.client.buffer(size)}
	fill(src[0].b, 1)
	fill(src[1].b, 2)
	now := pattern(size, 0) // its pages exist: the copy is quick
	for range rounds {
		e.client.dused = 0
		m := e.region(e.server, b, e.server.open())
		to := &target{m.Addr(), m.Handle()}
		var written atomic.Int64
		var told atomic.Bool
		ended := make(chan struct{})
		go func() { // drives the client until the write is refused
			defer close(ended)
			for i := 0; e.client.vi.State() == via.StateConnected && !told.Load(); i++ {
				if send, _ := e.client.vi.QueuesEmpty(); send {
					e.client.dused = 0
					e.client.write(to, src[i%2])
				}
				written.Add(int64(e.client.poll()))
				pause()
			}
		}()
		e.untilBy("some writes", func() bool { return written.Load() > 3 }, e.server)
		e.check(withdraw(m), "withdraw")
		backwards(now, b.b)
		e.untilBy("the refusal, of a whole write or of the rest of one", func() bool {
			return e.server.count(via.AsyncRdmaWriteProt)+e.server.count(via.AsyncRdmaWriteAbort) != 0
		}, e.server)
		told.Store(true)
		<-ended
		e.same(b.b, now, "memory after its access was withdrawn")
		if m.Live() {
			e.check(m.Deregister(), "deregister")
		}
		e.costs()
	}
}

// backwards copies memory from its end, against the direction in which a late
// write would run ahead of the copy.
func backwards(dst, src []byte) {
	const chunk = 4096
	for end := len(src); end > 0; end -= chunk {
		start := max(end-chunk, 0)
		copy(dst[start:end], src[start:end])
	}
}

func deregisterWaits(e *env) {
	withdrawWhileWritten(e, (*via.Memory).Deregister)
}

func revokeWaits(e *env) {
	withdrawWhileWritten(e, func(m *via.Memory) error {
		return m.SetAttributes(via.MemAttributes{Ptag: e.server.tag})
	})
}

func handleIsNotReused(e *env) {
	e.connect()
	b := e.server.buffer(64)
	fill(b.b, 5)
	seen := make(map[uint32]bool)
	first := e.region(e.server, b, e.server.open())
	old := &target{first.Addr(), first.Handle()}
	e.check(first.Deregister(), "deregister")
	seen[old.handle] = true
	for range 1000 {
		m := e.region(e.server, b, e.server.open())
		if seen[m.Handle()] {
			e.t.Fatalf("handle %#x comes again", m.Handle())
		}
		seen[m.Handle()] = true
		e.check(m.Deregister(), "deregister")
	}
	m := e.region(e.server, b, e.server.open())
	e.refused("handle of an earlier registration", via.OpRdmaWrite, 64, old)
	e.check(m.Deregister(), "deregister")
}
