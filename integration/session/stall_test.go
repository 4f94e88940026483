package session

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

var (
	stalls       = flag.Int("session.stalls", 2, "how often TestStallOfRestart kills each target")
	stallTargets = flag.Int("session.stalltargets", 1, "how many targets of each fabric it kills side by side, as many as -parallel says")
	downtime     = flag.Duration("session.downtime", 300*time.Millisecond, "its longest time without a target; the shortest is 100 ms")
	stallExcess  = flag.Duration("session.excess", 0, "how much longer than that a request may wait, but for 1 of 100; 0: measure alone")
)

// TestStallOfRestart: a write that meets a killed target waits for the next one
// and succeeds. The log says how much longer it waited than the target was
// away.
func TestStallOfRestart(t *testing.T) {
	for i, provider := range []string{"shm", "roce"} {
		t.Run(provider, func(t *testing.T) {
			waits := make([][]time.Duration, *stallTargets)
			t.Run("targets", func(t *testing.T) {
				for k := range waits {
					t.Run(fmt.Sprint(k), func(t *testing.T) {
						t.Parallel()
						listen := fmt.Sprintf("via+roce://127.79.%d.%d/", i, k+1)
						if provider == "shm" {
							listen = "via+shm:///?socket=" + filepath.Join(testbed.Folder(t), "v")
						}
						waits[k] = stallOfRestarts(t, provider, listen)
					})
				}
			})
			excess := slices.Sorted(slices.Values(slices.Concat(waits...)))
			if len(excess) < *stalls**stallTargets {
				t.Fatal("a target failed")
			}
			p99 := excess[(99*len(excess)+99)/100-1]
			t.Logf("%d kills: the write waited longer than the target was away by %v, %v and %v (median, 99 %%, most)", len(excess), excess[len(excess)/2], p99, excess[len(excess)-1])
			if *stallExcess > 0 && p99 > *stallExcess {
				t.Errorf("that is more than %v", *stallExcess)
			}
		})
	}
}

// stallOfRestarts kills a target again and again, and returns how much longer
// writes waited than it was away.
func stallOfRestarts(t *testing.T, provider, listen string) (excess []time.Duration) {
	admin := filepath.Join(testbed.Folder(t), "target")
	spec := "disk=file:" + testbed.SparseFile(t, 4<<20)
	start := func() *testbed.Process {
		return testbed.StartBinary(t, testbed.Program(t), "target", "--admin", admin, "--listen", listen, "--export", spec, "--keepalive", "250ms")
	}
	p := start()
	a := testbed.AttachURIAt(t, testbed.StartCommand, testbed.Program(t), p.URI("disk", "via+"+provider), "disk")
	k := testbed.Connect(t, a.URI("disk", "nbd+unix"))
	for range *stalls {
		k.Ask("fill 0 4096 1", "ok")
		down := 100*time.Millisecond + time.Duration(rand.Int64N(int64(max(*downtime-100*time.Millisecond, 1))))
		p.Crash()
		killed := time.Now()
		k.Send("fill 4096 4096 2")
		time.Sleep(down)
		p = start()
		away := time.Since(killed)
		k.Expect("ok")
		excess = append(excess, time.Since(killed)-away)
	}
	st := a.Status()
	if i := st.Initiators[0]; st.NBD.Total.Errors != 0 || i.Stats.Errors != 0 || i.SessionLosses != uint64(*stalls) {
		t.Errorf("nbd: %d errors; initiator: %+v", st.NBD.Total.Errors, i)
	}
	k.Disconnect()
	return excess
}
