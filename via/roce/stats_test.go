package roce_test

import (
	"testing"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/roce/port"
)

func TestStatistics(t *testing.T) {
	p := roce.New(roce.Options{MTU: 1024})
	x, y := newParty(t, p, ""), newParty(t, p, "")
	link(t, freePort(t, "127.0.0.1"), x.vi, y.vi, y.nic)
	const count, size = 10, 10_000
	for range count {
		check(t, x.vi.PostSend(x.build(via.OpRdmaWrite, 0, size, y)))
	}
	done := 0
	within(t, "the writes", func() bool { done += x.poll() + y.poll(); return done == count })
	all := p.Statistics()
	if len(all) != 2 {
		t.Fatalf("%d endpoints, want 2", len(all))
	}
	var sent, received uint64
	for i, e := range all {
		if len(e.Shards) != 1 || len(e.Shards[0].Links) != 1 || e.Manager.Connections != 1 {
			t.Fatalf("endpoint %v: %+v", e.Local, e)
		}
		l := e.Shards[0].Links[0]
		if l.MTU != 1024 || !l.SameKind || l.Peer != all[1-i].Local || l.Reliability != via.ReliableDelivery {
			t.Errorf("link %+v", l)
		}
		sent, received = sent+e.Shards[0].Port.Sent, received+e.Shards[0].Port.Received
		if e.Shards[0].Unknown+e.Shards[0].BadSource+e.Shards[0].Refused+e.Shards[0].Errors != 0 {
			t.Errorf("shard %+v", e.Shards[0])
		}
		if l.Counters.Copied != 0 && l.Counters.Copied != count*size {
			t.Errorf("%d bytes copied", l.Counters.Copied)
		}
	}
	if sent < count*size/1024 || received < count*size/1024 {
		t.Errorf("%d packets sent, %d received", sent, received)
	}
	x.close()
	y.close()
	if n := len(p.Statistics()); n != 0 {
		t.Errorf("%d endpoints are left", n)
	}
}

// Retransmitted packets stay counted when their links have closed, more of them
// than a shard keeps statistics of.
func TestRetransmissionsOfClosedLinks(t *testing.T) {
	n := port.NewNetwork(7, 1500)
	n.SetFaults(port.Faults{Drop: 0.05})
	p := roce.New(roce.Options{Open: n.Open, Timeout: 80 * time.Millisecond, Retries: 7})
	x, y := newParty(t, p, "10.0.0.1"), newParty(t, p, "10.0.0.2")
	counted := func() (total uint64) {
		for _, e := range p.Statistics() {
			for i := range e.Shards {
				total += e.Shards[i].Retransmitted
			}
		}
		return total
	}
	l, err := y.nic.Listen(via.Address{Host: "10.0.0.2", Discriminator: "keep-open"})
	check(t, err)
	for range 10 {
		link(t, "10.0.0.2", x.vi, y.vi, y.nic)
		const count = 4
		for range count {
			check(t, x.vi.PostSend(x.build(via.OpRdmaWrite, 0, 50_000, y)))
		}
		done := 0
		within(t, "the writes", func() bool { done += x.poll() + y.poll(); return done == count })
		open := counted()
		for _, end := range []*party{x, y} {
			check(t, end.vi.Disconnect())
			check(t, end.vi.Destroy())
			end.vi = end.newVI(via.ReliableDelivery, end.cq)
		}
		if closed := counted(); closed < open {
			t.Fatalf("%d packets, %d when the link was closed", open, closed)
		}
	}
	if counted() == 0 {
		t.Error("no packet was retransmitted")
	}
	check(t, l.Close())
	x.close()
	y.close()
}
