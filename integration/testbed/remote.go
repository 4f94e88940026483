package testbed

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/target"
)

// Remote is a disk of a target on host B of a bed, which host A has attached
// over RoCE.
type Remote struct {
	Service
	bed *netbed.Bed
}

// RoCEURI is where a target listens at an address.
func RoCEURI(a netip.Addr) string {
	if a.Is6() {
		return fmt.Sprintf("via+roce://[%v]/", a)
	}
	return fmt.Sprintf("via+roce://%v/", a)
}

// OverRoCE serves a disk through a bed, in an address family.
func OverRoCE(t testing.TB, binary string, b *netbed.Bed, family int, d Disk, attach ...string) Remote {
	t.Helper()
	// The hosts of the bed trust each other.
	p := startTarget(t, b.B.StartGroup, binary, []string{"--insecure", "--listen", RoCEURI(b.B.Addr(family))}, []Disk{d})
	a := AttachURIAt(t, b.A.StartGroup, binary, p.URI(d.Name, "via+roce"), d.Name, attach...)
	return Remote{Service{a.URI(d.Name, "nbd+unix"), p, a}, b}
}

// Unharmed checks that the session of the disk is the first one and still
// stands, and that no request failed.
func (r Remote) Unharmed(t testing.TB) {
	t.Helper()
	i, d := r.Attach.Status().Initiators[0], r.Target.Status().Targets[0]
	if !i.Connected || i.SessionLosses != 0 || i.Error != "" || i.Stats.Errors+d.Stats.Errors > 0 {
		t.Errorf("the initiator is connected: %v, with %q, after %d losses; %d and %d requests failed",
			i.Connected, i.Error, i.SessionLosses, i.Stats.Errors, d.Stats.Errors)
	}
	if n := Opens(d); n != 1 || d.Sessions != 1 {
		t.Errorf("the target has %d sessions and %d opens", d.Sessions, n)
	}
}

// Opens counts the sessions that have an export of a target open.
func Opens(d target.Status) int {
	n := 0
	for _, x := range d.Exports {
		n += x.Opens
	}
	return n
}

// CopyBothWays writes data to the disk, finds it in the file of the target, and
// reads it back.
func (r Remote) CopyBothWays(t testing.TB, file string, data []byte) {
	t.Helper()
	Run(t, "nbdcopy", "--flush", WriteFile(t, "source", data), r.URI)
	CheckFile(t, file, data)
	back := WriteFile(t, "back", nil)
	Run(t, "nbdcopy", r.URI, back)
	CheckFile(t, back, data)
}
