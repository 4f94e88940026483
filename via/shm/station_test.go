package shm

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

// station is a process's side of the fabric: a NIC, a completion queue and
// registered memory. The test's goroutine drives everything.
type station struct {
	tb      testing.TB
	nic     *via.NIC
	adapter *faultyAdapter
	cq      *via.CQ
	tag     via.Ptag
	mem     *via.Memory
	open    via.MemAttributes // of mem
	vis     []*via.VI
	done    []via.Completion // taken by poll, not yet by await
	async   []via.AsyncError
	level   via.ReliabilityLevel // of new VIs
}

// seenProvider keeps the adapter that it opened.
type seenProvider struct {
	provider
	opened *faultyAdapter
}

func (p *seenProvider) Open(device string) (via.Adapter, error) {
	a, err := p.provider.Open(device)
	if err == nil {
		p.opened = &faultyAdapter{adapter: a.(*adapter)}
		a = p.opened
	}
	return a, err
}

// faultyAdapter makes the connections that it requests faulty, if it has
// faults.
type faultyAdapter struct {
	*adapter
	faults via.Faults
}

func (a *faultyAdapter) Connect(ctx context.Context, host string, hello []byte, cfg via.LinkConfig) (via.Link, []byte, error) {
	cfg.Faults = a.faults
	return a.adapter.Connect(ctx, host, hello, cfg)
}

const (
	stationDepth = 16
	stationBytes = 8 << 20
)

// testTimeouts is for tests in which no time runs out.
var testTimeouts = timeouts{handshake: time.Minute, access: time.Minute}

func newStation(tb testing.TB, p timeouts) *station {
	tb.Helper()
	return newStationOf(tb, provider{timeouts: p})
}

func newStationOf(tb testing.TB, p provider) *station {
	tb.Helper()
	seen := &seenProvider{provider: p}
	nic, err := via.OpenNic(seen, "")
	check(tb, err)
	s := &station{tb: tb, nic: nic, adapter: seen.opened, level: via.ReliableDelivery}
	nic.ErrorCallback(func(e via.AsyncError) { s.async = append(s.async, e) })
	s.tag, err = nic.CreatePtag()
	check(tb, err)
	s.cq, err = nic.CreateCQ(64 * stationDepth)
	check(tb, err)
	arena, err := nic.NewArena(stationBytes)
	check(tb, err)
	s.open = via.MemAttributes{Ptag: s.tag, EnableRdmaRead: true, EnableRdmaWrite: true}
	s.mem, err = nic.RegisterMem(arena.Bytes(), s.open)
	check(tb, err)
	tb.Cleanup(s.close)
	return s
}

func (s *station) close() {
	for len(s.vis) > 0 {
		s.disconnect(s.vis[0])
	}
	if err := errors.Join(s.cq.Destroy(), s.mem.Deregister(), s.nic.Close()); err != nil {
		s.tb.Error(err)
	}
}

// disconnect disconnects and destroys a VI.
func (s *station) disconnect(vi *via.VI) {
	s.tb.Helper()
	check(s.tb, vi.Disconnect())
	for s.poll() > 0 {
	}
	check(s.tb, vi.Destroy())
	s.vis = slices.DeleteFunc(s.vis, func(v *via.VI) bool { return v == vi })
}

func (s *station) newVI() *via.VI {
	s.tb.Helper()
	return s.newViOn(s.cq, s.cq)
}

func (s *station) newViOn(send, recv *via.CQ) *via.VI {
	s.tb.Helper()
	vi, err := s.nic.CreateVi(
		via.ViAttributes{
			Reliability: s.level, Ptag: s.tag,
			EnableRdmaWrite: true, EnableRdmaRead: s.level != via.UnreliableDelivery,
		},
		via.ViConfig{SendCQ: send, RecvCQ: recv, SendDepth: stationDepth, RecvDepth: stationDepth})
	check(s.tb, err)
	s.vis = append(s.vis, vi)
	return vi
}

func (s *station) poll() int {
	var done [16]via.Completion
	n := s.cq.Poll(done[:])
	s.done = append(s.done, done[:n]...)
	return n
}

// listen listens at a fresh socket.
func (s *station) listen() *via.Listener {
	s.tb.Helper()
	l, err := s.nic.Listen(via.Address{Host: filepath.Join(s.tb.TempDir(), "s"), Discriminator: "d"})
	check(s.tb, err)
	s.tb.Cleanup(func() {
		if err := l.Close(); err != nil {
			s.tb.Error(err)
		}
	})
	return l
}

// join connects a VI of one station to a VI of another through a listener.
func join(tb testing.TB, from *via.VI, l *via.Listener, to *via.VI) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Wait(ctx)
		if err == nil {
			err = r.Accept(ctx, to)
		}
		accepted <- err
	}()
	_, err := from.Connect(ctx, l.Addr())
	check(tb, err)
	check(tb, <-accepted)
}

