package shm_test

import (
	"path/filepath"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
	"github.com/viablk/viablk/via/viatest"
)

// openFabric opens two NICs of this process that meet at a socket.
func openFabric(tb testing.TB) *viatest.Fabric {
	nic := func() *via.NIC {
		n, err := via.OpenNic(shm.New(shm.Options{}), "")
		must(tb, err)
		return n
	}
	host := filepath.Join(tb.TempDir(), "s")
	return &viatest.Fabric{
		Client: nic(), Server: nic(),
		Address: func(d string) via.Address { return via.Address{Host: host, Discriminator: d} },
	}
}

func TestConformance(t *testing.T) {
	viatest.Run(t, openFabric, viatest.Skips{"FabricCut": "shared memory can not be cut"})
}

func BenchmarkConformance(b *testing.B) { viatest.Bench(b, openFabric) }
