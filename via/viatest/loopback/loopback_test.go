package loopback_test

import (
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/viatest"
	"github.com/viablk/viablk/via/viatest/loopback"
)

func open(t testing.TB, decorate func(via.Provider) via.Provider) *viatest.Fabric {
	t.Helper()
	net := loopback.New()
	p := decorate(net)
	nic := func() *via.NIC {
		n, err := via.OpenNic(p, "")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return &viatest.Fabric{
		Client: nic(), Server: nic(), Open: nic,
		Address: func(discriminator string) via.Address {
			return via.Address{Host: "server", Discriminator: discriminator}
		},
	}
}

func TestConformance(t *testing.T) { viatest.Run(t, open, nil) }

func BenchmarkLoopback(b *testing.B) { viatest.Bench(b, open) }
