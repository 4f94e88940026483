package roce

import (
	"flag"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
)

var (
	cuts       = flag.Int("roce.cuts", 2, "how often TestSilentPeerIsNoticed cuts the cable")
	cutsNotice = flag.Duration("roce.cutsnotice", 0, "how long the initiator may take to notice; 0: measure alone")
)

// lossLine is the log line of an initiator that lost its target.
var lossLine = regexp.MustCompile(`time=(\S+) level=WARN msg="the target is lost`)

// TestSilentPeerIsNoticed: an initiator without a request in flight notices
// that the cable was cut, and has its session back when it is whole. The log
// says when it noticed.
func TestSilentPeerIsNoticed(t *testing.T) {
	b := netbed.New(t, netbed.Options{})
	p := testbed.StartBinaryAt(t, b.B.StartGroup, testbed.Program(t), "target", "--insecure", "--admin", filepath.Join(testbed.Folder(t), "target"),
		"--listen", testbed.RoCEURI(b.B.IPv4), "--export", "disk=file:"+testbed.SparseFile(t, 4<<20), "--keepalive", "250ms")
	a := testbed.AttachURIAt(t, b.A.StartGroup, testbed.Program(t), p.URI("disk", "via+roce"), "disk")
	k := testbed.Connect(t, a.URI("disk", "nbd+unix"))
	var longest, sum time.Duration
	for range *cuts {
		k.Ask("fill 0 4096 1", "ok")
		lines := len(lossLine.FindAllString(a.Stderr.String(), -1))
		time.Sleep(time.Duration(rand.Int64N(int64(250 * time.Millisecond)))) // anywhere between two keepalives
		lost := a.Status().Initiators[0].SessionLosses
		cut := time.Now()
		faults := testbed.AtBothHosts(func(h *netbed.Host) *netbed.Fault { return h.Lose(netbed.Datagrams, netbed.Always) })(b)
		begun := time.Now() // some moment between is that of the cut
		testbed.Eventually(t, "the loss", func() (any, bool) {
			st := a.Status().Initiators[0]
			return st, st.SessionLosses == lost+1
		})
		for _, f := range faults {
			f.Stop()
		}
		var found [][]string
		testbed.Eventually(t, "the line of the loss", func() (any, bool) {
			found = lossLine.FindAllStringSubmatch(a.Stderr.String(), -1)
			return strings.Count(a.Stderr.String(), "\n"), len(found) > lines
		})
		at, err := time.Parse(time.RFC3339Nano, found[len(found)-1][1])
		testbed.Must(t, err)
		noticed := at.Sub(begun.Round(0))
		longest, sum = max(longest, noticed), sum+noticed
		if noticed < 0 {
			t.Errorf("lost %v before the cut, which began %v earlier", -noticed, begun.Sub(cut))
		}
	}
	t.Logf("%d cuts, noticed after %v on average, %v at most", *cuts, sum/time.Duration(max(*cuts, 1)), longest)
	if *cutsNotice > 0 && longest > *cutsNotice {
		t.Errorf("that is more than %v", *cutsNotice)
	}
	k.Ask("check 0 4096 1", "ok")
	k.Disconnect()
	if st := a.Status(); st.NBD.Total.Errors != 0 || st.Initiators[0].Stats.Errors != 0 {
		t.Errorf("%d requests failed", st.NBD.Total.Errors)
	}
}
