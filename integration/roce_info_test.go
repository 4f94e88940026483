package integration

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/viablk/viablk/integration/netbed"
)

// TestNetworkIsDescribed asks what RoCE does on a network: info of the path to a
// target, status of what connections went through.
func TestNetworkIsDescribed(t *testing.T) {
	for linkMTU, pathMTU := range map[int]int{1500: 1024, 4500: 4096} {
		t.Run(fmt.Sprintf("MTU %d", linkMTU), func(t *testing.T) {
			b := netbed.New(t, netbed.Options{MTU: linkMTU})
			r := overRoce(t, program(t), b, 4, disk{"disk", "memory:8MiB"})

			uri := r.target.uri("disk", "via+roce")
			text := succeed(t, startPathAt(t, b.A.StartGroup, nil, program(t), "info", uri))
			if want := fmt.Sprintf(`network offloads +segmentation on, coalescing on\n(.*\n)*.*: path MTU %d, round trip \d+ us, \d+ packets sent, \d+ again`,
				pathMTU); !regexp.MustCompile(want).MatchString(text) {
				t.Errorf("info says\n%s\nwhich does not match %s", text, want)
			}
			describes(t, "info", networkOfInfo(t, b, uri), b.A.Addr(4), pathMTU)

			// What info itself sends again it tells, too.
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
				fio(t, r.uri, "--rw=randwrite", "--bs=64k", "--iodepth=16", "--size=8m")
				again = describes(t, "status of the initiator", r.attach.status().Network, b.A.Addr(4), pathMTU)
			}
			lose.Stop()
			describes(t, "status of the target", r.target.status().Network, b.B.Addr(4), pathMTU)
		})
	}
}

// networkOfInfo returns what info says of the way to a URI.
func networkOfInfo(t *testing.T, b *netbed.Bed, uri string) []networkStatus {
	t.Helper()
	out := succeed(t, startPathAt(t, b.A.StartGroup, nil, program(t), "info", uri, "-o", "json"))
	var info struct {
		Network []networkStatus `json:"network"`
	}
	must(t, json.Unmarshal([]byte(out), &info))
	return info.Network
}

// describes checks a report on one address and returns the packets that its open
// connections sent again.
func describes(t *testing.T, who string, got []networkStatus, local netip.Addr, pathMTU int) (again uint64) {
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
		measured = measured || l.RTT > 0 // a packet that was sent again measures nothing
		again += l.Retransmitted
	}
	if !measured {
		t.Errorf("%s: %+v has no round trip", who, n)
	}
	return again
}
