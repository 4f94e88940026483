package shm_test

import (
	"flag"
	"math/bits"
	"path/filepath"
	"strings"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
	"github.com/viablk/viablk/via/viatest"
)

// openFabric opens two NICs of this process that meet at a socket.
func openFabric(tb testing.TB, decorate func(via.Provider) via.Provider) *viatest.Fabric {
	p := decorate(shm.New(shm.Options{}))
	nic := func() *via.NIC {
		n, err := via.OpenNic(p, "")
		must(tb, err)
		return n
	}
	host := filepath.Join(tb.TempDir(), "s")
	return &viatest.Fabric{
		Client: nic(), Server: nic(), Open: nic,
		Address: func(d string) via.Address { return via.Address{Host: host, Discriminator: d} },
	}
}

// The provider passes all of the kit: no case is skipped, and the error matrix
// has its 17 rows at 3 levels.
func TestConformance(t *testing.T) {
	r := viatest.Run(t, openFabric, nil)
	if strings.Contains(flag.Lookup("test.run").Value.String()+flag.Lookup("test.skip").Value.String(), "/") {
		return // a part was asked for
	}
	want := viatest.Result{Cells: 51}
	for _, c := range viatest.Cases() {
		want.Cases += bits.OnesCount16(uint16(c.Reliability))
	}
	if r != want {
		t.Errorf("ran %+v, want %+v", r, want)
	}
}

func BenchmarkConformance(b *testing.B) { viatest.Bench(b, openFabric) }
