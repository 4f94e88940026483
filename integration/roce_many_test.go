package integration

import (
	"fmt"
	"testing"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/via/roce/port"
)

// lanesOf returns the lanes that open connections of a process have, and how many
// connections there are.
func lanesOf(p *process) (lanes map[int]int, links int) {
	lanes = make(map[int]int)
	for _, n := range p.status().Network {
		for _, l := range n.Links {
			if !l.Closed && l.Sent > 0 {
				lanes[port.LaneOf(l.QueuePair)]++
				links++
			}
		}
	}
	return lanes, links
}

// TestManyConnections has four clients of one disk, each of which gets a connection
// and a worker of its own at both ends, with a socket of their own.
func TestManyConnections(t *testing.T) {
	const clients = 4
	for _, family := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", family), func(t *testing.T) {
			b := netbed.New(t, netbed.Options{MTU: 4500, Whole: true})
			r := overRoce(t, program(t), b, family, disk{"disk", "memory:32MiB"})
			job := startFio(t, r.uri, withVerify("--rw=randrw", "--bsrange=4k-256k", "--iodepth=16", "--size=8m",
				fmt.Sprint("--numjobs=", clients), "--offset_increment=8m", "--group_reporting", "--rate=4m")...)
			for name, p := range map[string]*process{"initiator": r.attach, "target": r.target} {
				eventually(t, "connections of the "+name, func() (any, bool) {
					lanes, links := lanesOf(p)
					return lanes, links > clients && len(lanes) > clients // one is for control
				})
			}
			succeed(t, job)
			for _, j := range fioReport(t, job) {
				if j.Error != 0 || j.Read.IOs == 0 || j.Write.IOs == 0 {
					t.Errorf("fio: error %d, %d reads, %d writes", j.Error, j.Read.IOs, j.Write.IOs)
				}
			}
			r.unharmed(t)
		})
	}
}
