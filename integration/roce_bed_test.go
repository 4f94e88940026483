package integration

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/target"
)

// remote is a disk of a target on host B of a bed, which host A has attached over
// RoCE.
type remote struct {
	service
	bed *netbed.Bed
}

// roceURI is where a target listens at an address.
func roceURI(a netip.Addr) string {
	if a.Is6() {
		return fmt.Sprintf("via+roce://[%v]/", a)
	}
	return fmt.Sprintf("via+roce://%v/", a)
}

// overRoce serves a disk through a bed, in an address family.
func overRoce(t testing.TB, binary string, b *netbed.Bed, family int, d disk, attach ...string) remote {
	t.Helper()
	p := startTargetAt(t, b.B.StartGroup, binary, roceURI(b.B.Addr(family)), d)
	a := attachURIAt(t, b.A.StartGroup, binary, p.uri(d.name, "via+roce"), d.name, attach...)
	return remote{service{a.uri(d.name, "nbd+unix"), p, a}, b}
}

// unharmed checks that the session of the disk is the first one and still stands,
// and that no request failed.
func (r remote) unharmed(t testing.TB) {
	t.Helper()
	i, d := r.attach.status().Initiators[0], r.target.status().Targets[0]
	if !i.Connected || i.Losses != 0 || i.Error != "" || i.Stats.Errors+d.Stats.Errors > 0 {
		t.Errorf("the initiator is connected: %v, with %q, after %d losses; %d and %d requests failed",
			i.Connected, i.Error, i.Losses, i.Stats.Errors, d.Stats.Errors)
	}
	if n := opens(d); n != 1 || d.Sessions != 1 {
		t.Errorf("the target has %d sessions and %d opens", d.Sessions, n)
	}
}

// opens counts the sessions that have an export of a target open.
func opens(d target.Status) int {
	n := 0
	for _, x := range d.Exports {
		n += x.Opens
	}
	return n
}
