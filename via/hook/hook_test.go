package hook_test

import (
	"context"
	"errors"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/hook"
	"github.com/viablk/viablk/via/viatest"
	"github.com/viablk/viablk/via/viatest/loopback"
)

// fabric returns an opener of two devices of decorated loopback networks.
func fabric(inner func(via.Provider) via.Provider) viatest.Open {
	return func(t testing.TB, outer func(via.Provider) via.Provider) *viatest.Fabric {
		t.Helper()
		net := loopback.New()
		p := outer(inner(net))
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
}

// With -short, a decorator alone runs the groups in which several goroutines
// use it; the stack of all runs the whole kit.
func conformanceAlone(t *testing.T, decorate func(via.Provider) via.Provider) {
	t.Helper()
	if testing.Short() {
		viatest.RunGroups(t, fabric(decorate), nil, "messaging", "rdma", "completion", "notice", "connection", "peers", "disconnect")
		return
	}
	viatest.Run(t, fabric(decorate), nil)
}

func TestConformanceThroughTrace(t *testing.T) {
	conformanceAlone(t, func(p via.Provider) via.Provider { return hook.Trace(p, discard{}) })
}

func TestConformanceThroughStats(t *testing.T) {
	conformanceAlone(t, func(p via.Provider) via.Provider { return hook.Stats(p) })
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
	}), viatest.Skips{"SpillRefillsRarely": "a fabric without room takes what waits piece by piece"})
}

// bare is a fabric without the optional capabilities.
type bare struct{ via.Provider }

func (b bare) Open(device string) (via.Adapter, error) {
	a, err := b.Provider.Open(device)
	return struct{ via.Adapter }{a}, err
}

// A decorator gives a fabric no capability that it lacks.
func TestDiscoveryIsTheFabrics(t *testing.T) {
	for name, c := range map[string]struct {
		provider via.Provider
		want     error
	}{
		"with":    {loopback.New(), nil},
		"without": {bare{loopback.New()}, via.ErrNotSupported},
	} {
		n, err := via.OpenNic(hook.Trace(hook.Stats(c.provider), discard{}), "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.Discover(context.Background(), 1); !errors.Is(err, c.want) {
			t.Errorf("%s: discover: %v, want %v", name, err, c.want)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}

// discard is io.Discard without its concurrency guarantee: Trace must
// serialise.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func BenchmarkStats(b *testing.B) {
	viatest.Bench(b, fabric(func(p via.Provider) via.Provider { return hook.Stats(p) }))
}
