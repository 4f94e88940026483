package hook_test

import (
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/hook"
	"github.com/viablk/viablk/via/viatest"
	"github.com/viablk/viablk/via/viatest/loopback"
)

// fabric returns an opener of two devices of decorated loopback networks.
func fabric(decorate func(via.Provider) via.Provider) func(testing.TB) *viatest.Fabric {
	return func(t testing.TB) *viatest.Fabric {
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
			Client: nic(), Server: nic(), Sever: net.Sever,
			Address: func(discriminator string) via.Address {
				return via.Address{Host: "server", Discriminator: discriminator}
			},
		}
	}
}

func TestConformanceThroughTrace(t *testing.T) {
	viatest.Run(t, fabric(func(p via.Provider) via.Provider { return hook.Trace(p, discard{}) }), nil)
}

func TestConformanceThroughStats(t *testing.T) {
	viatest.Run(t, fabric(func(p via.Provider) via.Provider { return hook.Stats(p) }), nil)
}

func TestConformanceThroughStack(t *testing.T) {
	viatest.Run(t, fabric(func(p via.Provider) via.Provider {
		return hook.Trace(hook.Fault(hook.Stats(p), hook.Plan{}), discard{})
	}), nil)
}

// A fabric without room and with slow completions keeps all rules.
func TestConformanceUnderPressure(t *testing.T) {
	viatest.Run(t, fabric(func(p via.Provider) via.Provider {
		return hook.Fault(p, hook.Plan{Seed: 1, RefusePosts: 0.4, HoldCompletions: 3})
	}), nil)
}

// discard is io.Discard without its concurrency guarantee: Trace must serialise.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func BenchmarkStats(b *testing.B) {
	viatest.Bench(b, fabric(func(p via.Provider) via.Provider { return hook.Stats(p) }))
}
