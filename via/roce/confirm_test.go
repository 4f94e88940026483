package roce_test

import (
	"context"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/roce/port"
)

// confirmable returns a party, the listener of another, which has no VI for it
// yet, and the attributes of that VI.
func confirmable(t *testing.T, n *port.Network) (x, y *party, l *via.Listener, p *roce.Provider) {
	t.Helper()
	p = roce.New(roce.Options{Open: n.Open, Timeout: time.Minute})
	x, y = newParty(t, p, "10.0.0.1"), newParty(t, p, "10.0.0.2")
	l, err := y.nic.Listen(via.Address{Host: "10.0.0.2", Discriminator: "confirm"})
	check(t, err)
	return x, y, l, p
}

// connectConfirmed connects a VI, and returns the request, confirmed for
// another.
func connectConfirmed(t *testing.T, x, y *via.VI, l *via.Listener) *via.ConnRequest {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := x.Connect(context.Background(), l.Addr())
		done <- err
	}()
	r, err := l.Wait(context.Background())
	check(t, err)
	check(t, r.Confirm(context.Background(), y.Attributes()))
	check(t, <-done)
	return r
}

// A VI gets the messages that the peer sent before it existed, in order.
func TestDataBeforeAccept(t *testing.T) {
	x, y, l, p := confirmable(t, port.NewNetwork(1, 9000))
	const messages = 20
	for _, level := range []via.ReliabilityLevel{via.UnreliableDelivery, via.ReliableDelivery} {
		a, b := x.newVI(level, x.cq), y.newVI(level, y.cq)
		r := connectConfirmed(t, a, b, l)
		got, sent := uint64(0), 0
		for _, s := range managed(t, p, "10.0.0.2:4791").Shards {
			got += s.Port.Received
		}
		for i := range messages {
			d := x.build(via.OpSend, 8*i, 8, nil)
			d.SetImmediate(uint32(i))
			check(t, a.PostSend(d))
		}
		a.Doorbell()
		within(t, "a message at a link without a VI", func() bool {
			now := uint64(0)
			for _, s := range managed(t, p, "10.0.0.2:4791").Shards {
				now += s.Port.Received
			}
			sent += x.poll()
			return now > got
		})
		for range messages {
			check(t, b.PostRecv(y.build(via.OpRecv, 0, 8, nil)))
		}
		check(t, r.Accept(context.Background(), b))
		next := uint32(0)
		within(t, "the messages", func() bool {
			sent += x.poll()
			for _, c := range y.batch[:y.poll()] {
				if c.Recv && c.Immediate != next {
					t.Fatalf("message %d arrived in place of %d", c.Immediate, next)
				}
				next++
			}
			return next == messages && sent == messages
		})
		for _, vi := range []*via.VI{a, b} {
			check(t, vi.Disconnect())
			check(t, vi.Destroy())
		}
	}
	check(t, l.Close())
	x.close()
	y.close()
}

// The VI of a peer that left before it existed breaks.
func TestPeerLeavesBeforeAccept(t *testing.T) {
	x, y, l, _ := confirmable(t, port.NewNetwork(1, 9000))
	r := connectConfirmed(t, x.vi, y.vi, l)
	check(t, x.vi.Disconnect())
	if err := r.Accept(context.Background(), y.vi); err == nil {
		within(t, "the end of the connection", func() bool {
			y.cq.Poll(y.batch[:])
			return y.vi.State() == via.StateError
		})
	}
	check(t, y.vi.Disconnect())
	check(t, l.Close())
	x.close()
	y.close()
}
