package compare

import (
	"path/filepath"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

// proxyCells are the loads of proxies.
const proxyCells = "randread 4k 1;randwrite 4k 1;randread 4k 32;randwrite 4k 32;read 128k 16;write 128k 16;read 1m 8;write 1m 8"

// startProxies starts our target and nbdkit, each in front of an NBD server of
// its own, and one more such server: clients of that are what a proxy could
// come to that costs nothing.
func startProxies(t testing.TB, size string) *comparison {
	t.Helper()
	origin := func() string {
		socket := filepath.Join(testbed.Folder(t), "o")
		testbed.StartTool(t, "nbdkit", "-f", "-U", socket, "memory", size)
		testbed.WaitForSocket(t, socket)
		return "nbd+unix:///?socket=" + socket
	}
	ours := testbed.Ways[0].Serve(t, testbed.PlainProgram(t), testbed.Disk{Name: "disk", Spec: origin()})
	socket := filepath.Join(testbed.Folder(t), "p")
	theirs := testbed.StartTool(t, "nbdkit", "-f", "-U", socket, "nbd", "uri="+origin())
	testbed.WaitForSocket(t, socket)
	b := &comparison{
		size: size, ours: []contender{{name: "proxy", uri: ours.URI, processes: []int{ours.Target.PID()}}, {name: "no proxy", uri: origin()}},
		controls: []contender{{name: "nbdkit nbd", uri: "nbd+unix:///?socket=" + socket, processes: []int{theirs.Cmd.Process.Pid}}},
	}
	b.fill(t)
	return b
}

// TestCompareProxies compares a target whose disk is an export of another NBD
// server with nbdkit's proxy in front of the same.
func TestCompareProxies(t *testing.T) {
	testbed.OnDemand(t)
	startProxies(t, "256M").run(t, proxyCells)
}
