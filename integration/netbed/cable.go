package netbed

import (
	"fmt"
	"net/netip"

	"github.com/viablk/viablk/internal/netns"
)

// Cable is one of two cables between the hosts of a bed.
type Cable struct {
	A, B   netip.Addr // of the hosts on it
	device string
	bed    *Bed
}

// Cables lays a second cable, with a network of its own, and returns both.
func (b *Bed) Cables() [2]*Cable {
	b.A.t.Helper()
	if err := b.pair.AddCable(b.mtu); err != nil {
		b.A.t.Fatal(err)
	}
	return [2]*Cable{
		{A: b.A.IPv4, B: b.B.IPv4, device: netns.Device, bed: b},
		{A: netns.NearSecond, B: netns.FarSecond, device: netns.SecondDevice, bed: b},
	}
}

// Silence has the cable swallow every packet, which neither end notices, until
// mend.
func (c *Cable) Silence() (mend func()) {
	hosts := []*Host{c.bed.A, c.bed.B}
	for _, h := range hosts {
		h.t.Helper()
		h.run("nft", fmt.Sprintf("table netdev silent_%s {\n chain swallow {\n type filter hook ingress device %s priority 0; policy drop;\n }\n}\n", c.device, c.device), "-f", "-")
	}
	return func() {
		for _, h := range hosts {
			h.t.Helper()
			h.run("nft", "", "delete", "table", "netdev", "silent_"+c.device)
		}
	}
}

// Unplug takes the cable out at both ends until mend.
func (c *Cable) Unplug() (mend func()) {
	set := func(state string) {
		for _, h := range []*Host{c.bed.A, c.bed.B} {
			h.t.Helper()
			h.run("ip", "", "link", "set", "dev", c.device, state)
		}
	}
	set("down")
	return func() { set("up") }
}
