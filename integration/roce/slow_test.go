package roce

import (
	"flag"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
)

var (
	slowRate      = flag.Int("roce.slowrate", 4_000_000, "bits a second of the cable of TestLongTransferOverSlowCable")
	slowWithin    = flag.Float64("roce.slowwithin", 0, "how often the time that the cable needs a request may take; 0: measure alone")
	slowKeepalive = flag.Duration("roce.slowkeepalive", 400*time.Millisecond, "keepalive of its target")
)

// TestLongTransferOverSlowCable: a request of 1 MiB takes longer than a peer
// may be silent, and no message travels meanwhile. The packets of the transfer
// show that both ends are alive: the session stands.
func TestLongTransferOverSlowCable(t *testing.T) {
	for _, spec := range []string{"memory:4MiB", "file:" + testbed.SparseFile(t, 4<<20)} {
		t.Run(spec[:4], func(t *testing.T) {
			t.Parallel()
			const size = 1 << 20
			b := netbed.New(t, netbed.Options{})
			p := testbed.StartBinaryAt(t, b.B.StartGroup, testbed.Program(t), "target", "--insecure", "--admin", filepath.Join(testbed.Folder(t), "target"),
				"--listen", testbed.RoCEURI(b.B.IPv4), "--export", "disk="+spec, "--keepalive", slowKeepalive.String())
			a := testbed.AttachURIAt(t, b.A.StartGroup, testbed.Program(t), p.URI("disk", "via+roce"), "disk")
			r := testbed.Remote{Service: testbed.Service{URI: a.URI("disk", "nbd+unix"), Target: p, Attach: a}}
			k := testbed.Connect(t, r.URI)
			k.Ask("fill 0 4096 1", "ok")
			for _, f := range testbed.AtBothHosts(func(h *netbed.Host) *netbed.Fault { return h.Limit(*slowRate, 100_000) })(b) {
				defer f.Stop()
			}
			line := time.Duration(8 * size * int64(time.Second) / int64(*slowRate))
			for _, ask := range []string{"fill", "check"} {
				began := time.Now()
				k.Ask(fmt.Sprintf("%s 0 %d 7", ask, size), "ok")
				spent := time.Since(began)
				t.Logf("%s: %v, the cable needs %v", ask, spent, line)
				if most := *slowWithin * float64(line); most > 0 && float64(spent) > most {
					t.Errorf("%s: that is more than %g times as long", ask, *slowWithin)
				}
			}
			k.Disconnect()
			r.Unharmed(t)
		})
	}
}
