package viatest

import (
	"github.com/viablk/viablk/via"
)

var memoryCases = []kitCase{
	{"TwoRegistrations", EarlyAdopter, "the same memory registered twice has two handles, each with its own life", anyLevel, 0, twoRegistrations},
	{"RegisterRefusals", EarlyAdopter, "registration refuses no bytes, foreign tags, remote access outside an arena", anyLevel, 0, registerRefusals},
	{"RegisterForeignMemory", EarlyAdopter, "memory that is no arena's may be registered for local use", anyLevel, 0, registerForeignMemory},
	{"DeregisterTwice", EarlyAdopter, "the second Deregister is an invalid parameter, and so are the attributes of what is gone", anyLevel, 0, deregisterTwice},
	{"DeregisterAll", EarlyAdopter, "regions deregistered at once are gone for peers; one that was gone before is an invalid parameter, and keeps no other", anyLevel, 0, deregisterAll},
	{"ArenaRules", EarlyAdopter, "an arena with regions does not unmap, and unmaps once", anyLevel, 0, arenaRules},
	{"ArenaDiscard", EarlyAdopter, "a discarded range reads as zeroes, its surroundings and registrations stay", anyLevel, 0, arenaDiscard},
	{"UnalignedRegions", EarlyAdopter, "regions begin and end at any byte, and protect to the byte", anyLevel, 0, unalignedRegions},
	{"RegisterWhileConnected", EarlyAdopter, "regions registered after the connection are reachable at once, in new arenas too", anyLevel, 0, registerWhileConnected},
	{"ManyRegions", Functional, "a thousand regions are live and apart", anyLevel, 0, manyRegions},
}

func twoRegistrations(e *env) {
	e.connect()
	b := e.server.buffer(64)
	m1 := e.region(e.server, b, e.server.open())
	m2 := e.region(e.server, b, via.MemAttributes{Ptag: e.server.tag})
	if m1.Handle() == m2.Handle() || m1.Addr() != m2.Addr() {
		e.t.Errorf("handles %#x and %#x at %#x and %#x", m1.Handle(), m2.Handle(), m1.Addr(), m2.Addr())
	}
	e.check(m2.Deregister(), "deregister the second")
	e.ok(e.client, e.client.write(&target{m1.Addr(), m1.Handle()}, e.client.buffer(64)))
	e.check(m1.Deregister(), "deregister the first")
}

func registerRefusals(e *env) {
	x := e.client
	register := func(b []byte, a via.MemAttributes) error { _, err := x.nic.RegisterMem(b, a); return err }
	b := x.buffer(64).b
	foreign, err := e.server.nic.CreatePtag()
	e.check(err, "create tag")
	dead, err := x.nic.CreatePtag()
	e.check(err, "create tag")
	e.check(x.nic.DestroyPtag(dead), "destroy tag")
	e.wants(register(nil, via.MemAttributes{Ptag: x.tag}), via.ErrInvalidParameter, "register nil")
	e.wants(register(b[:0], via.MemAttributes{Ptag: x.tag}), via.ErrInvalidParameter, "register no bytes")
	e.wants(register(b, via.MemAttributes{}), via.ErrInvalidPtag, "register with the zero tag")
	e.wants(register(b, via.MemAttributes{Ptag: foreign}), via.ErrInvalidPtag, "register with a tag of another nic")
	e.wants(register(b, via.MemAttributes{Ptag: dead}), via.ErrInvalidPtag, "register with a destroyed tag")
	theirs := e.server.buffer(64).b
	e.wants(register(theirs, via.MemAttributes{Ptag: x.tag, EnableRdmaWrite: true}), via.ErrInvalidParameter,
		"register memory of another nic's arena for remote access")
	last := x.arena.Bytes()
	m, err := x.nic.RegisterMem(last[len(last)-64:], x.open())
	e.check(err, "register the arena's last bytes")
	e.check(m.Deregister(), "deregister them")
	for _, m := range []*via.Memory{x.nic.LookupMemory(0), x.nic.LookupMemory(^uint32(0))} {
		if m != nil {
			e.t.Errorf("a forged handle names a region")
		}
	}
}

