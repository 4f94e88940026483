package viatest

import (
	"fmt"
	"testing"

	"github.com/viablk/viablk/via"
)

// Bench measures a provider: latency of an answered message, rate of messages
// in a window, RDMA, and the cost of posts alone. Both ends run in this
// process; one goroutine drives each, without sleeping.
func Bench(b *testing.B, open Open) {
	b.Helper()
	for _, size := range []int{64, 4096} {
		b.Run(fmt.Sprintf("PingPong/size=%d", size), func(b *testing.B) { benchPingPong(b, open, size) })
	}
	for _, size := range []int{64, 4096, 64 << 10} {
		b.Run(fmt.Sprintf("Window/size=%d", size), func(b *testing.B) { benchPipelined(b, open, size) })
	}
	for _, size := range []int{4096, 128 << 10} {
		b.Run(fmt.Sprintf("Write/size=%d", size), func(b *testing.B) { benchRdma(b, open, via.OpRdmaWrite, size) })
		b.Run(fmt.Sprintf("Read/size=%d", size), func(b *testing.B) { benchRdma(b, open, via.OpRdmaRead, size) })
	}
	b.Run("PostRate", func(b *testing.B) { benchPostRate(b, open) })
}

// benchDepth is how many operations the benchmarks keep outstanding.
const benchDepth = 32

// ring is an end's descriptors for one kind of operation, used in rotation.
type ring struct {
	x     *end
	op    via.Opcode
	descs []*via.Descriptor
	local []buf
	to    *target
	next  int
}

func newRing(x *end, op via.Opcode, size int, to *target) *ring {
	r := &ring{x: x, op: op, to: to}
	for range benchDepth {
		r.descs = append(r.descs, x.desc(2))
		r.local = append(r.local, x.buffer(size))
	}
	return r
}

// post posts the next descriptor without a doorbell.
func (r *ring) post(b *testing.B) {
	i := r.next % benchDepth
	r.next++
	d := r.descs[i]
	d.Reset(r.op)
	if r.to != nil {
		d.SetRemote(r.to.addr, r.to.handle)
	}
	l := &r.local[i]
	d.AddSegment(l.addr(), l.mem.Handle(), uint32(len(l.b)))
	var err error
	if r.op == via.OpRecv {
		err = r.x.vi.PostRecv(d)
	} else {
		err = r.x.vi.StageSend(d)
	}
	if err != nil {
		b.Error(err)
	}
}

// pollCounts polls once and counts completions by queue.
func (x *end) pollCounts(b *testing.B) (sends, receives int) {
	n := x.cq.Poll(x.batch[:])
	for i := range x.batch[:n] {
		c := &x.batch[i]
		if c.Status.Failed() {
			b.Errorf("%s: completed with %v", x.name, c.Status)
		}
		if c.Recv {
			receives++
		} else {
			sends++
		}
	}
	if n == 0 {
		pause()
	}
	return sends, receives
}

// finish flushes what a benchmark left.
func finish(ends ...*end) {
	for _, x := range ends {
		_ = x.vi.Disconnect() // it is connected or broken
		for x.cq.Poll(x.batch[:]) != 0 {
		}
	}
}

func benchPingPong(b *testing.B, open Open, size int) {
	e := newEnv(b, open, plain, via.ReliableDelivery)
	e.connect()
	defer finish(e.client, e.server)
	answer := func(x *end, begin bool, rounds int) {
		in, out := newRing(x, via.OpRecv, size, nil), newRing(x, via.OpSend, size, nil)
		sent := !begin
		if begin {
			out.post(b)
			x.vi.Doorbell()
		}
		in.next = benchDepth // one is posted
		for received := false; rounds > 0 && !b.Failed(); {
			s, r := x.pollCounts(b)
			sent, received = sent || s > 0, received || r > 0
			if !sent || !received {
				continue
			}
			sent, received = false, false
			rounds--
			if rounds > 0 {
				in.post(b)
			}
			if rounds > 0 || !begin {
				out.post(b)
				x.vi.Doorbell()
			}
		}
	}
	for _, x := range []*end{e.client, e.server} {
		first := newRing(x, via.OpRecv, size, nil)
		first.post(b)
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	done := make(chan struct{})
	go func() {
		answer(e.server, false, b.N)
		close(done)
	}()
	answer(e.client, true, b.N)
	<-done
	b.StopTimer()
}

func benchPipelined(b *testing.B, open Open, size int) {
	e := newEnv(b, open, plain, via.ReliableDelivery)
	e.connect()
	defer finish(e.client, e.server)
	in, out := newRing(e.server, via.OpRecv, size, nil), newRing(e.client, via.OpSend, size, nil)
	credits := make(chan int, benchDepth) // receives posted, told outside the fabric
	for range benchDepth {
		in.post(b)
	}
	credits <- benchDepth
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	done := make(chan struct{})
	go func() {
		defer close(done)
		granted := 0
		for received := 0; received < b.N && !b.Failed(); {
			_, r := e.server.pollCounts(b)
			for range r {
				in.post(b)
			}
			received, granted = received+r, granted+r
			if granted >= benchDepth/2 {
				credits <- granted
				granted = 0
			}
		}
	}()
	allowed, sent, completed := 0, 0, 0
	for completed < b.N && !b.Failed() {
		staged := sent
		for sent < b.N && sent < allowed && sent-completed < benchDepth {
			out.post(b)
			sent++
		}
		if sent != staged {
			e.client.vi.Doorbell()
		}
		s, _ := e.client.pollCounts(b)
		completed += s
		select {
		case n := <-credits:
			allowed += n
		default:
		}
	}
	for waiting := true; waiting; {
		select {
		case <-done:
			waiting = false
		case <-credits:
		default:
			e.client.pollCounts(b)
		}
	}
	b.StopTimer()
}

func benchRdma(b *testing.B, open Open, op via.Opcode, size int) {
	e := newEnv(b, open, plain, via.ReliableDelivery)
	if op == via.OpRdmaRead && !e.client.open().EnableRdmaRead {
		b.Skip("the provider has no RDMA Read")
	}
	e.connect()
	defer finish(e.client, e.server)
	r := newRing(e.client, op, size, at(e.server.buffer(size)))
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // polls the target, for providers that need them
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				e.server.pollCounts(b)
			}
		}
	}()
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	for posted, completed := 0, 0; completed < b.N && !b.Failed(); {
		for posted < b.N && posted-completed < benchDepth {
			r.post(b)
			posted++
		}
		e.client.vi.Doorbell()
		s, _ := e.client.pollCounts(b)
		completed += s
	}
	b.StopTimer()
	close(stop)
	<-done
}

// benchPostRate measures post, doorbell and poll of empty messages, 32 at a
// time, both ends on one goroutine.
func benchPostRate(b *testing.B, open Open) {
	e := newEnv(b, open, plain, via.ReliableDelivery)
	e.connect()
	defer finish(e.client, e.server)
	in, out := newRing(e.server, via.OpRecv, 0, nil), newRing(e.client, via.OpSend, 0, nil)
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N && !b.Failed(); n += benchDepth {
		for range benchDepth {
			in.post(b)
			out.post(b)
		}
		e.client.vi.Doorbell()
		for sent, received := 0, 0; (sent < benchDepth || received < benchDepth) && !b.Failed(); {
			s, _ := e.client.pollCounts(b)
			_, r := e.server.pollCounts(b)
			sent, received = sent+s, received+r
		}
	}
}
