package compare

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
)

// cableMTUs are those that part cable measures with.
var cableMTUs = []int{1500, 9000}

// startCable starts the chain over RoCE and its controls, between two hosts:
// nbdkit's proxy on the one, which serves what nbdkit has in memory on the
// other over TCP, and the same nbdkit without the proxy. All leave segments to
// the kernel; clients are on the first host. Each build has its own cable.
func startCable(t testing.TB, builds []build, size string, mtu int) *comparison {
	t.Helper()
	testbed.Requires(t, "nbdkit")
	b := &comparison{size: size}
	var bed *netbed.Bed
	for _, program := range builds {
		bed = netbed.New(t, netbed.Options{MTU: mtu, Whole: true})
		r := testbed.OverRoCE(t, program.program, bed, 4, testbed.Disk{Name: "disk", Spec: "memory:" + size})
		b.ours = append(b.ours, contender{name: "roce" + program.suffix, uri: r.URI, processes: []int{r.Target.PID(), r.Attach.PID()}})
	}
	listening := func(uri string) {
		testbed.Eventually(t, "nbdkit listening at "+uri, func() (any, bool) {
			c := testbed.StartPathAt(t, bed.A.StartGroup, nil, testbed.Locate("nbdinfo"), "--size", uri)
			return c.Output(), c.Wait(t, testbed.WaitLimit) == 0
		})
	}
	remote, socket := "nbd://"+bed.B.IPv4.String(), filepath.Join(testbed.Folder(t), "k")
	server := testbed.StartPathAt(t, bed.B.StartGroup, nil, testbed.Locate("nbdkit"), "-f", "-i", bed.B.IPv4.String(), "memory", size)
	listening(remote)
	proxy := testbed.StartPathAt(t, bed.A.StartGroup, nil, testbed.Locate("nbdkit"), "-f", "-U", socket, "nbd", "hostname="+bed.B.IPv4.String())
	local := "nbd+unix:///?socket=" + socket
	listening(local)
	b.client = testbed.ClientAt(bed.A.StartGroup)
	b.controls = []contender{
		{name: "proxy", uri: local, processes: []int{server.Cmd.Process.Pid, proxy.Cmd.Process.Pid}},
		{name: "nbdkit", uri: remote, processes: []int{server.Cmd.Process.Pid}},
	}
	b.fill(t)
	return b
}

// measureCable measures the chain over a network.
func (plan *costPlan) measureCable(t *testing.T, p *page) {
	t.Helper()
	for _, mtu := range cableMTUs {
		b := startCable(t, plan.builds(t), plan.size, mtu)
		b.rounds, b.runtime = plan.rounds, plan.runtime
		title := fmt.Sprintf("memory, RoCE over a cable with an MTU of %d, beside a proxy of nbdkit and nbdkit itself over TCP, one connection", mtu)
		p.addSection(fmt.Sprintf("cable-%d", mtu), title, b.compare(t, plan.cable))
	}
}

// TestCableWorks keeps the part alive where it does not run.
func TestCableWorks(t *testing.T) {
	plan, err := parseCost("cable", "plain", "1")
	testbed.Must(t, err)
	plan.cable = plan.cable[len(plan.cable)-2:]
	plan.rounds, plan.runtime, plan.size = 1, 100*time.Millisecond, "16M"
	p := measureCost(t, &plan)
	p.save(t, t.TempDir())
	if len(p.Contests) != len(cableMTUs) {
		t.Fatalf("%d sections, want %d", len(p.Contests), len(cableMTUs))
	}
	for _, s := range p.Contests {
		for _, o := range s.Outcomes {
			if len(o.Ratios) != 2 {
				t.Errorf("%s, %s: %d ratios, want 2", s.Name, o.Cell, len(o.Ratios))
			}
			for _, r := range o.Ratios {
				if !(r.Median > 0) || !(r.CPU > 0) || !(r.P50 > 0) {
					t.Errorf("%s, %s: %+v", s.Name, o.Cell, r)
				}
			}
		}
	}
}
