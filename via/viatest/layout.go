package viatest

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/viablk/viablk/via"
)

var layoutCases = []kitCase{
	{
		"DescriptorLayout", EarlyAdopter, "a descriptor has VIA's byte layout: control, address, data segments, little-endian", anyLevel, 0,
		descriptorLayout,
	},
	{
		"StatusIsWrittenInPlace", EarlyAdopter, "completion writes length, immediate data and status into the descriptor's control segment", anyLevel, 0,
		statusInPlace,
	},
	{
		"ConsumerFieldsSurvive", EarlyAdopter, "the provider changes only what a completion writes", anyLevel, 0,
		consumerFieldsSurvive,
	},
	{
		"NextIsNotUsed", EarlyAdopter, "what stands where VIA links descriptors, before a post or after it, changes nothing", anyLevel, 0,
		nextIsNotUsed,
	},
	{
		"MinimumLimits", EarlyAdopter, "a NIC offers 252 segments, 32 KiB transfers and the level of the connection", anyLevel, 0,
		minimumLimits,
	},
}

// hexOf strips the spaces that make golden bytes legible.
func hexOf(e *env, s string) []byte {
	e.t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	e.check(err, "golden bytes")
	return b
}

func descriptorLayout(e *env) {
	const none = "0000000000000000 00000000 "
	le32 := func(v uint32) string { return fmt.Sprintf("%x", binary.LittleEndian.AppendUint32(nil, v)) }
	le64 := func(v uint64) string { return fmt.Sprintf("%x", binary.LittleEndian.AppendUint64(nil, v)) }
	x := e.client
	a, b := x.buffer(0x1234), x.buffer(5)
	data := func(s buf) string { return le64(s.addr()) + le32(s.mem.Handle()) + le32(uint32(len(s.b))) }

	d := build(x.desc(2), via.OpSend, nil, []buf{a, b})
	d.SetImmediate(0x11223344)
	e.same(d.Bytes()[:64], hexOf(e, none+"0200 0400 00000000 44332211 39120000 00000000"+data(a)+data(b)), "send with immediate data")

	d = build(x.desc(2), via.OpRdmaWrite, &target{0x0102030405060708, 0x0a0b0c0d}, []buf{b})
	e.same(d.Bytes()[:64], hexOf(e, none+"0200 0100 00000000 00000000 05000000 00000000"+
		"0807060504030201 0d0c0b0a 00000000"+data(b)), "rdma write")

	d = build(x.desc(2), via.OpRdmaRead, &target{1, 2}, []buf{b})
	d.SetFence()
	e.same(d.Bytes()[:64], hexOf(e, none+"0200 0a00 00000000 00000000 05000000 00000000"+
		"0100000000000000 02000000 00000000"+data(b)), "fenced rdma read")

	d = build(x.desc(1), via.OpRecv, nil, []buf{b})
	e.same(d.Bytes()[:48], hexOf(e, none+"0100 0000 00000000 00000000 05000000 00000000"+data(b)), "receive")

	if got := via.DescriptorSize(252); got != 4096 {
		e.t.Errorf("a descriptor of 252 segments takes %d bytes, want one page", got)
	}
}

func statusInPlace(e *env) {
	e.connect()
	dst, src := e.server.buffer(64), e.client.buffer(16)
	r := e.server.recv(dst)
	s := e.client.sendImmediate(0xa1b2c3d4, src)
	e.ok(e.client, s)
	e.ok(e.server, r)
	word := func(d *via.Descriptor, off int) uint32 { return binary.LittleEndian.Uint32(d.Bytes()[off:]) }
	if got := word(r, 20); got != 0xa1b2c3d4 {
		e.t.Errorf("receive: immediate data at offset 20 is %#x", got)
	}
	if got := word(r, 24); got != 16 {
		e.t.Errorf("receive: length at offset 24 is %d, want the 16 bytes that came", got)
	}
	if got := word(r, 28); got != 0x90001 {
		e.t.Errorf("receive: status at offset 28 is %#x, want done, receive, immediate", got)
	}
	if got := word(s, 28); got != 0x00001 {
		e.t.Errorf("send: status at offset 28 is %#x, want done", got)
	}
}

