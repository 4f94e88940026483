package joint_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/joint"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/shm"
)

const waitTimeout = 20 * time.Second

// end is a NIC with a VI and memory that peers may access.
type end struct {
	tb  testing.TB
	nic *via.NIC
	tag via.Ptag
	mem *via.Memory
	cq  *via.CQ
	vi  *via.VI
}

const payloadAt = 4096 // in the region; descriptors are below

func newEnd(tb testing.TB, p via.Provider) *end {
	tb.Helper()
	x := &end{tb: tb, nic: openNIC(tb, p)}
	x.nic.ErrorCallback(func(via.AsyncError) {})
	var err error
	x.tag, err = x.nic.CreatePtag()
	must(tb, err)
	a, err := x.nic.NewArena(1 << 20)
	must(tb, err)
	x.mem, err = x.nic.RegisterMem(a.Bytes(), via.MemAttributes{Ptag: x.tag, EnableRdmaWrite: true, EnableRdmaRead: true})
	must(tb, err)
	x.cq, err = x.nic.CreateCQ(64)
	must(tb, err)
	x.vi, err = x.nic.CreateVi(via.ViAttributes{
		Reliability: via.ReliableDelivery, MaxTransferSize: 1 << 20, Ptag: x.tag, EnableRdmaWrite: true, EnableRdmaRead: true,
	}, via.ViConfig{SendCQ: x.cq, RecvCQ: x.cq, SendDepth: 8, RecvDepth: 8})
	must(tb, err)
	return x
}

func (x *end) close() {
	x.tb.Helper()
	must(x.tb, x.vi.Destroy())
	must(x.tb, x.cq.Destroy())
	must(x.tb, x.mem.Deregister())
	must(x.tb, x.nic.DestroyPtag(x.tag))
	must(x.tb, x.nic.Close())
}

// meet connects two idle VIs at a host.
func meet(tb testing.TB, client, server *end, host string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	at := via.Address{Host: host, Discriminator: "test"}
	l, err := server.nic.Listen(at)
	must(tb, err)
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Wait(ctx)
		if err == nil {
			err = r.Accept(ctx, server.vi)
		}
		accepted <- err
	}()
	_, err = client.vi.Connect(ctx, at)
	must(tb, errors.Join(err, <-accepted, l.Close()))
}

// descriptor returns the descriptor with a number.
func (x *end) descriptor(number int) *via.Descriptor {
	x.tb.Helper()
	d, err := x.mem.NewDescriptor(number*128, 128)
	must(x.tb, err)
	return d
}

// asleep waits for a completion. It sleeps on the file descriptor of the queue,
// which is readable when there is one.
func (x *end) asleep() via.Completion {
	x.tb.Helper()
	var done [1]via.Completion
	for deadline := time.Now().Add(waitTimeout); x.cq.Poll(done[:]) == 0; {
		if time.Now().After(deadline) {
			x.tb.Fatal("nothing completes")
		}
		if x.cq.Arm() {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(x.cq.FD()), Events: unix.POLLIN}}, int(waitTimeout.Milliseconds()))
			if n != 1 && !errors.Is(err, unix.EINTR) {
				x.tb.Fatalf("a queue that sleeps is not woken: %d, %v", n, err)
			}
		}
	}
	return done[0]
}

// TestVIMovesBetweenParts: a VI that was connected over one part is connected
// over the other, and a peer reaches the same memory by the same handle there.
func TestVIMovesBetweenParts(t *testing.T) {
	p := both(t)
	client, server := newEnd(t, p), newEnd(t, p)
	handle := client.mem.Handle()
	for i, part := range []string{"shm", "roce", "shm", "roce"} {
		meet(t, client, server, hosts(t)[part])
		r := client.descriptor(0)
		r.Reset(via.OpRecv)
		r.AddSegment(client.mem.Addr()+payloadAt, handle, 8)
		must(t, client.vi.PostRecv(r))

		// An RDMA Write, and a Send that announces it.
		server.mem.Bytes()[payloadAt] = byte(i + 1)
		d := server.descriptor(0)
		d.Reset(via.OpRdmaWrite)
		d.SetRemote(client.mem.Addr()+2*payloadAt, handle)
		d.AddSegment(server.mem.Addr()+payloadAt, server.mem.Handle(), 1)
		must(t, server.vi.PostSend(d))
		s := server.descriptor(1)
		s.Reset(via.OpSend)
		s.AddSegment(server.mem.Addr()+payloadAt, server.mem.Handle(), 1)
		must(t, server.vi.PostSend(s))
		for range 2 {
			if e := server.asleep(); e.Status.Failed() {
				t.Fatalf("over %s: %v", part, e.Status)
			}
		}
		if e := client.asleep(); e.Status.Failed() || client.mem.Bytes()[2*payloadAt] != byte(i+1) {
			t.Fatalf("over %s: %v, memory has %d, want %d", part, e.Status, client.mem.Bytes()[2*payloadAt], i+1)
		}
		if client.mem.Handle() != handle || client.nic.LookupMemory(handle) != client.mem {
			t.Fatal("the region has another handle")
		}
		must(t, client.vi.Disconnect())
		must(t, server.vi.Disconnect())
	}
	client.close()
	server.close()
}

