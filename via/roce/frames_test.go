package roce_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/viablk/viablk/internal/netns"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/roce/ethernet"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/viatest"
)

// Addresses on the cable between two namespaces, beside the kernels' own.
const (
	framesNear  = "10.0.0.101:4791"
	framesFar   = "10.0.0.102:4791"
	framesThird = "10.0.0.103:4791"
)

// cable is two namespaces; open chooses one by the address of the port.
type cable struct{ *netns.Pair }

func newCable(t *testing.T) cable {
	t.Helper()
	pair, err := netns.NewPair(4500)
	check(t, err)
	t.Cleanup(func() { check(t, pair.Close()) })
	return cable{pair}
}

// open opens a port beside the kernel of one namespace.
func (c cable) open(local netip.AddrPort) (p port.Port, err error) {
	n := c.Near
	if local.String() == framesFar {
		n = c.Far
	}
	err = n.Do(func() error {
		link, err := ethernet.InterfaceLink(netns.Device)
		if err == nil {
			p, err = ethernet.Open(local, link, ethernet.Options{})
		}
		return err
	})
	return p, err
}

// TestConformanceFrames runs over Ethernet frames, without the kernels' UDP.
func TestConformanceFrames(t *testing.T) {
	groups := []string{"messaging", "rdma", "ordering", "flow", "notice", "connection", "disconnect"}
	if testing.Short() {
		groups = shortGroups
	}
	plain := roce.New(roce.Options{Open: newCable(t).open})
	keepOpen(t, plain, framesFar)
	viatest.RunGroups(t, func(tb testing.TB, decorate func(via.Provider) via.Provider) *viatest.Fabric {
		tb.Helper()
		p := decorate(plain)
		return &viatest.Fabric{
			Client: openNIC(tb, p, framesNear), Server: openNIC(tb, p, framesFar),
			Open:    func() *via.NIC { return openNIC(tb, p, framesThird) },
			Address: func(d string) via.Address { return via.Address{Host: framesFar, Discriminator: d} },
		}
	}, skips, groups...)
}

// parseFrames accepts and refuses device names.
func TestFramesDeviceNames(t *testing.T) {
	p := roce.New(roce.Options{})
	for _, name := range []string{
		"frames:", "frames:eth0", "frames:,10.0.0.1", "frames:eth0,10.0.0", "frames:eth0,10.0.0.1/33", "frames:eth0,0.0.0.0",
		"frames:eth0,10.0.0.1,fd00::1", "frames:eth0,10.0.0.1,x", "frames:eth0,10.0.0.1,10.0.0.2,3", "frames:eth0,224.0.0.1",
	} {
		if n, err := via.OpenNic(p, name); !errors.Is(err, via.ErrInvalidParameter) {
			t.Errorf("%s: %v, %v", name, n, err)
		}
	}
	// The device listens at its own address alone, and the error names the
	// missing interface.
	x := openNIC(t, p, "frames:nosuch,192.0.2.9/24,192.0.2.1")
	for _, host := range []string{"192.0.2.8", "[::]"} {
		if _, err := x.Listen(via.Address{Host: host}); !errors.Is(err, via.ErrInvalidParameter) {
			t.Errorf("listen at %s: %v", host, err)
		}
	}
	for _, host := range []string{"192.0.2.9", "0.0.0.0"} {
		if _, err := x.Listen(via.Address{Host: host}); err == nil {
			t.Errorf("listens at %s without an interface", host)
		} else {
			t.Log(err)
		}
	}
	check(t, x.Close())
}
