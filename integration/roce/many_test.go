package roce

import (
	"fmt"
	"testing"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/via/roce/port"
)

// socketsOf counts the open connections of a process by socket, and how
// many connections there are.
func socketsOf(p *testbed.Process) (sockets map[int]int, links int) {
	sockets = make(map[int]int)
	for _, n := range p.Status().Network {
		for _, l := range n.Links {
			if !l.Closed && l.Sent > 0 {
				sockets[port.ShardOf(l.QueuePair)]++
				links++
			}
		}
	}
	return sockets, links
}

// TestManyConnections has four clients of one disk, each of which gets a
// connection and a worker of its own at both ends, with a socket of their own.
func TestManyConnections(t *testing.T) {
	const clients = 4
	for _, family := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", family), func(t *testing.T) {
			b := netbed.New(t, netbed.Options{MTU: 4500, Whole: true})
			r := testbed.OverRoCE(t, testbed.Program(t), b, family, testbed.Disk{Name: "disk", Spec: "memory:32MiB"})
			for range clients { // whose connections stay
				testbed.Connect(t, r.URI).Ask("read 0 4096", "ok")
			}
			for name, p := range map[string]*testbed.Process{"initiator": r.Attach, "target": r.Target} {
				testbed.Eventually(t, "connections of the "+name, func() (any, bool) {
					sockets, links := socketsOf(p)
					return sockets, links > clients && len(sockets) > clients // one is for control
				})
			}
			for _, j := range testbed.Fio(t, r.URI, testbed.WithVerify("--rw=randrw", "--bsrange=4k-256k", "--iodepth=16", "--size=4m",
				fmt.Sprint("--numjobs=", clients), "--offset_increment=8m", "--group_reporting")...) {
				if j.Error != 0 || j.Read.IOs == 0 || j.Write.IOs == 0 {
					t.Errorf("fio: error %d, %d reads, %d writes", j.Error, j.Read.IOs, j.Write.IOs)
				}
			}
			r.Unharmed(t)
		})
	}
}
