package roce_test

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/hook"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/viatest"
)

// brief are options that detect a dead peer quickly. Both ends are in one
// process: a connection breaks if an end is not scheduled for 240 ms, and its
// messages complete with a transport error or as partial messages.
var brief = roce.Options{Timeout: 40 * time.Millisecond, Retries: 5}

// loaded are options for peers that are alive on a busy machine.
var loaded = roce.Options{Timeout: 500 * time.Millisecond, Retries: 5}

// breaking are in the names of the kit's cases that wait for the break of a
// connection, which takes six times the timeout, and expect no more of it.
var breaking = []string{
	"/DropAnywhere", "/TruncateAnywhere", "/CorruptAnywhere", "/RandomFaults",
	"-MessageCorrupt", "-MessageLost", "-PartialMessage", "-WriteCorrupt", "-ReadFails",
}

// optionsFor returns the options with which a case opens its NICs.
func optionsFor(tb testing.TB) roce.Options {
	if slices.ContainsFunc(breaking, func(name string) bool { return strings.Contains(tb.Name(), name) }) {
		return brief
	}
	return loaded
}

// openLossy opens two NICs on a network in memory that drops, duplicates,
// reorders and corrupts packets.
func openLossy(tb testing.TB, decorate func(via.Provider) via.Provider) *viatest.Fabric {
	tb.Helper()
	n := port.NewNetwork(7, 9000)
	n.SetFaults(port.Faults{Drop: 0.02, Duplicate: 0.01, Reorder: 0.02, Corrupt: 0.01})
	o := roce.Options{Open: n.Open, Timeout: 80 * time.Millisecond, Retries: 5}
	plain := roce.New(o)
	keepOpen(tb, plain, "10.0.0.2")
	p := decorate(reliable{plain})
	return &viatest.Fabric{
		Client: openNIC(tb, p, "10.0.0.1"), Server: openNIC(tb, p, "10.0.0.2"),
		Open:    func() *via.NIC { return openNIC(tb, p, "10.0.0.3") },
		Address: func(d string) via.Address { return via.Address{Host: "10.0.0.2", Discriminator: d} },
	}
}

// keepOpen keeps an endpoint at an address, which refuses connections to
// services without a listener. Unlike the kernel, a network in memory does not
// report an unused address.
func keepOpen(tb testing.TB, p via.Provider, device string) {
	tb.Helper()
	n := openNIC(tb, p, device)
	l, err := n.Listen(via.Address{Host: device + "/1", Discriminator: "keep-open"})
	check(tb, err)
	tb.Cleanup(func() {
		check(tb, l.Close())
		check(tb, n.Close())
	})
}

// reliable is a provider without unreliable delivery, which guarantees nothing
// on a lossy network.
type reliable struct{ via.Provider }

func (p reliable) Open(device string) (via.Adapter, error) {
	a, err := p.Provider.Open(device)
	return reliableAdapter{a}, err
}

type reliableAdapter struct{ via.Adapter }

func (a reliableAdapter) Limits() via.Limits {
	l := a.Adapter.Limits()
	l.ReliabilityLevels &^= via.UnreliableDelivery
	return l
}

// openUDP returns a function that opens two NICs that connect over an address
// of this host.
func openUDP(addr string) viatest.Open {
	return func(tb testing.TB, decorate func(via.Provider) via.Provider) *viatest.Fabric {
		tb.Helper()
		p := decorate(roce.New(optionsFor(tb)))
		host := freePort(tb, addr)
		return &viatest.Fabric{
			Client: openNIC(tb, p, ""), Server: openNIC(tb, p, ""),
			Open:    func() *via.NIC { return openNIC(tb, p, "") },
			Address: func(d string) via.Address { return via.Address{Host: host, Discriminator: d} },
		}
	}
}

func openNIC(tb testing.TB, p via.Provider, device string) *via.NIC {
	tb.Helper()
	n, err := via.OpenNic(p, device)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// nextPort is the next candidate of freePort: below the kernel's ephemeral
// ports.
var nextPort atomic.Uint32

const firstPort, ports = 10_000, 20_000

// freePort returns a host with a free UDP port, which it returns only once in
// this process.
func freePort(tb testing.TB, addr string) string {
	tb.Helper()
	for range ports {
		port := firstPort + (uint32(os.Getpid())*1000+nextPort.Add(1))%ports
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(port))))
		if err == nil {
			defer func() { _ = c.Close() }()
			return fmt.Sprint(c.LocalAddr())
		}
	}
	tb.Fatalf("no port of %s is free", addr)
	return ""
}

var skips = viatest.Skips{
	"LossesAreCounted":  "a datagram without room at its receiver is lost unseen: who counts packets does not know messages",
	"Discovery":         "the provider knows no way to find listeners",
	"DiscoveryRefusals": "the provider knows no way to find listeners",
}

func TestConformanceIPv4(t *testing.T) { viatest.Run(t, openUDP("127.0.0.1"), skips) }

// TestConformanceIPv6 runs the cases that depend on addresses and on queue
// depths: through decorators with small queues and late completions.
func TestConformanceIPv6(t *testing.T) {
	groups := []string{
		"messaging", "rdma", "ordering", "flow", "lossy", "spill", "fairness", "completion", "announcement",
		"workqueue", "notice", "connection", "peers", "names", "disconnect", "steady",
	}
	if testing.Short() {
		groups = shortGroups
	}
	more := maps.Clone(skips)
	more["SpillRefillsRarely"] = "a fabric without room takes what waits piece by piece"
	viatest.RunGroups(t, func(tb testing.TB, decorate func(via.Provider) via.Provider) *viatest.Fabric {
		return openUDP("::1")(tb, func(p via.Provider) via.Provider {
			return decorate(hook.Fault(hook.Stats(p), hook.Plan{Seed: 1, RefusePosts: 0.4, HoldCompletions: 3}))
		})
	}, more, groups...)
}

// shortGroups are what another kind of address or of device does otherwise.
// With -short these alone run for a device beside that of IPv4, which shows the
// race detector all.
var shortGroups = []string{"messaging", "connection", "names", "disconnect"}

// TestConformanceUnderLoss shows that reliable connections recover from loss on
// the network.
func TestConformanceUnderLoss(t *testing.T) {
	more := maps.Clone(skips)
	for _, name := range []string{"FairOnOneQueue", "FairOnOneNIC", "FairWhileFlushing"} {
		more[name] = "who waits for a packet that is lost waits longer than others"
	}
	viatest.Run(t, openLossy, more)
}

func BenchmarkConformance(b *testing.B) { viatest.Bench(b, openUDP("127.0.0.1")) }
