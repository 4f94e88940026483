package roce

import (
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/nemesis"
	"github.com/viablk/viablk/integration/netbed"
	"github.com/viablk/viablk/integration/testbed"
)

var (
	pathCuts  = flag.Int("roce.pathcuts", 2, "how often TestCutOfOneCable cuts one of two cables, in each way")
	pathBeds  = flag.Int("roce.pathbeds", 1, "of how many pairs of hosts, as many of which at once as -parallel says")
	pathStall = flag.Duration("roce.pathstall", 0, "how long a request may wait then; 0: measure alone")
)

// TestCutOfOneCable: of two cables one goes silent or is unplugged while writes
// are in flight. Each of them is answered, without an error, and the session
// stays the same. The log says how long the longest waited.
func TestCutOfOneCable(t *testing.T) {
	t.Parallel()
	longest := make([]time.Duration, *pathBeds)
	t.Run("hosts", func(t *testing.T) {
		for i := range longest {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				longest[i] = cutCables(t)
			})
		}
	})
	most := slices.Max(longest)
	t.Logf("%d cuts of one of two cables: a request waited %v at most", 2**pathCuts**pathBeds, most)
	if *pathStall > 0 && most > *pathStall {
		t.Errorf("that is more than %v", *pathStall)
	}
}

// cutCables returns how long a request waited at most while the cables of two
// hosts were cut.
func cutCables(t *testing.T) (longest time.Duration) {
	b := netbed.New(t, netbed.Options{})
	cables := b.Cables()
	hosts := fmt.Sprintf("via+roce://%v,%v/disk", cables[0].B, cables[1].B)
	testbed.StartBinaryAt(t, b.B.StartGroup, testbed.Program(t), "target", "--insecure", "--admin", filepath.Join(testbed.Folder(t), "target"),
		"--listen", testbed.RoCEURI(cables[0].B), "--listen", testbed.RoCEURI(cables[1].B), "--export", "disk=file:"+testbed.SparseFile(t, 4<<20), "--keepalive", "250ms")
	a := testbed.AttachURIAt(t, b.A.StartGroup, testbed.Program(t), hosts, "disk")
	k := testbed.Connect(t, a.URI("disk", "nbd+unix"))
	up := func(i int) {
		t.Helper()
		testbed.Eventually(t, fmt.Sprintf("path %d, with the connections", i), func() (any, bool) {
			k.Ask("fill 0 4096 1", "ok") // an idle connection does not move
			p := a.Status().Initiators[0].Paths
			return p, p[0].State == "up" && p[1].State == "up" && p[i].Queues > 0
		})
	}
	up(0)
	session := a.Status().Initiators[0].Session
	n := 0
	for range *pathCuts {
		for name, cut := range map[string]func() func(){"silent": cables[0].Silence, "unplugged": cables[0].Unplug} {
			mend := cut()
			for began := time.Now(); a.Status().Initiators[0].Paths[1].Queues == 0; { // until the requests go there
				n++
				before := time.Now()
				k.Ask(fmt.Sprintf("fill %d 4096 %d", 4096+n%512*4096, n%250+1), "ok")
				longest = max(longest, time.Since(before))
				if time.Since(began) > time.Minute {
					t.Fatalf("%s: the requests go on over the cable: %+v", name, a.Status().Initiators[0].Paths)
				}
			}
			k.Ask(fmt.Sprintf("check %d 4096 %d", 4096+n%512*4096, n%250+1), "ok")
			mend()
			up(0) // the path returns, and so do the requests
		}
	}
	k.Disconnect()
	st := a.Status()
	if i := st.Initiators[0]; st.NBD.Total.Errors != 0 || i.Stats.Errors != 0 || i.SessionLosses != 0 || i.Session != session || i.Paths[0].Losses < uint64(2**pathCuts) {
		t.Errorf("nbd: %d errors; initiator: %+v", st.NBD.Total.Errors, i)
	}
	return longest
}

// TestExactlyOnceOverTwoCables: a disk over two cables is linearizable whatever
// happens to them and to the processes at their ends.
func TestExactlyOnceOverTwoCables(t *testing.T) {
	t.Parallel()
	b := netbed.New(t, netbed.Options{MTU: 4500})
	cables := b.Cables()
	s := nemesis.Setup{
		Listen: testbed.RoCEURI(cables[0].B), More: []string{testbed.RoCEURI(cables[1].B)},
		Hosts: fmt.Sprintf("%v,%v", cables[0].B, cables[1].B), Scheme: "via+roce", Disk: testbed.FileDisk(1 << 20)(t),
		Target: b.B.StartGroup, Attach: b.A.StartGroup,
	}
	for i, c := range cables {
		s.Network = append(s.Network,
			nemesis.Disturbance{Name: fmt.Sprintf("cable %d silent", i+1), Begin: c.Silence},
			nemesis.Disturbance{Name: fmt.Sprintf("cable %d unplugged", i+1), Begin: c.Unplug},
		)
	}
	s.Network = append(s.Network, nemesis.Disturbance{Name: "both cables silent", Begin: func() func() {
		first, second := cables[0].Silence(), cables[1].Silence()
		return func() {
			first()
			second()
		}
	}})
	s.Run(t)
}

// TestExactlyOnceOverTwoProviders: a disk over a cable and shared memory, which
// have one session, is linearizable whatever happens to the cable and to the
// processes at its ends. The cable comes first, so that each fault moves the
// requests.
func TestExactlyOnceOverTwoProviders(t *testing.T) {
	t.Parallel()
	b := netbed.New(t, netbed.Options{MTU: 4500})
	cable := b.Cables()[0]
	local := "via+shm:///?socket=" + filepath.Join(testbed.Folder(t), "shm")
	nemesis.Setup{
		Listen: testbed.RoCEURI(cable.B), More: []string{local}, Paths: []string{local}, Scheme: "via+roce", Disk: testbed.FileDisk(1 << 20)(t),
		Target: b.B.StartGroup, Attach: b.A.StartGroup,
		Network: []nemesis.Disturbance{
			{Name: "cable silent", Begin: cable.Silence},
			{Name: "cable unplugged", Begin: cable.Unplug},
		},
	}.Run(t)
}