func registerForeignMemory(e *env) {
	e.connect()
	foreign, err := e.server.nic.NewArena(1 << 16)
	e.check(err, "map an arena of another nic")
	defer func() { e.check(foreign.Close(), "unmap") }()
	// To the client's NIC this is mapped memory that is no arena's.
	b := buf{b: foreign.Bytes()[100:1100]}
	b.mem = e.region(e.client, b, via.MemAttributes{Ptag: e.client.tag})
	if b.mem.Arena() != nil {
		e.t.Errorf("the region lies in an arena")
	}
	fill(b.b, 6)
	dst := e.server.buffer(1000)
	r := e.server.recv(dst)
	e.ok(e.client, e.client.send(b))
	e.ok(e.server, r)
	e.same(dst.b, pattern(1000, 6), "message from memory outside an arena")
	e.check(b.mem.Deregister(), "deregister")
}

func deregisterTwice(e *env) {
	m := e.region(e.client, e.client.buffer(64), e.client.open())
	if !m.Live() || e.client.nic.LookupMemory(m.Handle()) != m {
		e.t.Errorf("a registered region is not found by its handle")
	}
	e.check(m.Deregister(), "deregister")
	if m.Live() || e.client.nic.LookupMemory(m.Handle()) != nil {
		e.t.Errorf("a deregistered region is found by its handle")
	}
	e.wants(m.Deregister(), via.ErrInvalidParameter, "deregister again")
	e.wants(m.SetAttributes(e.client.open()), via.ErrInvalidParameter, "set attributes of what is gone")
}

func deregisterAll(e *env) {
	e.connect()
	var list []*via.Memory
	for range 5 {
		list = append(list, e.region(e.server, e.server.buffer(64), e.server.open()))
	}
	kept := e.region(e.server, e.server.buffer(64), e.server.open())
	foreign := e.region(e.client, e.client.buffer(64), e.client.open())
	e.check(e.server.nic.DeregisterAll(nil), "deregister none")
	e.ok(e.client, e.client.write(&target{list[1].Addr(), list[1].Handle()}, e.client.buffer(64)))
	e.check(list[4].Deregister(), "deregister one")
	e.wants(e.server.nic.DeregisterAll(append(list, foreign)), via.ErrInvalidParameter, "deregister all, one of which is gone")
	for i, m := range list {
		if m.Live() || e.server.nic.LookupMemory(m.Handle()) != nil {
			e.t.Errorf("region %d is registered still", i)
		}
	}
	if !foreign.Live() {
		e.t.Errorf("the region of another nic is gone")
	}
	e.ok(e.client, e.client.write(&target{kept.Addr(), kept.Handle()}, e.client.buffer(64)))
	e.check(kept.Deregister(), "deregister what was kept")
	e.check(foreign.Deregister(), "deregister the other nic's")
	e.refused("a region deregistered with others", via.OpRdmaWrite, 64, &target{list[1].Addr(), list[1].Handle()})
}

func arenaRules(e *env) {
	x := e.client
	_, err := x.nic.NewArena(0)
	e.wants(err, via.ErrInvalidParameter, "map an arena of no bytes")
	_, err = x.nic.NewArena(-1)
	e.wants(err, via.ErrInvalidParameter, "map an arena of -1 bytes")
	a, err := x.nic.NewArena(5000)
	e.check(err, "map an arena")
	if len(a.Bytes()) < 5000 || len(a.Bytes())%4096 != 0 {
		e.t.Errorf("an arena of 5000 bytes has %d", len(a.Bytes()))
	}
	e.same(a.Bytes(), make([]byte, len(a.Bytes())), "fresh arena")
	m, err := x.nic.RegisterMem(a.Bytes(), x.open())
	e.check(err, "register the whole arena")
	if m.Arena() != a {
		e.t.Errorf("the region does not know its arena")
	}
	e.wants(a.Close(), via.ErrResource, "unmap an arena in use")
	e.check(m.Deregister(), "deregister")
	e.check(a.Close(), "unmap")
	e.wants(a.Close(), via.ErrInvalidParameter, "unmap again")
	e.wants(a.Discard(0, 1), via.ErrInvalidParameter, "discard of what is unmapped")
}

