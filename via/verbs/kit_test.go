//go:build verbs && cgo

package verbs_test

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/verbs"
	"github.com/viablk/viablk/via/viatest"
)

// address returns an address of this machine's RDMA device.
func address(tb testing.TB) string {
	tb.Helper()
	a := os.Getenv("VIABLK_VERBS_ADDRESS")
	if a == "" {
		tb.Fatal("VIABLK_VERBS_ADDRESS must be an address of the RDMA device: integration/vm/interop runs these tests in a machine that has one")
	}
	return a
}

// nextPort is the next free port of the connection manager.
var nextPort atomic.Uint32

// open opens two NICs of the first device.
func open(tb testing.TB, decorate func(via.Provider) via.Provider) *viatest.Fabric {
	tb.Helper()
	p := decorate(verbs.New(verbs.Options{}))
	host := fmt.Sprintf("%s:%d", address(tb), 20000+nextPort.Add(1)%10000)
	nic := func() *via.NIC {
		n, err := via.OpenNic(p, "")
		if err != nil {
			tb.Fatal(err)
		}
		return n
	}
	return &viatest.Fabric{
		Client: nic(), Server: nic(), Open: nic,
		Address: func(d string) via.Address { return via.Address{Host: host, Discriminator: d} },
		Tells:   tells,
	}
}

// tells maps events that RC cannot distinguish. A receiver gets no event for a
// message that finds no receive. A responder's device reports that it refused
// an operation, not which one.
var tells = map[via.AsyncCode]via.AsyncCode{
	via.AsyncRecvQueueEmpty: via.AsyncConnectionLost,
	via.AsyncRdmaReadProt:   via.AsyncRdmaWriteProt,
}

var skips = viatest.Skips{
	"Discovery":         "the provider knows no way to find listeners",
	"DiscoveryRefusals": "the provider knows no way to find listeners",
	"FairOnOneQueue":    deviceSchedules,
	"FairOnOneNIC":      deviceSchedules,
	"DropAnywhere":      deviceSends,
	"DuplicateAnywhere": deviceSends,
	"ReorderAnywhere":   deviceSends,
	"CorruptAnywhere":   deviceSends,
	"TruncateAnywhere":  deviceSends,
	"CutAnywhere":       deviceSends,
	"RandomFaults":      deviceSends,
	"FaultsSpareOthers": deviceSends,

	"07-MessageCorrupt":                   deviceSends,
	"08-MessageLost":                      deviceSends,
	"09-PartialMessage":                   deviceSends,
	"12-WriteCorrupt":                     deviceSends,
	"15-ReadFails":                        deviceSends,
	"16-ConnectionLost: cut in a message": deviceSends,
}

// Reasons why cases are skipped.
const (
	deviceSchedules = "which queue pair is served next is the device's to decide"
	deviceSends     = "the device makes and sends the packets: none of them can be lost, damaged or sent twice on request"
)

func TestConformance(t *testing.T) { viatest.Run(t, open, skips) }
