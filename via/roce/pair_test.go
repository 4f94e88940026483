package roce_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

// party is one NIC with a VI, its completion queue, and memory that peers may
// access.
type party struct {
	tb    testing.TB
	nic   *via.NIC
	tag   via.Ptag
	arena *via.Arena
	mem   *via.Memory
	cq    *via.CQ
	vi    *via.VI
	used  int // descriptors in use
	batch [16]via.Completion

	mu   sync.Mutex
	errs []via.AsyncError
}

// Layout of a party's arena: descriptors below, payload above.
const (
	arenaSize = 8 << 20
	payloadAt = 1 << 20
	depth     = 64
)

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// newParty opens a NIC. The test's cleanup closes it, if no objects are left on
// it.
func newParty(tb testing.TB, p via.Provider, device string) *party {
	tb.Helper()
	x := &party{tb: tb, nic: openNIC(tb, p, device)}
	x.nic.ErrorCallback(func(e via.AsyncError) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.errs = append(x.errs, e)
	})
	var err error
	x.tag, err = x.nic.CreatePtag()
	check(tb, err)
	x.arena, err = x.nic.NewArena(arenaSize)
	check(tb, err)
	x.mem, err = x.nic.RegisterMem(x.arena.Bytes(), via.MemAttributes{Ptag: x.tag, EnableRdmaWrite: true, EnableRdmaRead: true})
	check(tb, err)
	x.cq, err = x.nic.CreateCQ(4 * depth)
	check(tb, err)
	x.vi = x.newVI(via.ReliableDelivery, x.cq)
	return x
}

func (x *party) newVI(level via.ReliabilityLevel, cq *via.CQ) *via.VI {
	x.tb.Helper()
	vi, err := x.nic.CreateVi(via.ViAttributes{
		Reliability: level, MaxTransferSize: 1 << 20, Ptag: x.tag,
		EnableRdmaWrite: true, EnableRdmaRead: level != via.UnreliableDelivery,
	}, via.ViConfig{SendCQ: cq, RecvCQ: cq, SendDepth: depth, RecvDepth: depth})
	check(x.tb, err)
	return vi
}

// codes lists the asynchronous errors so far.
func (x *party) codes() (out []via.AsyncCode) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.errs {
		out = append(out, e.Code)
	}
	return out
}

// desc returns a fresh descriptor.
func (x *party) desc() *via.Descriptor {
	x.tb.Helper()
	d, err := x.mem.NewDescriptor(x.used*128, 128)
	check(x.tb, err)
	x.used++
	return d
}

// payload returns a part of the party's payload.
func (x *party) payload(at, n int) []byte { return x.arena.Bytes()[payloadAt+at:][:n:n] }

func (x *party) addr(at int) uint64 { return x.mem.Addr() + payloadAt + uint64(at) }

// build makes a descriptor over a part of the payload; with a peer, an RDMA
// operation on the same part there.
func (x *party) build(op via.Opcode, at, n int, peer *party) *via.Descriptor {
	d := x.desc()
	d.Reset(op)
	if peer != nil {
		d.SetRemote(peer.addr(at), peer.mem.Handle())
	}
	d.AddSegment(x.addr(at), x.mem.Handle(), uint32(n))
	return d
}

// poll polls completions, and fails the test if one has an error.
func (x *party) poll() int {
	x.tb.Helper()
	n := x.cq.Poll(x.batch[:])
	for _, c := range x.batch[:n] {
		if c.Status.Failed() {
			x.tb.Fatalf("completed with %v, %v", c.Status, x.codes())
		}
	}
	return n
}

// link connects a VI of x to one of y, which listens at a host.
func link(tb testing.TB, host string, x, y *via.VI, yNIC *via.NIC) {
	tb.Helper()
	check(tb, tryLink(host, x, y, yNIC))
}

func tryLink(host string, x, y *via.VI, yNIC *via.NIC) error {
	addr := via.Address{Host: host, Discriminator: fmt.Sprintf("%p", y)}
	l, err := yNIC.Listen(addr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Wait(ctx)
		if err == nil {
			err = r.Accept(ctx, y)
		}
		accepted <- err
	}()
	_, err = x.Connect(ctx, addr)
	return errors.Join(err, <-accepted, l.Close())
}

// close disconnects and releases everything.
func (x *party) close(more ...*via.VI) {
	x.tb.Helper()
	for _, vi := range append(more, x.vi) {
		check(x.tb, vi.Disconnect())
		for x.cq.Poll(x.batch[:]) != 0 {
		}
		for {
			if d, err := vi.RecvDone(); d == nil && err != nil {
				break
			}
		}
		check(x.tb, vi.Destroy())
	}
	check(x.tb, x.cq.Destroy())
	check(x.tb, x.mem.Deregister())
	check(x.tb, x.nic.Close())
}

// sleep sleeps on a completion queue until it may have completions.
func sleep(cq *via.CQ, timeout time.Duration) {
	if !cq.Arm() {
		return
	}
	fds := []unix.PollFd{{Fd: int32(cq.FD()), Events: unix.POLLIN}}
	_, _ = unix.Poll(fds, int(timeout.Milliseconds())) // the caller polls in any case
}

// within calls cond until it holds.
func within(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(50 * time.Microsecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("timeout while waiting for %s", what)
		}
	}
}
