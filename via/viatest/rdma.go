package viatest

import (
	"bytes"

	"github.com/viablk/viablk/via"
	"pgregory.net/rapid"
)

var rdmaCases = []kitCase{
	{"WriteConsumesNothing", Functional, "an RDMA Write changes memory and consumes no receive", anyLevel, 0, writeConsumesNothing},
	{"WriteWithImmediate", Functional, "an RDMA Write with immediate data consumes one receive in order, which names the operation and its length", anyLevel, 0, writeWithImmediate},
	{"WriteGathers", Functional, "an RDMA Write gathers segments into one remote range", anyLevel, 0, writeGathers},
	{"WriteModel", Functional, "RDMA Writes change just the bytes they name", anyLevel, 0, writeModel},
	{"WriteOfNothing", Functional, "an RDMA Write of no bytes needs no remote memory", anyLevel, 0, writeOfNothing},
	{"BigWrite", Functional, "an RDMA Write of the maximum transfer size passes", anyLevel, 0, bigWrite},
	{"ReadScatters", Full, "an RDMA Read scatters one remote range over segments", reliable, NeedsRdmaRead, readScatters},
	{"ReadModel", Full, "RDMA Reads return just the bytes they name", reliable, NeedsRdmaRead, readModel},
	{"ReadOfNothing", Full, "an RDMA Read of no bytes needs no remote memory", reliable, NeedsRdmaRead, readOfNothing},
	{"BigRead", Full, "an RDMA Read of the maximum transfer size passes", reliable, NeedsRdmaRead, bigRead},
	{"ManyReads", Full, "a full queue of RDMA Reads completes in order", reliable, NeedsRdmaRead, manyReads},
	{"PeerAttributes", Functional, "a connect returns what RDMA the peer's VI allows", anyLevel, 0, peerAttributes},
	{"ReadClaim", Full, "RDMA Read works as far as the limits say, and is refused beyond", anyLevel, 0, readClaim},
}

// marker sends a message that the peer receives after all that was posted
// before. At unreliable delivery that is one of several, see mark.
func (e *env) marker(from, to *end) {
	e.t.Helper()
	if e.unreliable() {
		e.passes(from, to)
		return
	}
	r := to.recv()
	s := from.send()
	e.ok(from, s)
	e.ok(to, r)
}

func writeConsumesNothing(e *env) {
	e.connect()
	src, dst := e.client.buffer(3000), e.server.buffer(3000)
	fill(src.b, 4)
	r := e.server.recv(e.server.buffer(16))
	e.op(e.ok(e.client, e.client.write(at(dst), src)), via.StatusOpRdmaWrite)
	e.quiet("after an rdma write")
	s := e.client.send()
	e.ok(e.client, s)
	e.op(e.ok(e.server, r), via.StatusOpReceive)
	e.same(dst.b, pattern(3000, 4), "written memory")
}

func writeWithImmediate(e *env) {
	e.connect()
	src, dst := e.client.buffer(100), e.server.buffer(100)
	fill(src.b, 5)
	var got []*via.Descriptor
	var mem []buf
	for range 3 {
		b := e.server.buffer(32)
		fill(b.b, 6)
		mem, got = append(mem, b), append(got, e.server.recv(b))
	}
	e.client.sendImmediate(1)
	w := e.client.writeImmediate(2, at(dst), src)
	e.client.sendImmediate(3)
	e.op(e.ok(e.client, w), via.StatusOpRdmaWrite)
	for i, d := range got {
		c := e.ok(e.server, d)
		want := via.StatusOpReceive
		if i == 1 {
			want = via.StatusOpRemoteWrite
		}
		e.op(c, want)
		if c.Status&via.StatusImmediate == 0 || c.Immediate != uint32(i+1) {
			e.t.Errorf("receive %d: immediate data %d, status %v", i, c.Immediate, c.Status)
		}
		if i == 1 && c.Length != 100 {
			e.t.Errorf("the receive of an RDMA Write of 100 bytes has length %d", c.Length)
		}
	}
	e.same(dst.b, pattern(100, 5), "written memory")
	e.same(mem[1].b, pattern(32, 6), "memory of the receive that the write consumed")
}

func writeGathers(e *env) {
	e.connect()
	for _, n := range []int{1, 2, 252} {
		src, dst := e.client.buffer(10000), e.server.buffer(10000)
		fill(src.b, n)
		e.ok(e.client, e.client.write(at(dst), cut(src, n)...))
		e.marker(e.client, e.server)
		e.same(dst.b, pattern(10000, n), "written memory")
	}
}

// rdmaModel compares random RDMA operations with copies between byte arrays.
func rdmaModel(e *env, op via.Opcode) {
	e.connect()
	const room = 20000
	local, remote := e.client.buffer(room), e.server.buffer(room)
	seed := 0
	rapid.Check(e.t, func(rt *rapid.T) {
		e.client.dused, e.server.dused = 0, 0
		seed++
		fill(local.b, seed)
		fill(remote.b, -seed)
		n := rapid.IntRange(0, room/2).Draw(rt, "length")
		from := rapid.IntRange(0, room-n).Draw(rt, "local offset")
		to := rapid.IntRange(0, room-n).Draw(rt, "remote offset")
		mine := append([]byte(nil), local.b...)
		theirs := append([]byte(nil), remote.b...)
		if op == via.OpRdmaWrite {
			copy(theirs[to:to+n], mine[from:])
		} else {
			copy(mine[from:from+n], theirs[to:])
		}
		segments := cuts(rt, local.part(from, n), "segment")
		d := build(e.client.desc(1+len(segments)), op, at(remote.part(to, n)), segments)
		delete(e.client.seen, d)
		e.client.postSend(e.client.vi, d)
		if c := e.ok(e.client, d); int(c.Length) != n {
			rt.Fatalf("completion says %d bytes, want %d", c.Length, n)
		}
		e.marker(e.client, e.server)
		e.same(local.b, mine, "local memory")
		e.same(remote.b, theirs, "remote memory")
	})
}

