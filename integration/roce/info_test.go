package roce

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
)

// TestNetworkIsDescribed asks what RoCE does on a network: info of the path to
// a target, status of what connections went through.
func TestNetworkIsDescribed(t *testing.T) {
	for linkMTU, pathMTU := range map[int]int{1500: 1024, 4500: 4096} {
		t.Run(fmt.Sprintf("MTU %d", linkMTU), func(t *testing.T) {
			b := netbed.New(t, netbed.Options{MTU: linkMTU})
			r := testbed.OverRoCE(t, testbed.Program(t), b, 4, testbed.Disk{Name: "disk", Spec: "memory:8MiB"})

			uri := r.Target.URI("disk", "via+roce")
			text := testbed.Succeed(t, testbed.StartPathAt(t, b.A.StartGroup, nil, testbed.Program(t), "info", uri))
			if want := fmt.Sprintf(`network offloads +segmentation on, coalescing on\n(.*\n)*.*: path MTU %d, round trip \d+ us, \d+ packets sent, \d+ retransmitted`,
				pathMTU); !regexp.MustCompile(want).MatchString(text) {
				t.Errorf("info says\n%s\nwhich does not match %s", text, want)
			}
			describes(t, "info", networkOfInfo(t, b, uri), b.A.Addr(4), pathMTU)

			// info reports its own retransmissions, too.
			often := b.A.Lose(netbed.Datagrams, netbed.Randomly(0.2))
			for again := uint64(0); again == 0; {
				for _, n := range networkOfInfo(t, b, uri) {
					for _, l := range n.Links {
						again += l.Retransmitted
					}
				}
			}
			often.Stop()

			lose := b.A.Lose(netbed.Datagrams, netbed.Randomly(0.05))
			for again := uint64(0); again == 0; {
				testbed.Fio(t, r.URI, "--rw=randwrite", "--bs=64k", "--iodepth=16", "--size=8m")
				again = describes(t, "status of the initiator", r.Attach.Status().Network, b.A.Addr(4), pathMTU)
			}
			lose.Stop()
			describes(t, "status of the target", r.Target.Status().Network, b.B.Addr(4), pathMTU)
		})
	}
}

// networkOfInfo returns what info says of the way to a URI.
func networkOfInfo(t *testing.T, b *netbed.Bed, uri string) []testbed.NetworkStatus {
	t.Helper()
	out := testbed.Succeed(t, testbed.StartPathAt(t, b.A.StartGroup, nil, testbed.Program(t), "info", uri, "-o", "json"))
	var info struct {
		Network []testbed.NetworkStatus `json:"network"`
	}
	testbed.Must(t, json.Unmarshal([]byte(out), &info))
	return info.Network
}

// describes checks a report on one address and returns the packets that its
// open connections retransmitted.
func describes(t *testing.T, who string, got []testbed.NetworkStatus, local netip.Addr, pathMTU int) (again uint64) {
	t.Helper()
	if len(got) != 1 || !strings.HasPrefix(got[0].Local, local.String()+":") || len(got[0].Links) == 0 {
		t.Fatalf("%s: %+v, want one network at %v, with connections", who, got, local)
	}
	n := got[0]
	if n.Segmentation == nil || n.Coalescing == nil || n.Sent == 0 || n.SendCalls == 0 || n.SendCalls > n.Sent {
		t.Errorf("%s: %+v lacks offloads, or packets, or calls", who, n)
	}
	measured := false
	for _, l := range n.Links {
		if l.MTU != pathMTU || l.RTT < 0 || l.Peer == "" {
			t.Errorf("%s: %+v, want a path MTU of %d", who, l, pathMTU)
		}
		measured = measured || l.RTT > 0 // a retransmitted packet gives no RTT sample
		again += l.Retransmitted
	}
	if !measured {
		t.Errorf("%s: %+v has no round trip", who, n)
	}
	return again
}
