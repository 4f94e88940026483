package integration

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/viablk/viablk/integration/netbed"
)

// startRoceComparison starts the chain over RoCE and its control: nbdkit's proxy
// on the one host, which serves what nbdkit has in memory on the other over TCP.
// Both use the same cable, and leave segments to the kernel.
func startRoceComparison(t testing.TB, size string, mtu int) *comparison {
	t.Helper()
	requires(t, "nbdkit")
	bed := netbed.New(t, netbed.Options{MTU: mtu, Whole: true})
	r := overRoce(t, plain(t), bed, 4, disk{"disk", "memory:" + size})
	startPathAt(t, bed.B.StartGroup, nil, locate("nbdkit"), "-f", "-i", bed.B.IPv4.String(), "memory", size)
	eventually(t, "nbdkit listening", func() (any, bool) {
		c := startPathAt(t, bed.A.StartGroup, nil, locate("nbdinfo"), "--size", "nbd://"+bed.B.IPv4.String())
		return c.output(), c.wait(t, patience) == 0
	})
	socket := filepath.Join(folder(t), "k")
	startPathAt(t, bed.A.StartGroup, nil, locate("nbdkit"), "-f", "-U", socket, "nbd", "hostname="+bed.B.IPv4.String())
	waitForSocket(t, socket)
	b := &comparison{
		ours: []contender{{"roce", r.uri}}, controls: []contender{{"proxy", "nbd+unix:///?socket=" + socket}}, size: size,
	}
	b.fill(t)
	return b
}

// roceCells are the kinds of load of the comparison over a network.
const roceCells = "randread 4k 32;randwrite 4k 32;read 128k 16;write 128k 16"

// TestCompareRoceWithNbdkit is the benchmark of the whole over a network; see
// docs/benchmarking.md.
func TestCompareRoceWithNbdkit(t *testing.T) {
	onDemand(t)
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
	for _, s := range summarize(b.compare(t, []cell{{"randread", "4k", 4}, {"write", "128k", 2}})) {
		if !(s.Worst > 0) {
			t.Error(s)
		}
	}
}

// benchVia measures between the hosts of a bed.
func benchVia(t testing.TB, b *netbed.Bed, args ...string) []benchRow {
	t.Helper()
	return benchRows(t, startPathAt(t, b.A.StartGroup, environment(t), plain(t),
		append([]string{"bench", "via", roceURI(b.B.IPv4), "-o", "json"}, args...)...))
}

// startBenchPeer starts the other end of measurements on host B.
func startBenchPeer(t testing.TB, b *netbed.Bed) {
	t.Helper()
	startPathAt(t, b.B.StartGroup, environment(t), plain(t), "bench", "via", "--listen", roceURI(b.B.IPv4))
	eventually(t, "the other end", func() (any, bool) {
		c := startPathAt(t, b.A.StartGroup, environment(t), plain(t), "bench", "via", roceURI(b.B.IPv4),
			"--mode", "pingpong", "--sizes", "64", "--count", "1", "--rounds", "1")
		return c.output(), c.wait(t, patience) == 0
	})
}

// TestThroughputUnderLoss compares RDMA with and without loss.
func TestThroughputUnderLoss(t *testing.T) {
	onDemand(t)
	for _, r := range measureLoss(t, 5, "--sizes", "64K,1M", "--wait", "poll,sleep") {
		t.Logf("%-30s loss %4.1f %% %8.0f MB/s, %.2f of lossless, %.2f of lossless with whole runs", r.row, 100*r.loss, r.mbps, r.cut, r.all)
	}
}

// TestBenchUnderLoss measures for a moment while 5 percent are lost.
func TestBenchUnderLoss(t *testing.T) {
	b := netbed.New(t, netbed.Options{MTU: 4500})
	startBenchPeer(t, b)
	faults := losing(0.05)(b)
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
