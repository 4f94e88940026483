package shm_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// end is one end of a connected pair with its memory.
type end struct {
	nic *via.NIC
	tag via.Ptag
	cq  *via.CQ
	vi  *via.VI
	mem *via.Memory
}

func newEnd(tb testing.TB, depth, size int) *end {
	tb.Helper()
	nic, err := via.OpenNic(shm.New(shm.Options{}), "")
	must(tb, err)
	nic.ErrorCallback(func(via.AsyncError) {})
	e := &end{nic: nic}
	e.tag, err = nic.CreatePtag()
	must(tb, err)
	e.cq, err = nic.CreateCQ(2 * depth)
	must(tb, err)
	e.vi, err = nic.CreateVi(via.ViAttributes{Reliability: via.ReliableDelivery, Ptag: e.tag, EnableRdmaWrite: true, EnableRdmaRead: true},
		via.ViConfig{SendCQ: e.cq, RecvCQ: e.cq, SendDepth: depth, RecvDepth: depth})
	must(tb, err)
	arena, err := nic.NewArena(size)
	must(tb, err)
	e.mem, err = nic.RegisterMem(arena.Bytes(), via.MemAttributes{Ptag: e.tag, EnableRdmaWrite: true, EnableRdmaRead: true})
	must(tb, err)
	return e
}

func (e *end) close(tb testing.TB) {
	tb.Helper()
	must(tb, e.vi.Disconnect())
	var done [64]via.Completion
	for e.cq.Poll(done[:]) > 0 {
	}
	must(tb, e.vi.Destroy())
	must(tb, e.cq.Destroy())
	must(tb, e.mem.Deregister())
	must(tb, e.nic.Close())
}

// connectedPair returns two connected ends in this process.
func connectedPair(tb testing.TB, depth, size int) (client, server *end) {
	tb.Helper()
	client, server = newEnd(tb, depth, size), newEnd(tb, depth, size)
	addr := via.Address{Host: filepath.Join(tb.TempDir(), "s"), Discriminator: "pair"}
	l, err := server.nic.Listen(addr)
	must(tb, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Wait(ctx)
		if err == nil {
			err = r.Accept(ctx, server.vi)
		}
		accepted <- err
	}()
	_, err = client.vi.Connect(ctx, addr)
	must(tb, err)
	must(tb, <-accepted)
	must(tb, l.Close())
	tb.Cleanup(func() { client.close(tb); server.close(tb) })
	return client, server
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func (e *end) descriptor(tb testing.TB, i int) *via.Descriptor {
	tb.Helper()
	d, err := e.mem.NewDescriptor(i*128, 128)
	must(tb, err)
	return d
}

// await polls until a completion arrives.
func (e *end) await(tb testing.TB) via.Completion {
	tb.Helper()
	var done [1]via.Completion
	deadline := time.Now().Add(time.Minute)
	for e.cq.Poll(done[:]) == 0 {
		if time.Now().After(deadline) {
			tb.Fatal("no completion")
		}
	}
	return done[0]
}

func TestSendReachesPostedReceive(t *testing.T) {
	c, s := connectedPair(t, 8, 1<<20)
	r := s.descriptor(t, 0)
	r.Reset(via.OpRecv)
	r.AddSegment(s.mem.Addr()+4096, s.mem.Handle(), 4096)
	must(t, s.vi.PostRecv(r))
	d := c.descriptor(t, 0)
	d.Reset(via.OpSend)
	d.SetImmediate(77)
	copy(c.mem.Bytes()[8192:], "hello")
	d.AddSegment(c.mem.Addr()+8192, c.mem.Handle(), 5)
	must(t, c.vi.PostSend(d))
	if e := c.await(t); e.Status.Failed() || e.Descriptor != d || e.Length != 5 {
		t.Fatalf("send completed %+v", e)
	}
	e := s.await(t)
	if e.Status.Failed() || e.Descriptor != r || e.Length != 5 || e.Immediate != 77 || string(s.mem.Bytes()[4096:4101]) != "hello" {
		t.Fatalf("receive completed %+v, %q", e, s.mem.Bytes()[4096:4101])
	}
}

func TestRdmaWriteThenRead(t *testing.T) {
	c, s := connectedPair(t, 8, 8<<20)
	w := c.descriptor(t, 0)
	w.Reset(via.OpRdmaWrite)
	w.SetRemote(s.mem.Addr()+1<<20, s.mem.Handle())
	for i := range c.mem.Bytes()[1<<20 : 4<<20] {
		c.mem.Bytes()[1<<20+i] = byte(i * 7)
	}
	w.AddSegment(c.mem.Addr()+1<<20, c.mem.Handle(), 3<<20)
	must(t, c.vi.PostSend(w))
	if e := c.await(t); e.Status.Failed() || e.Length != 3<<20 {
		t.Fatalf("rdma write completed %+v", e)
	}
	r := c.descriptor(t, 1)
	r.Reset(via.OpRdmaRead)
	r.SetRemote(s.mem.Addr()+1<<20, s.mem.Handle())
	r.AddSegment(c.mem.Addr()+4<<20, c.mem.Handle(), 3<<20)
	must(t, c.vi.PostSend(r))
	if e := c.await(t); e.Status.Failed() {
		t.Fatalf("rdma read completed %+v", e)
	}
	b := c.mem.Bytes()
	if string(b[1<<20:4<<20]) != string(b[4<<20:7<<20]) {
		t.Fatal("read back other bytes than were written")
	}
}

func BenchmarkPingPong64(b *testing.B) {
	c, s := connectedPair(b, 8, 1<<20)
	stop := make(chan struct{})
	done := make(chan struct{})
	first, answer := s.descriptor(b, 0), s.descriptor(b, 1)
	postRecv(b, s, first)
	go func() {
		defer close(done)
		echo(b, s, first, answer, stop)
	}()
	recv, send := c.descriptor(b, 0), c.descriptor(b, 1)
	b.ReportAllocs()
	for b.Loop() {
		post(b, c, recv, send)
		for got := 0; got < 2; {
			var done [2]via.Completion
			got += c.cq.Poll(done[:])
		}
	}
	close(stop)
	<-done
}

func postRecv(tb testing.TB, e *end, recv *via.Descriptor) {
	recv.Reset(via.OpRecv)
	recv.AddSegment(e.mem.Addr()+4096, e.mem.Handle(), 64)
	must(tb, e.vi.PostRecv(recv))
}

func post(tb testing.TB, e *end, recv, send *via.Descriptor) {
	postRecv(tb, e, recv)
	send.Reset(via.OpSend)
	send.AddSegment(e.mem.Addr()+8192, e.mem.Handle(), 64)
	must(tb, e.vi.PostSend(send))
}

func echo(tb testing.TB, e *end, recv, send *via.Descriptor, stop chan struct{}) {
	var done [2]via.Completion
	for {
		for _, d := range done[:e.cq.Poll(done[:])] {
			if d.Recv {
				post(tb, e, recv, send)
			}
		}
		select {
		case <-stop:
			return
		default:
		}
	}
}