func writeModel(e *env) { rdmaModel(e, via.OpRdmaWrite) }
func readModel(e *env)  { rdmaModel(e, via.OpRdmaRead) }

// nowhere is a remote operand that no NIC has.
var nowhere = &target{^uint64(0), 0}

func writeOfNothing(e *env) {
	e.connect()
	e.ok(e.client, e.client.write(nowhere))
	e.ok(e.client, e.client.write(nowhere, e.client.buffer(0)))
	r := e.server.recv()
	e.ok(e.client, e.client.writeImmediate(8, nowhere))
	if c := e.ok(e.server, r); c.Immediate != 8 {
		e.t.Errorf("immediate data is %d, want 8", c.Immediate)
	}
	e.marker(e.client, e.server)
}

func readOfNothing(e *env) {
	e.connect()
	e.ok(e.client, e.client.read(nowhere, e.client.buffer(0)))
	e.marker(e.client, e.server)
}

func bigWrite(e *env) {
	e.connect()
	size := int(maxTransfer(e))
	src, dst := e.client.buffer(size), e.server.buffer(size)
	fill(src.b, 3)
	want := pattern(size, 3)
	for range bigWrites {
		e.ok(e.client, e.client.write(at(dst), src))
		e.marker(e.client, e.server)
		if !e.unreliable() || bytes.Equal(dst.b, want) {
			break // parts may be lost: a queue of the medium is shorter
		}
	}
	e.same(dst.b, want, "written memory")
}

// bigWrites is how often a long Write is repeated that may lose a part.
const bigWrites = 20

func bigRead(e *env) {
	e.connect()
	size := int(maxTransfer(e))
	src, dst := e.server.buffer(size), e.client.buffer(size)
	fill(src.b, 3)
	e.ok(e.client, e.client.read(at(src), dst))
	e.same(dst.b, pattern(size, 3), "read memory")
}

func readScatters(e *env) {
	e.connect()
	for _, n := range []int{1, 2, 252} {
		src, dst := e.server.buffer(10000), e.client.buffer(10000)
		fill(src.b, n)
		c := e.ok(e.client, e.client.read(at(src), cut(dst, n)...))
		e.op(c, via.StatusOpRdmaRead)
		e.same(dst.b, pattern(10000, n), "read memory")
	}
	e.quiet("after rdma reads")
}

func manyReads(e *env) {
	e.connect()
	src := e.server.buffer(queueDepth * 64)
	fill(src.b, 1)
	dst := e.client.buffer(queueDepth * 64)
	var posted []*via.Descriptor
	for i := range queueDepth {
		posted = append(posted, e.client.read(at(src.part(64*i, 64)), dst.part(64*i, 64)))
	}
	for _, d := range posted {
		e.ok(e.client, d)
	}
	e.same(dst.b, pattern(queueDepth*64, 1), "read memory")
}

func peerAttributes(e *env) {
	for _, writes := range []bool{false, true} {
		attrs := e.server.attributes()
		attrs.EnableRdmaWrite, attrs.EnableRdmaRead = writes, false
		client, server := e.client.newVI(e.client.attributes()), e.server.newVI(attrs)
		addr := e.service()
		l, err := e.server.nic.Listen(addr)
		e.check(err, "listen")
		dial := e.dial(e.timeout(), client, addr)
		r, err := l.Wait(e.timeout())
		e.check(err, "wait for a connection")
		if got := r.Attributes(); !got.EnableRdmaWrite || got.MaxTransferSize != attrs.MaxTransferSize || got.Reliability != attrs.Reliability {
			e.t.Errorf("the request carries %+v", got)
		}
		e.check(r.Accept(e.timeout(), server), "accept")
		e.check(dial.wait(), "connect")
		if dial.attrs.EnableRdmaWrite != writes || dial.attrs.EnableRdmaRead {
			e.t.Errorf("the acceptor allows writes %v; the requester hears %+v", writes, dial.attrs)
		}
		e.check(l.Close(), "close listener")
	}
}

func readClaim(e *env) {
	x := e.client
	claimed := x.nic.Limits().RdmaReadLevels&e.level != 0
	attrs := x.attributes()
	attrs.EnableRdmaRead = true
	vi, err := x.nic.CreateVi(attrs, via.ViConfig{SendCQ: x.cq, RecvCQ: x.cq, SendDepth: 1, RecvDepth: 1})
	if claimed {
		e.check(err, "create vi that allows rdma read")
		e.check(vi.Destroy(), "destroy vi")
		return
	}
	e.wants(err, via.ErrInvalidRdmaRead, "create vi that allows rdma read")
	e.connect()
	dst := e.server.buffer(8)
	e.fails(x, x.read(at(dst), x.buffer(8)), via.StatusFormatError)
	e.costs()
}