func arenaDiscard(e *env) {
	e.connect()
	x := e.server
	a, err := x.nic.NewArena(64 << 10)
	e.check(err, "map an arena")
	m, err := x.nic.RegisterMem(a.Bytes(), x.open())
	e.check(err, "register it")
	for _, r := range [][2]int{{0, 64 << 10}, {4096, 8192}, {100, 20000}, {5000, 10}, {4096, 0}, {65535, 1}} {
		fill(a.Bytes(), 1)
		want := pattern(64<<10, 1)
		clear(want[r[0] : r[0]+r[1]])
		e.check(a.Discard(r[0], r[1]), "discard")
		e.same(a.Bytes(), want, "arena after a discard")
	}
	for _, r := range [][2]int{{-1, 1}, {0, 64<<10 + 1}, {64 << 10, 1}, {1, -1}} {
		e.wants(a.Discard(r[0], r[1]), via.ErrInvalidParameter, "discard outside the arena")
	}
	src := e.client.buffer(64 << 10)
	fill(src.b, 2)
	e.ok(e.client, e.client.write(&target{m.Addr(), m.Handle()}, src))
	e.marker(e.client, x)
	e.same(a.Bytes(), pattern(64<<10, 2), "arena written by the peer after a discard")
	e.check(m.Deregister(), "deregister")
	e.check(a.Close(), "unmap")
}

func unalignedRegions(e *env) {
	e.connect()
	b := e.server.buffer(10000)
	for _, r := range [][2]int{{0, 1}, {1, 4096}, {4095, 2}, {4097, 4095}} {
		clear(b.b)
		m := e.region(e.server, b.part(r[0], r[1]), e.server.open())
		src := e.client.buffer(r[1])
		fill(src.b, r[1])
		e.ok(e.client, e.client.write(&target{m.Addr(), m.Handle()}, src))
		e.marker(e.client, e.server)
		want := make([]byte, 10000)
		copy(want[r[0]:], src.b)
		e.same(b.b, want, "memory in and around an unaligned region")
		e.refused("one byte more", via.OpRdmaWrite, r[1]+1, &target{m.Addr(), m.Handle()})
		e.check(m.Deregister(), "deregister")
	}
}

func registerWhileConnected(e *env) {
	e.connect()
	src := e.client.buffer(4096)
	for i := range 5 {
		a, err := e.server.nic.NewArena(1 << 20)
		e.check(err, "map an arena")
		m, err := e.server.nic.RegisterMem(a.Bytes(), e.server.open())
		e.check(err, "register it")
		fill(src.b, i)
		e.ok(e.client, e.client.write(&target{m.Addr() + 4096, m.Handle()}, src))
		e.marker(e.client, e.server)
		e.same(a.Bytes()[4096:8192], pattern(4096, i), "written arena")
		e.check(m.Deregister(), "deregister")
		e.check(a.Close(), "unmap")
	}
}

func manyRegions(e *env) {
	e.connect()
	const count, size = 1000, 100
	b := e.server.buffer(count * size)
	var regions []*via.Memory
	for i := range count {
		regions = append(regions, e.region(e.server, b.part(i*size, size), e.server.open()))
	}
	src := e.client.buffer(size)
	for i := count - 1; i >= 0; i -= 7 {
		fill(src.b, i)
		e.client.dused = 0
		d := build(e.client.desc(2), via.OpRdmaWrite, &target{regions[i].Addr(), regions[i].Handle()}, []buf{src})
		delete(e.client.seen, d)
		e.ok(e.client, e.client.postSend(e.client.vi, d))
	}
	e.marker(e.client, e.server)
	for i := count - 1; i >= 0; i -= 7 {
		e.same(b.b[i*size:(i+1)*size], pattern(size, i), "region")
	}
	for _, m := range regions {
		e.check(m.Deregister(), "deregister")
	}
}
