package roce_test

import (
	"bytes"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
)

// RDMA needs no consumer at the responder: neither one that polls, nor one that
// sleeps on an armed queue.
func TestRdmaToIdleConsumer(t *testing.T) {
	for name, before := range map[string]func(y *party){
		"busy":  func(*party) {},
		"armed": func(y *party) { y.cq.Arm() },
	} {
		t.Run(name, func(t *testing.T) {
			p := roce.New(roce.Options{})
			x, y := newParty(t, p, ""), newParty(t, p, "")
			link(t, freePort(t, "127.0.0.1"), x.vi, y.vi, y.nic)
			before(y)
			const rounds, size = 20, 100_000
			for i := range rounds {
				src := x.payload(0, size)
				for j := range src {
					src[j] = byte(i + j)
				}
				want := bytes.Clone(src)
				check(t, x.vi.PostSend(x.build(via.OpRdmaWrite, 0, size, y)))
				within(t, "the write", func() bool { return x.poll() == 1 })
				if !bytes.Equal(y.payload(0, size), want) {
					t.Fatalf("round %d: the write is complete but the data is missing", i)
				}
				clear(src)
				check(t, x.vi.PostSend(x.build(via.OpRdmaRead, 0, size, y)))
				within(t, "the read", func() bool { return x.poll() == 1 })
				if !bytes.Equal(src, want) {
					t.Fatalf("round %d: the read returned other data", i)
				}
			}
			x.close()
			y.close()
		})
	}
}

// Messages acknowledged while the consumer does not poll complete once, in
// order, when it polls again.
func TestMessagesToLatePoller(t *testing.T) {
	p := roce.New(roce.Options{})
	x, y := newParty(t, p, ""), newParty(t, p, "")
	link(t, freePort(t, "127.0.0.1"), x.vi, y.vi, y.nic)
	const count = 30
	for i := range count {
		check(t, y.vi.PostRecv(y.build(via.OpRecv, 64*i, 64, nil)))
	}
	for i := range count {
		d := x.build(via.OpSend, 64*i, 64, nil)
		d.SetImmediate(uint32(i))
		check(t, x.vi.PostSend(d))
	}
	sent := 0
	within(t, "all sends, although the receiver does not poll", func() bool { sent += x.poll(); return sent == count })
	got := 0
	within(t, "all messages", func() bool {
		n := y.cq.Poll(y.batch[:])
		for _, c := range y.batch[:n] {
			if c.Status.Failed() || c.Immediate != uint32(got) {
				t.Fatalf("receive %d: message %d, %v", got, c.Immediate, c.Status)
			}
			got++
		}
		return got == count
	})
	x.close()
	y.close()
}
