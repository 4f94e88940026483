package roce_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/wire"
)

// crowd is an address that sends requests and answers nothing.
type crowd struct {
	*unknownPeer
	request wire.REQ // the next one
	l       *via.Listener
	p       *roce.Provider // of the listener
}

// newCrowd returns a crowd at a network whose lost function saw a request.
func newCrowd(t *testing.T, n *port.Network, request wire.REQ, l *via.Listener, p *roce.Provider) *crowd {
	t.Helper()
	c := &crowd{newUnknownPeer(t, n, "10.0.0.66:4791"), request, l, p}
	c.request.Primary.LocalGID = netip.MustParseAddr("10.0.0.66").As16()
	return c
}

// ask sends ten times as many requests as the consumer may have, and returns
// those that it gets: as many as are expected, and what comes soon after them.
func (c *crowd) ask(expected int) (asked []*via.ConnRequest) {
	c.t.Helper()
	received := func() uint64 { return managed(c.t, c.p, "10.0.0.2:4791").Manager.Received }
	before := received()
	for range 10 * crowdPlaces {
		c.request.TID++
		c.request.LocalID++
		c.request.LocalQP++
		b := make([]byte, wire.MADSize)
		c.request.Encode(b)
		c.send("10.0.0.2:4791", &wire.Packet{
			BTH:  wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: wire.GSI},
			DETH: wire.DETH{QKey: wire.GSIQKey, SourceQP: wire.GSI}, Payload: b,
		})
	}
	within(c.t, "the requests to arrive", func() bool { return received() >= before+10*crowdPlaces })
	for {
		limit := 200 * time.Millisecond
		if len(asked) < expected {
			limit = time.Minute
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		r, err := c.l.Wait(ctx)
		cancel()
		if err != nil {
			return asked
		}
		asked = append(asked, r)
	}
}

// crowdPlaces is how many requests of an address without cookies the consumer
// has at a time.
const crowdPlaces = 8

// The pending requests of one address are bounded, however many it sends. After
// a refusal the consumer gets another one, and other addresses can connect.
// Requests that the consumer confirms, and whose peer sends no RTU, count as
// long as that waits; they have neither VI nor memory.
func TestPendingRequestLimit(t *testing.T) {
	n := port.NewNetwork(1, 9000)
	var request wire.REQ
	n.SetFaults(port.Faults{Lose: func(_, _ netip.AddrPort, b []byte) bool {
		var p wire.Packet
		if p.Decode(b, wire.DefaultPKey) == wire.Accepted && p.DestQP == wire.GSI {
			var m wire.REQ
			if m.Decode(p.Payload) == wire.Accepted {
				request = m
			}
		}
		return false
	}})
	p := roce.New(roce.Options{Open: n.Open})
	x, y := newParty(t, p, "10.0.0.1"), newParty(t, p, "10.0.0.2")
	addr := via.Address{Host: "10.0.0.2", Discriminator: "crowd"}
	l, err := y.nic.Listen(addr)
	check(t, err)
	connect := func() {
		done := make(chan error, 1)
		go func() {
			r, err := l.Wait(context.Background())
			if err == nil {
				err = r.Accept(context.Background(), y.vi)
			}
			done <- err
		}()
		_, err := x.vi.Connect(context.Background(), addr)
		check(t, err)
		check(t, <-done)
	}
	connect()
	n.SetFaults(port.Faults{})

	c := newCrowd(t, n, request, l, p)
	asked := c.ask(crowdPlaces)
	if len(asked) != crowdPlaces {
		t.Errorf("the consumer has %d requests, want %d", len(asked), crowdPlaces)
	}
	for i := range asked[:3] {
		_ = asked[i].Reject() // fails if the request has timed out
	}
	if more := c.ask(3); len(more) != 3 {
		t.Errorf("after three refusals the consumer has %d requests more", len(more))
	} else {
		asked = append(asked, more...)
	}
	for _, r := range asked[3:] {
		_ = r.Reject() // as above
	}

	for range 2 {
		asked = c.ask(crowdPlaces)
		objects := y.nic.Agent().Objects.Load()
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, len(asked))
		for _, r := range asked {
			go func() { ended <- r.Confirm(ctx, y.vi.Attributes()) }()
		}
		links := func() (n int) {
			for _, s := range managed(t, p, "10.0.0.2:4791").Shards {
				n += len(s.Links)
			}
			return n - 1 // that of y
		}
		within(t, "a link for each request", func() bool { return links() == crowdPlaces })
		if more := c.ask(0); len(more) != 0 {
			t.Errorf("%d requests more while as many as an address may have wait for the RTU", len(more))
		}
		if now := y.nic.Agent().Objects.Load(); now != objects {
			t.Errorf("%d objects for requests without RTU", now-objects)
		}
		cancel()
		for range asked {
			if err := <-ended; !errors.Is(err, via.ErrTimeout) {
				t.Errorf("a request without RTU: %v", err)
			}
		}
		for _, r := range asked {
			if err := r.Accept(context.Background(), y.vi); !errors.Is(err, via.ErrInvalidParameter) && !errors.Is(err, via.ErrInvalidState) {
				t.Errorf("accept a request that ended: %v", err)
			}
		}
		within(t, "the end of the requests", func() bool {
			return links() == 0 && managed(t, p, "10.0.0.2:4791").Manager.Pending == 0
		})
	}
	check(t, x.vi.Disconnect())
	check(t, y.vi.Disconnect())
	connect()
	check(t, l.Close())
	x.close()
	y.close()
}
