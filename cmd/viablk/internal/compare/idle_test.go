package compare

import (
	"fmt"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

// TestIdleCost prints what a client pays for a thousand idle ones: requests for
// each second alone, and among them.
func TestIdleCost(t *testing.T) {
	testbed.OnDemand(t)
	testbed.Requires(t, "fio")
	testbed.RaiseFiles(t, 4*testbed.ManyClients+testbed.FilesOfBoth)
	single, many := testbed.StartScaleServer(t, 1, "memory:64MiB"), testbed.StartScaleServer(t, testbed.ManyClients, "memory:64MiB")
	c := testbed.NewCrowd(t, many, "d0")
	for i := range testbed.ManyClients {
		conn := c.Join()
		testbed.Must(t, testbed.Negotiate(conn, fmt.Sprintf("d%d", i)))
		testbed.Must(t, testbed.ReadFirst(conn))
	}
	b := &comparison{
		ours:     []contender{{name: "among idle clients", uri: many.URI("d0", "nbd+unix")}},
		controls: []contender{{name: "alone", uri: single.URI("d0", "nbd+unix")}},
		size:     "64M",
	}
	b.fill(t)
	b.run(t, "randread 4k 1;randread 4k 32;randwrite 4k 32;read 128k 16")
}
