package roce

import (
	"testing"

	"github.com/viablk/viablk/integration/nemesis"
	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
)

// TestExactlyOnce: a disk over RoCE is linearizable whatever happens to the
// processes behind it and to the network between them.
func TestExactlyOnce(t *testing.T) {
	t.Run("file", func(t *testing.T) {
		t.Parallel()
		overNetwork(t, testbed.FileDisk(1<<20)(t), false)
	})
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		overNetwork(t, testbed.MemoryDisk("1MiB")(t), true)
	})
}

func overNetwork(t *testing.T, d testbed.Disk, memory bool) {
	t.Helper()
	b := netbed.New(t, netbed.Options{MTU: 4500})
	losing := func(name string, c netbed.Chance, hosts ...*netbed.Host) nemesis.Disturbance {
		return nemesis.Disturbance{Name: name, Begin: func() func() {
			var faults []*netbed.Fault
			for _, h := range hosts {
				faults = append(faults, h.Lose(netbed.Datagrams, c))
			}
			return func() {
				for _, f := range faults {
					f.Stop()
				}
			}
		}}
	}
	nemesis.Setup{
		Listen: testbed.RoCEURI(b.B.IPv4), Scheme: "via+roce", Disk: d, Memory: memory,
		Target: b.B.StartGroup, Attach: b.A.StartGroup,
		Network: []nemesis.Disturbance{
			losing("network cut", netbed.Always, b.A, b.B),
			losing("network cut to the target", netbed.Always, b.B),
			losing("network cut to the initiator", netbed.Always, b.A),
			losing("loss of 20 percent", netbed.Randomly(0.2), b.A, b.B),
		},
	}.Run(t)
}
