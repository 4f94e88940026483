package regcache

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

func TestRevoke(t *testing.T) {
	r := newRig(t, 4, Config{})
	other := must(r.nic.CreatePtag())(t)
	l := r.acquire(t, 0)
	second := r.acquire(t, 0)
	idle := r.acquire(t, 1)
	idle.Release()
	kept := must(r.Acquire(r.buf(0, 0, 1), other, RemoteWrite))(t)
	if err := r.Revoke(r.tag); err != nil {
		t.Fatal(err)
	}
	if a := l.Memory().Attributes(); a.Ptag == r.tag || a.EnableRdmaRead {
		t.Errorf("the leased region keeps %+v", a)
	}
	if r.region(1) != nil {
		t.Error("the idle region is still registered")
	}
	if a := kept.Memory().Attributes(); a.Ptag != other || !a.EnableRdmaWrite {
		t.Errorf("the other tag's region has %+v", a)
	}
	fresh := r.acquire(t, 0)
	if fresh.Memory() == l.Memory() {
		t.Error("a revoked region is leased again")
	}
	r.o.use(&l)() // local memory until the last Release
	l.Release()
	r.o.use(&second)()
	second.Release()
	r.waitForReaper(t)
	if live, _, _ := r.o.count(); live != 2 {
		t.Errorf("%d regions are live, want the fresh one and the other tag's", live)
	}
	if s := r.Stats(); s.Revoked != 1 {
		t.Errorf("stats %+v", s)
	}
	fresh.Release()
	kept.Release()
}

// A lookup finds its region before Revoke, and acquires its lease after.
func TestRevokeBetweenLookupAndLease(t *testing.T) {
	r := newRig(t, 2, Config{})
	l := r.acquire(t, 0)
	found := l.region
	kept := must(r.Acquire(r.buf(1, 0, 1), must(r.nic.CreatePtag())(t), RemoteWrite))(t)
	after := kept.region
	kept.Release()
	if err := r.Revoke(r.tag); err != nil {
		t.Fatal(err)
	}
	// The reaper has processed the region once it has ended the next one.
	eventually(t, "the reaper's look", func() bool { return !found.queued.Load() })
	after.unretain()
	r.reaper.push(after)
	eventually(t, "the end of the other region", func() bool { live, _, _ := r.o.count(); return live == 1 })
	if r.hit(found) {
		t.Fatal("a revoked region is leased")
	}
	// The visit overlaps the last release, so the visitor ends the region.
	found.state.Add(1)
	l.Release()
	if live, _, _ := r.o.count(); live != 1 {
		t.Fatal("the region ended under its visitor")
	}
	found.state.Add(^uint64(0))
	if r.hit(found) {
		t.Fatal("a revoked region is leased")
	}
	r.waitForReaper(t)
	eventually(t, "the end of the revoked region", func() bool { live, _, _ := r.o.count(); return live == 0 })
}

func TestAdoptedMemory(t *testing.T) {
	r := newRig(t, 1, Config{})
	g := r.Granule()
	whole, err := unix.Mmap(-1, 0, 4*g, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(whole) })
	mem := whole[int(-addressOf(whole)&uint64(g-1)):]
	mem = mem[: 2*g+5000 : 2*g+5000]
	for name, bad := range map[string][]byte{"nothing": nil, "unaligned": mem[1:], "no bytes": mem[:0]} {
		if _, err := r.Adopt(bad); !errors.Is(err, via.ErrInvalidParameter) {
			t.Errorf("adopt %s: %v", name, err)
		}
	}
	a := must(r.Adopt(mem))(t)
	if len(a.Bytes()) != len(mem) {
		t.Errorf("arena of %d bytes", len(a.Bytes()))
	}
	last := must(r.Acquire(mem[2*g+4990:], r.tag, 0))(t)
	if n := len(last.Memory().Bytes()); n != 5000 {
		t.Errorf("the last granule is registered with %d bytes", n)
	}
	if _, err := r.Acquire(mem[:1], r.tag, RemoteRead); !errors.Is(err, via.ErrInvalidParameter) {
		t.Errorf("Acquire for a peer: %v", err)
	}
	if err := a.Close(); !errors.Is(err, ErrInUse) {
		t.Errorf("Close with a lease out: %v", err)
	}
	last.Release()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	mem[0] = 1 // it is still mapped
	if _, err := r.Acquire(mem[:1], r.tag, 0); err != ErrNotArena {
		t.Errorf("Acquire after Close: %v", err)
	}
}

// peerWriter returns a function that fills the first 4 KiB of a lease from the
// other end of a connection.
func peerWriter(t *testing.T, nic *via.NIC, tag via.Ptag, cq *via.CQ, vi *via.VI, l Lease) func(value byte) via.Status {
	t.Helper()
	local := must(nic.NewArena(1 << 20))(t)
	m := must(nic.RegisterMem(local.Bytes(), via.MemAttributes{Ptag: tag}))(t)
	t.Cleanup(func() {
		if err := m.Deregister(); err != nil {
			t.Error(err)
		}
	})
	d := must(m.NewDescriptor(0, 256))(t)
	return func(value byte) via.Status {
		t.Helper()
		payload := m.Bytes()[4096:8192]
		for i := range payload {
			payload[i] = value
		}
		d.Reset(via.OpRdmaWrite)
		d.SetRemote(l.Addr(), l.Handle())
		d.AddSegment(m.Addr()+4096, m.Handle(), 4096)
		if err := vi.PostSend(d); err != nil {
			t.Fatal(err)
		}
		var done [1]via.Completion
		eventually(t, "the RDMA Write", func() bool { return cq.Poll(done[:]) == 1 })
		return done[0].Status
	}
}

// A peer's write by the handle of a lease fails once Revoke has returned, and
// the memory stays unchanged; the owner uses it until the last Release.
func TestPeerWriteFailsAfterRevoke(t *testing.T) {
	nics, tags, cqs, vis := connectedVIs(t)
	c := must(New(nics[0], Config{MaxRegions: 4}))(t)
	a := must(c.NewArena(1 << 20))(t)
	buf := a.Bytes()[:4096]
	l := must(c.Acquire(buf, tags[0], RemoteWrite))(t)
	write := peerWriter(t, nics[1], tags[1], cqs[1], vis[1], l)
	if status := write(7); status.Failed() || buf[0] != 7 || buf[4095] != 7 {
		t.Fatalf("before Revoke: %v, %d", status, buf[0])
	}
	if err := c.Revoke(tags[0]); err != nil {
		t.Fatal(err)
	}
	if status := write(8); !status.Failed() || status&via.StatusRdmaProtError == 0 {
		t.Errorf("after Revoke: %v", status)
	}
	for i, b := range buf {
		if b != 7 {
			t.Fatalf("byte %d was written after Revoke", i)
		}
	}
	buf[0]++ // still local memory
	if !l.Memory().Live() {
		t.Error("the region ended under its lease")
	}
	l.Release()
	eventually(t, "the end of the region", func() bool { return c.Stats().Regions == 0 })
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
