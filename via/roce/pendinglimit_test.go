package roce_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/wire"
)

// The pending requests of one address are bounded, however many it sends. After
// a refusal the consumer gets another one, and other addresses can connect.
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

	s := newUnknownPeer(t, n, "10.0.0.66:4791")
	request.Primary.LocalGID = netip.MustParseAddr("10.0.0.66").As16()
	crowd := func(count int) (asked []*via.ConnRequest) {
		for range count {
			request.TID++
			request.LocalID++
			request.LocalQP++
			b := make([]byte, wire.MADSize)
			request.Encode(b)
			s.send("10.0.0.2:4791", &wire.Packet{
				BTH:  wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: wire.GSI},
				DETH: wire.DETH{QKey: wire.GSIQKey, SourceQP: wire.GSI}, Payload: b,
			})
		}
		for {
			ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
			r, err := l.Wait(ctx)
			cancel()
			if err != nil {
				return asked
			}
			asked = append(asked, r)
		}
	}
	const most = 16
	asked := crowd(10 * most)
	if len(asked) != most {
		t.Errorf("the consumer has %d requests, want %d", len(asked), most)
	}
	for i := range asked[:3] {
		_ = asked[i].Reject() // fails if the request has timed out
	}
	if more := crowd(10 * most); len(more) != 3 {
		t.Errorf("after three refusals the consumer has %d requests more", len(more))
	} else {
		asked = append(asked, more...)
	}
	check(t, x.vi.Disconnect())
	check(t, y.vi.Disconnect())
	connect()
	for _, r := range asked[3:] {
		_ = r.Reject() // as above
	}
	check(t, l.Close())
	x.close()
	y.close()
}
