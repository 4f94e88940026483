package roce_test

import (
	"net/netip"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/roce/port"
)

// The packets in flight to an end with a small receive buffer, and the read
// responses that it requests, fit into the buffer, in either role. Its peer has
// a large buffer.
func TestInFlightFitsReceiveBuffer(t *testing.T) {
	const bytes = 1 << 20
	roomy := roce.New(roce.Options{})
	narrow := roce.New(roce.Options{Open: func(local netip.AddrPort) (port.Port, error) {
		return port.OpenUDP(local, port.UDPOptions{ReceiveBuffer: 64 << 10, NoCoalescing: true}) // room for 14 packets
	}})
	for name, host := range map[string]string{"it accepts": "127.0.0.1", "it connects": "127.0.0.2"} {
		t.Run(name, func(t *testing.T) {
			x, y := newParty(t, roomy, ""), newParty(t, narrow, "")
			if name == "it accepts" {
				link(t, freePort(t, host), x.vi, y.vi, y.nic)
			} else {
				link(t, freePort(t, host), y.vi, x.vi, x.nic)
			}
			for i := range 4 {
				check(t, x.vi.PostSend(x.build(via.OpRdmaWrite, i*bytes, bytes, y)))
				check(t, y.vi.PostSend(y.build(via.OpRdmaRead, i*bytes/2, bytes/2, x)))
			}
			done := 0
			within(t, "the transfers", func() bool { done += x.poll() + y.poll(); return done == 8 })
			for _, e := range narrow.Statistics() {
				for _, s := range e.Shards {
					if c := s.Links[0].Counters; s.Port.Overrun != 0 {
						t.Errorf("%d packets found no room: %+v", s.Port.Overrun, c)
					}
				}
			}
			for _, e := range roomy.Statistics() {
				for _, s := range e.Shards {
					c := s.Links[0].Counters
					if c.Window > 7 {
						t.Errorf("cwnd is %d: %+v", c.Window, c)
					}
				}
			}
			x.close()
			y.close()
		})
	}
}
