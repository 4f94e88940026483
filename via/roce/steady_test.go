package roce_test

import (
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
)

// The data path allocates nothing, over sockets too.
func TestAllocNothingPerMessage(t *testing.T) {
	for name, level := range map[string]via.ReliabilityLevel{
		"unreliable": via.UnreliableDelivery, "delivery": via.ReliableDelivery, "reception": via.ReliableReception,
	} {
		t.Run(name, func(t *testing.T) {
			p := roce.New(roce.Options{})
			x, y := newParty(t, p, ""), newParty(t, p, "")
			a, b := x.newVI(level, x.cq), y.newVI(level, y.cq)
			link(t, freePort(t, "127.0.0.1"), a, b, y.nic)
			send, recv := x.build(via.OpSend, 0, 20_000, nil), y.build(via.OpRecv, 0, 20_000, nil)
			write := x.build(via.OpRdmaWrite, 0, 64, y)
			ok := true
			cycle := func() {
				ok = ok && b.PostRecv(recv) == nil && a.StageSend(send) == nil && a.PostSend(write) == nil
				for done := 0; done < 3; {
					done += x.cq.Poll(x.batch[:]) + y.cq.Poll(y.batch[:])
				}
				ok = ok && !send.Status().Failed() && !recv.Status().Failed()
			}
			for range 200 {
				cycle()
			}
			if n := testing.AllocsPerRun(200, cycle); n != 0 || !ok {
				t.Errorf("%.1f allocations for three operations; good: %v", n, ok)
			}
			x.close(a)
			y.close(b)
		})
	}
}
