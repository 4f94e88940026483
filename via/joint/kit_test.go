package joint_test

import (
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/joint"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/shm"
	"github.com/viablk/viablk/via/viatest"
)

// breaking are in the names of the kit's cases that wait for the break of a
// connection over RoCE.
var breaking = []string{
	"/DropAnywhere", "/TruncateAnywhere", "/CorruptAnywhere", "/RandomFaults",
	"-MessageCorrupt", "-MessageLost", "-PartialMessage", "-WriteCorrupt", "-ReadFails",
}

// both returns a provider with the parts shm and roce.
func both(tb testing.TB) via.Provider {
	tb.Helper()
	o := roce.Options{Timeout: 500 * time.Millisecond, Retries: 5}
	if slices.ContainsFunc(breaking, func(name string) bool { return strings.Contains(tb.Name(), name) }) {
		o.Timeout = 40 * time.Millisecond
	}
	p, err := joint.New(
		joint.Part{Name: "shm", Provider: shm.New(shm.Options{})},
		joint.Part{Name: "roce", Provider: roce.New(o)},
	)
	must(tb, err)
	return p
}

// hosts returns a host of each part where nothing listens.
func hosts(tb testing.TB) map[string]string {
	tb.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(tb, err)
	defer func() { _ = c.Close() }()
	return map[string]string{
		"shm":  joint.Host("shm", filepath.Join(tb.TempDir(), "s")),
		"roce": joint.Host("roce", c.LocalAddr().String()),
	}
}

func openNIC(tb testing.TB, p via.Provider) *via.NIC {
	tb.Helper()
	n, err := via.OpenNic(p, "")
	must(tb, err)
	return n
}

// openOver opens two NICs that meet over one of the parts.
func openOver(part string) viatest.Open {
	return func(tb testing.TB, decorate func(via.Provider) via.Provider) *viatest.Fabric {
		tb.Helper()
		p, host := decorate(both(tb)), hosts(tb)[part]
		return &viatest.Fabric{
			Client: openNIC(tb, p), Server: openNIC(tb, p),
			Open:    func() *via.NIC { return openNIC(tb, p) },
			Address: func(d string) via.Address { return via.Address{Host: host, Discriminator: d} },
		}
	}
}

// The provider passes all of the kit over either part, but for what one of the
// parts does not pass.
func TestConformance(t *testing.T) {
	skips := viatest.Skips{
		"Discovery":         "one of the parts knows no way to find listeners",
		"DiscoveryRefusals": "one of the parts knows no way to find listeners",
	}
	t.Run("shm", func(t *testing.T) { viatest.Run(t, openOver("shm"), skips) })
	more := maps.Clone(skips)
	more["LossesAreCounted"] = "a datagram without room at its receiver is lost unseen: who counts packets does not know messages"
	t.Run("roce", func(t *testing.T) { viatest.Run(t, openOver("roce"), more) })
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(fmt.Errorf("unexpected: %w", err))
	}
}