func consumerFieldsSurvive(e *env) {
	e.connect()
	dst, src := e.server.buffer(64), e.client.buffer(16)
	r := build(e.server.desc(1), via.OpRecv, nil, []buf{dst})
	r.User = 7
	before := append([]byte(nil), r.Bytes()...)
	e.server.postRecv(e.server.vi, r)
	e.client.send(src)
	c := e.ok(e.server, r)
	after := append([]byte(nil), r.Bytes()...)
	clear(before[:12]) // the provider's link
	clear(after[:12])
	clear(before[24:32]) // length and status
	clear(after[24:32])
	e.same(after, before, "descriptor after completion")
	if c.Descriptor.User != 7 || c.VI != e.server.vi {
		e.t.Errorf("completion does not lead to the consumer's descriptor and vi")
	}
}

// nextIsNotUsed names, in the fields Next and NextHandle of descriptors, the
// wrong descriptor of the queue, one that was never posted, and nothing that
// exists.
func nextIsNotUsed(e *env) {
	e.connect()
	const messages = 3
	link := func(d *via.Descriptor, addr uint64, handle uint32) {
		binary.LittleEndian.PutUint64(d.Bytes(), addr)
		binary.LittleEndian.PutUint32(d.Bytes()[8:], handle)
	}
	scribble := func(x *end, list []*via.Descriptor, shift int) {
		other := x.desc(1)
		other.Reset(via.OpSend)
		for i, d := range list {
			switch (i + shift) % messages {
			case 0:
				link(d, x.descs.Addr(), x.descs.Handle()) // the first that the case made
			case 1:
				link(d, x.descs.Addr()+uint64(x.dused-len(other.Bytes())), x.descs.Handle())
			default:
				link(d, ^uint64(0), ^uint32(0))
			}
		}
	}
	var sends, receives []*via.Descriptor
	var arrived []buf
	for i := range messages {
		dst, src := e.server.buffer(64), e.client.buffer(64)
		fill(src.b, i)
		arrived = append(arrived, dst)
		receives = append(receives, build(e.server.desc(1), via.OpRecv, nil, []buf{dst}))
		sends = append(sends, build(e.client.desc(1), via.OpSend, nil, []buf{src}))
	}
	scribble(e.server, receives, 0)
	scribble(e.client, sends, 0)
	for _, d := range receives {
		e.server.postRecv(e.server.vi, d)
	}
	scribble(e.server, receives, 1)
	for _, d := range sends {
		e.client.stage(d)
	}
	scribble(e.client, sends, 1)
	e.client.vi.Doorbell()
	for i := range messages {
		e.ok(e.client, sends[i])
		if c := e.ok(e.server, receives[i]); c.Length != 64 {
			e.t.Errorf("message %d has %d bytes", i, c.Length)
		}
		e.same(arrived[i].b, pattern(64, i), fmt.Sprintf("message %d", i))
	}
}

func minimumLimits(e *env) {
	for _, x := range []*end{e.client, e.server} {
		l := x.nic.Limits()
		if l.MaxSegmentsPerDesc < 252 || l.MaxTransferSize < 32<<10 {
			e.t.Errorf("%s: %d segments and %d bytes per descriptor", x.name, l.MaxSegmentsPerDesc, l.MaxTransferSize)
		}
		if l.ReliabilityLevels&e.level == 0 {
			e.t.Errorf("%s: no %v", x.name, e.level)
		}
		if l.RdmaReadLevels&^l.ReliabilityLevels != 0 {
			e.t.Errorf("%s: rdma read at levels that the nic has not", x.name)
		}
		if l.MaxDiscriminatorLen < 16 {
			e.t.Errorf("%s: discriminators of %d bytes", x.name, l.MaxDiscriminatorLen)
		}
		if l.MaxDescriptorsPerQueue < queueDepth || l.MaxCQEntries < 4*queueDepth || l.MaxVI < 128 {
			e.t.Errorf("%s: queues too small for a storage connection: %+v", x.name, l)
		}
	}
}
