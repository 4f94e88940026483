package roce

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/history"
	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
)

var (
	crowdSize    = flag.Int("roce.crowd", 8, "initiators of TestCrowdOverSlowCable")
	crowdRate    = flag.Int("roce.crowdrate", 1_000_000, "bits a second of its cable")
	crowdRequest = flag.Int("roce.crowdrequest", 64<<10, "bytes of its requests")
	crowdAlive   = flag.Duration("roce.crowdkeepalive", 1500*time.Millisecond, "keepalive of its target")
	crowdLater   = flag.Bool("roce.crowdlater", true, "its cable is fast until all have attached their disks")
	crowdWithin  = flag.Float64("roce.crowdwithin", 0, "how often the time that the cable needs all requests may take; 0: measure alone")
)

// TestCrowdOverSlowCable: many initiators behind one slow cable have a long
// request each at a time. A packet of one waits for those of all the others: no
// session is lost, and no transfer begins anew. Its keepalive is longer than
// the default: a machine that tests much else at once holds up packets, too.
func TestCrowdOverSlowCable(t *testing.T) {
	t.Parallel()
	b := netbed.New(t, netbed.Options{})
	args := []string{
		"target", "--insecure", "--admin", filepath.Join(testbed.Folder(t), "target"),
		"--listen", testbed.RoCEURI(b.B.IPv4), "--keepalive", crowdAlive.String(),
	}
	for i := range *crowdSize {
		args = append(args, "--export", fmt.Sprintf("d%d=memory:1MiB", i))
	}
	p := testbed.StartBinaryAt(t, b.B.StartGroup, testbed.Program(t), args...)
	var cables []*netbed.Fault
	slow := func() {
		cables = testbed.AtBothHosts(func(h *netbed.Host) *netbed.Fault { return h.Limit(*crowdRate, 100_000) })(b)
	}
	defer func() {
		for _, f := range cables {
			f.Stop()
		}
	}()
	if !*crowdLater {
		slow()
	}
	var attached []*testbed.Process
	var disks []*history.Conn
	for i := range *crowdSize {
		name := fmt.Sprint("d", i)
		a := testbed.AttachURIAt(t, b.A.StartGroup, testbed.Program(t), p.URI(name, "via+roce"), name)
		_, socket := testbed.AddressOf(t, a.URI(name, "nbd+unix"))
		d, err := history.Dial(t.Context(), "unix", socket, name)
		testbed.Must(t, err)
		t.Cleanup(func() { testbed.Must(t, d.Close()) })
		_, err = d.WriteAt(make([]byte, history.BlockSize), 0)
		testbed.Must(t, err)
		attached, disks = append(attached, a), append(disks, d)
	}
	before := p.Status().Targets[0]
	if *crowdLater {
		slow()
	}

	line := time.Duration(8 * int64(*crowdSize) * int64(*crowdRequest) * int64(time.Second) / int64(*crowdRate))
	all := func(what string, request func(i int) error) {
		began, waits := time.Now(), make([]time.Duration, len(disks))
		var running sync.WaitGroup
		for i := range disks {
			running.Go(func() {
				if err := request(i); err != nil {
					t.Errorf("%s of initiator %d: %v", what, i, err)
				}
				waits[i] = time.Since(began)
			})
		}
		running.Wait()
		t.Logf("%s: %d requests of %d bytes end after %v to %v, the cable needs %v and has lost %d and %d packets",
			what, len(disks), *crowdRequest, slices.Min(waits), slices.Max(waits), line, cables[0].Hits(), cables[1].Hits())
		if most := *crowdWithin * float64(line); most > 0 && float64(slices.Max(waits)) > most {
			t.Errorf("that is more than %g times as long", *crowdWithin)
		}
	}
	data := make([][]byte, len(disks))
	for i := range data {
		data[i] = testbed.RandomBytes(*crowdRequest)
	}
	all("write", func(i int) error {
		_, err := disks[i].WriteAt(data[i], 0)
		return err
	})
	all("read", func(i int) error {
		back := make([]byte, *crowdRequest)
		_, err := disks[i].ReadAt(back, 0)
		if err == nil && !bytes.Equal(back, data[i]) {
			err = errors.New("other data")
		}
		return err
	})

	for i, a := range attached {
		if st := a.Status().Initiators[0]; !st.Connected || st.SessionLosses != 0 || st.Stats.Reconnects != 0 || st.Stats.Errors != 0 {
			t.Errorf("initiator %d: %+v", i, st)
		}
	}
	if st := p.Status().Targets[0]; st.Accepted != before.Accepted || st.Sessions != before.Sessions || st.Stats.Errors != 0 {
		t.Errorf("the target had %+v and has %+v", before, st)
	}
}
