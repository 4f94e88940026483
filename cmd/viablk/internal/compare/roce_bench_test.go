package compare

import (
	"testing"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
)

// benchVia measures between the hosts of a bed.
func benchVia(t testing.TB, b *netbed.Bed, args ...string) []benchRow {
	t.Helper()
	return benchRows(t, testbed.StartPathAt(t, b.A.StartGroup, testbed.Environment(t), testbed.PlainProgram(t),
		append([]string{"bench", "via", testbed.RoCEURI(b.B.IPv4), "-o", "json"}, args...)...))
}

// startBenchPeer starts the other end of measurements on host B.
func startBenchPeer(t testing.TB, b *netbed.Bed) {
	t.Helper()
	testbed.StartPathAt(t, b.B.StartGroup, testbed.Environment(t), testbed.PlainProgram(t), "bench", "via", "--listen", testbed.RoCEURI(b.B.IPv4))
	testbed.Eventually(t, "the other end", func() (any, bool) {
		c := testbed.StartPathAt(t, b.A.StartGroup, testbed.Environment(t), testbed.PlainProgram(t), "bench", "via", testbed.RoCEURI(b.B.IPv4),
			"--mode", "pingpong", "--sizes", "64", "--count", "1", "--rounds", "1")
		return c.Output(), c.Wait(t, testbed.WaitLimit) == 0
	})
}

// TestThroughputUnderLoss compares RDMA with and without loss.
func TestThroughputUnderLoss(t *testing.T) {
	testbed.OnDemand(t)
	for _, r := range measureLoss(t, 5, "--sizes", "64K,1M", "--wait", "poll,sleep") {
		t.Logf("%-30s loss %4.1f %% %8.0f MB/s, %.2f of lossless, %.2f of lossless with whole runs", r.row, 100*r.loss, r.mbps, r.cut, r.all)
	}
}

// TestBenchUnderLoss measures for a moment while 5 percent are lost. There are
// few messages: who polls waits for the ends of others' time slices.
func TestBenchUnderLoss(t *testing.T) {
	b := netbed.New(t, netbed.Options{MTU: 4500})
	startBenchPeer(t, b)
	faults := testbed.Losing(0.05)(b)
	rows := benchVia(t, b, "--quick", "--mode", "pingpong,window,rdma-write,rdma-read", "--wait", "poll,spin,sleep", "--count", "40")
	if len(rows) != 4*3*3 {
		t.Errorf("%d rows, want %d", len(rows), 4*3*3)
	}
	for i, f := range faults {
		if f.Hits() == 0 {
			t.Errorf("fault %d hit nothing", i)
		}
	}
}
