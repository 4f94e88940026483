package compare

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
)

// startRoceComparison starts the chain over RoCE and its control: nbdkit's
// proxy on the one host, which serves what nbdkit has in memory on the other
// over TCP. Both use the same cable, and leave segments to the kernel.
func startRoceComparison(t testing.TB, size string, mtu int) *comparison {
	t.Helper()
	testbed.Requires(t, "nbdkit")
	bed := netbed.New(t, netbed.Options{MTU: mtu, Whole: true})
	r := testbed.OverRoCE(t, testbed.PlainProgram(t), bed, 4, testbed.Disk{Name: "disk", Spec: "memory:" + size})
	testbed.StartPathAt(t, bed.B.StartGroup, nil, testbed.Locate("nbdkit"), "-f", "-i", bed.B.IPv4.String(), "memory", size)
	listening := func(uri string) {
		testbed.Eventually(t, "nbdkit listening at "+uri, func() (any, bool) {
			c := testbed.StartPathAt(t, bed.A.StartGroup, nil, testbed.Locate("nbdinfo"), "--size", uri)
			return c.Output(), c.Wait(t, testbed.WaitLimit) == 0
		})
	}
	listening("nbd://" + bed.B.IPv4.String())
	socket := filepath.Join(testbed.Folder(t), "k")
	testbed.StartPathAt(t, bed.A.StartGroup, nil, testbed.Locate("nbdkit"), "-f", "-U", socket, "nbd", "hostname="+bed.B.IPv4.String())
	proxy := "nbd+unix:///?socket=" + socket
	listening(proxy)
	b := &comparison{
		ours: []contender{{name: "roce", uri: r.URI}}, controls: []contender{{name: "proxy", uri: proxy}}, size: size,
	}
	b.fill(t)
	return b
}

// roceCells are the kinds of load of the comparison over a network.
const roceCells = "randread 4k 32;randwrite 4k 32;read 128k 16;write 128k 16"

// TestCompareRoceWithNbdkit is the benchmark of the whole over a network; see
// docs/benchmarking.md.
func TestCompareRoceWithNbdkit(t *testing.T) {
	testbed.OnDemand(t)
	for _, mtu := range []int{1500, 4500} {
		t.Run(fmt.Sprintf("MTU %d", mtu), func(t *testing.T) {
			startRoceComparison(t, "1G", mtu).run(t, roceCells)
		})
	}
}

// TestRoceComparisonWorks keeps the benchmark alive where it does not run.
func TestRoceComparisonWorks(t *testing.T) {
	b := startRoceComparison(t, "16M", 4500)
	b.rounds, b.runtime = 1, 100_000_000
	for _, s := range summarize(b.compare(t, []cell{{op: "randread", size: "4k", depth: 4}, {op: "write", size: "128k", depth: 2}})) {
		if !(s.Worst > 0) {
			t.Error(s)
		}
	}
}

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

// TestBenchUnderLoss measures for a moment while 5 percent are lost.
func TestBenchUnderLoss(t *testing.T) {
	b := netbed.New(t, netbed.Options{MTU: 4500})
	startBenchPeer(t, b)
	faults := testbed.Losing(0.05)(b)
	rows := benchVia(t, b, "--quick", "--mode", "pingpong,window,rdma-write,rdma-read", "--wait", "poll,spin,sleep", "--count", "200")
	if len(rows) != 4*3*3 {
		t.Errorf("%d rows, want %d", len(rows), 4*3*3)
	}
	for i, f := range faults {
		if f.Hits() == 0 {
			t.Errorf("fault %d hit nothing", i)
		}
	}
}