// TestPartsProgressTogether: VIs over both parts share a queue, and neither
// waits for the other, though each poll takes one completion.
func TestPartsProgressTogether(t *testing.T) {
	p := both(t)
	client, server := newEnd(t, p), newEnd(t, p)
	one := client.vi
	other, err := client.nic.CreateVi(one.Attributes(), via.ViConfig{SendCQ: client.cq, RecvCQ: client.cq, SendDepth: 8, RecvDepth: 8})
	must(t, err)
	far, err := server.nic.CreateVi(server.vi.Attributes(), via.ViConfig{SendCQ: server.cq, RecvCQ: server.cq, SendDepth: 8, RecvDepth: 8})
	must(t, err)
	at := hosts(t)
	meet(t, client, server, at["shm"])
	near := server.vi
	client.vi, server.vi = other, far
	meet(t, client, server, at["roce"])

	number := 0
	seen := make(map[*via.VI]int)
	post := func(vi *via.VI) {
		for range 4 {
			d := client.descriptor(number)
			number++
			d.Reset(via.OpRdmaWrite)
			d.SetRemote(server.mem.Addr()+payloadAt, server.mem.Handle())
			d.AddSegment(client.mem.Addr()+payloadAt, client.mem.Handle(), 8)
			must(t, vi.PostSend(d))
		}
	}
	post(one)
	post(other)
	for deadline := time.Now().Add(waitTimeout); seen[one]+seen[other] < 8; {
		var done [1]via.Completion
		if client.cq.Poll(done[:]) == 1 {
			seen[done[0].VI]++
		}
		server.cq.Poll(done[:])
		if time.Now().After(deadline) {
			t.Fatalf("over shm %d, over roce %d", seen[one], seen[other])
		}
	}
	must(t, errors.Join(one.Disconnect(), other.Disconnect(), near.Disconnect(), far.Disconnect()))
	must(t, errors.Join(one.Destroy(), near.Destroy()))
	client.close()
	server.close()
}

// foreign is a provider whose adapter cannot be a part.
type foreign struct{ via.Provider }

func (f foreign) Open(device string) (via.Adapter, error) {
	a, err := f.Provider.Open(device)
	return struct{ via.Adapter }{a}, err
}

// TestRefusedParts: parts that cannot share a NIC are refused, and nothing of
// the others stays open.
func TestRefusedParts(t *testing.T) {
	one := joint.Part{Name: "shm", Provider: shm.New(shm.Options{})}
	for name, parts := range map[string][]joint.Part{
		"one":        {one},
		"same name":  {one, one},
		"no name":    {one, {Provider: one.Provider}},
		"with colon": {one, {Name: "a:b", Provider: one.Provider}},
	} {
		if _, err := joint.New(parts...); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for name, other := range map[string]via.Provider{"names regions": foreign{roce.New(roce.Options{})}, "maps memory": one.Provider} {
		p, err := joint.New(one, joint.Part{Name: "other", Provider: other})
		must(t, err)
		if _, err := via.OpenNic(p, ""); !errors.Is(err, joint.ErrCannotJoin) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p, err := joint.New(one, joint.Part{Name: "roce", Provider: roce.New(roce.Options{}), Device: "no address"})
	must(t, err)
	for _, device := range []string{"", "eth0"} {
		if _, err := via.OpenNic(p, device); !errors.Is(err, via.ErrInvalidParameter) {
			t.Errorf("device %q: %v", device, err)
		}
	}
}