// descriptor builds a descriptor at index i with up to one segment of n bytes
// at off of the station's memory.
func (s *station) descriptor(i int, op via.Opcode, off, n int) *via.Descriptor {
	s.tb.Helper()
	d, err := s.mem.NewDescriptor(i*128, 128)
	check(s.tb, err)
	d.Reset(op)
	if op != via.OpRdmaWrite && op != via.OpRdmaRead {
		d.AddSegment(s.mem.Addr()+uint64(off), s.mem.Handle(), uint32(n))
	}
	return d
}

// remote builds an RDMA descriptor to or from a region of a peer.
func (s *station) remote(i int, op via.Opcode, off, n int, addr uint64, handle uint32) *via.Descriptor {
	s.tb.Helper()
	d := s.descriptor(i, op, off, n)
	d.SetRemote(addr, handle)
	d.AddSegment(s.mem.Addr()+uint64(off), s.mem.Handle(), uint32(n))
	return d
}

// await polls the stations until a descriptor of s is done.
func (s *station) await(d *via.Descriptor, others ...*station) via.Completion {
	s.tb.Helper()
	var out via.Completion
	until(s.tb, "a completion", func() bool {
		for i, c := range s.done {
			if c.Descriptor == d {
				s.done = append(s.done[:i], s.done[i+1:]...)
				out = c
				return true
			}
		}
		return false
	}, append(others, s)...)
	return out
}

// until polls the stations until cond holds.
func until(tb testing.TB, what string, cond func() bool, stations ...*station) {
	tb.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); {
		for _, s := range stations {
			s.poll()
		}
		if time.Now().After(deadline) {
			tb.Fatalf("timed out waiting for %s", what)
		}
	}
}

// sleep arms the queue and sleeps until its file descriptor is readable. It
// returns false after a timeout.
func (s *station) sleep() bool {
	s.tb.Helper()
	return !s.cq.Arm() || readable(s.tb, s.cq.FD(), time.Minute)
}

func readable(tb testing.TB, fd int, wait time.Duration) bool {
	tb.Helper()
	deadline := time.Now().Add(wait)
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, max(0, int(time.Until(deadline).Milliseconds())))
		if err == unix.EINTR {
			continue
		}
		check(tb, err)
		return n == 1
	}
}

// healthy is a connection that must keep working whatever happens to others:
// its near end shares NIC, completion queue and protection tag with them.
type healthy struct {
	near, far *station
	a, b      *via.VI
	round     byte
}

func newHealthy(tb testing.TB, near *station, l *via.Listener) *healthy {
	tb.Helper()
	h := &healthy{near: near, far: newStation(tb, testTimeouts)}
	h.a, h.b = near.newVI(), h.far.newVI()
	join(tb, h.b, l, h.a)
	return h
}

// check moves a message each way and RDMA each way, asleep and awake.
func (h *healthy) check() {
	tb := h.near.tb
	tb.Helper()
	h.round++
	const at, n = 4 << 20, 5000
	fill := func(s *station, v byte) {
		for i := range n {
			s.mem.Bytes()[at+i] = v + byte(i)
		}
	}
	fill(h.far, h.round)
	r := h.near.descriptor(100, via.OpRecv, at, n)
	check(tb, h.a.PostRecv(r))
	for h.near.poll() > 0 {
	}
	armed := h.near.cq.Arm()
	d := h.far.descriptor(100, via.OpSend, at, n)
	check(tb, h.b.PostSend(d))
	if armed && !readable(tb, h.near.cq.FD(), time.Minute) {
		tb.Fatal("the healthy connection was not woken")
	}
	if c := h.near.await(r, h.far); c.Status.Failed() || c.Length != n {
		tb.Fatalf("healthy receive: %+v", c)
	}
	h.far.await(d)
	if string(h.near.mem.Bytes()[at:at+n]) != string(h.far.mem.Bytes()[at:at+n]) {
		tb.Fatal("the healthy connection delivered other bytes")
	}
	fill(h.near, h.round+100)
	w := h.near.remote(101, via.OpRdmaWrite, at, n, h.far.mem.Addr()+at, h.far.mem.Handle())
	check(tb, h.a.PostSend(w))
	if c := h.near.await(w, h.far); c.Status.Failed() {
		tb.Fatalf("healthy rdma write: %+v", c)
	}
	if string(h.near.mem.Bytes()[at:at+n]) != string(h.far.mem.Bytes()[at:at+n]) {
		tb.Fatal("the healthy connection wrote other bytes")
	}
	rd := h.far.remote(102, via.OpRdmaRead, at+n, n, h.near.mem.Addr()+at, h.near.mem.Handle())
	check(tb, h.b.PostSend(rd))
	if c := h.far.await(rd, h.near); c.Status.Failed() {
		tb.Fatalf("healthy rdma read: %+v", c)
	}
}

func (h *healthy) String() string { return fmt.Sprintf("%v and %v", h.a.State(), h.b.State()) }
