package hook

import (
	"context"
	"fmt"
	"sort"
	"time"

	"github.com/viablk/viablk/via"
)

// Price is what a device takes for a region of so many bytes.
type Price struct{ Register, Deregister func(bytes int) time.Duration }

// Charge returns p with devices as slow to register as priced: a call takes the
// processor for that long, and what the device itself takes. It shows on a
// machine without such a device what one would cost.
func Charge(p via.Provider, price Price) via.Provider { return &charging{p, price} }

// PriceUCX is what UCX takes a NIC to need: 16 µs and 0.06 ns for each byte,
// half of it to deregister (ib_md.c).
func PriceUCX() Price {
	register := func(n int) time.Duration { return 16*time.Microsecond + time.Duration(0.06*float64(n)) }
	return Price{register, func(n int) time.Duration { return register(n) / 2 }}
}

// CIBR are the registration times of Table 1 of CIBR, over RapidIO, in
// microseconds, and those of a copy beside them.
var CIBR = []struct{ Bytes, Register, Copy int }{
	{4 << 10, 22, 6},
	{8 << 10, 25, 11},
	{16 << 10, 31, 20},
	{32 << 10, 42, 40},
	{64 << 10, 63, 77},
	{128 << 10, 108, 150},
	{256 << 10, 297, 310},
	{512 << 10, 378, 705},
	{1 << 20, 740, 1590},
}

// PriceCIBR is Table 1 of CIBR, with lines between its sizes and beyond them;
// half of it to deregister, about which the paper says nothing.
func PriceCIBR() Price {
	register := func(n int) time.Duration {
		i := min(max(sort.Search(len(CIBR), func(i int) bool { return CIBR[i].Bytes >= n }), 1), len(CIBR)-1)
		a, b := CIBR[i-1], CIBR[i]
		us := float64(a.Register) + float64(b.Register-a.Register)*float64(n-a.Bytes)/float64(b.Bytes-a.Bytes)
		return time.Duration(us * float64(time.Microsecond))
	}
	return Price{register, func(n int) time.Duration { return register(n) / 2 }}
}

type charging struct {
	via.Provider
	price Price
}

func (c *charging) Open(device string) (via.Adapter, error) {
	a, err := c.Provider.Open(device)
	if err != nil {
		return nil, err
	}
	return &charged{a, c}, nil
}

// charged is a device whose registrations take longer.
type charged struct {
	via.Adapter
	by *charging
}

func (a *charged) Register(m *via.Memory) error {
	burnCPU(a.by.price.Register(len(m.Bytes())))
	return a.Adapter.Register(m)
}

func (a *charged) Deregister(m *via.Memory) error {
	burnCPU(a.by.price.Deregister(len(m.Bytes())))
	return a.Adapter.Deregister(m)
}

// DiscoverHosts is the inner device's, if it has discovery.
func (a *charged) DiscoverHosts(ctx context.Context, hops int) ([]via.DiscoveredHost, error) {
	d, ok := a.Adapter.(via.Discoverer)
	if !ok {
		return nil, fmt.Errorf("%s has no discovery: %w", a.by.Name(), via.ErrNotSupported)
	}
	return d.DiscoverHosts(ctx, hops)
}

// burnCPU occupies the processor, as the pinning of pages does.
func burnCPU(d time.Duration) {
	for begin := time.Now(); time.Since(begin) < d; {
	}
}
