package roce_test

import (
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
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
