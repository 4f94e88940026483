package nbd

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/target/limit"
)

// Limits are measured by the server's own counters and clock, between two
// readings while clients ask for more than they get: what a busy machine does
// to the clients is not in it. measured is the least time between the readings;
// what a pause of the server lets accumulate is at most spread, a twentieth of
// it.
const (
	measured = 4 * time.Second
	spread   = measured / 20
)

// limited reads the limits of the only export.
func limited(t testing.TB, p *testbed.Process) limit.Status {
	t.Helper()
	all := p.Status().Limits
	if len(all) != 1 || all[0].Export != "disk" {
		t.Fatalf("limits of %+v, not of one disk", all)
	}
	return all[0].Status
}

// measure returns what a server let through between two moments at which a
// number of clients were busy.
func measure(t testing.TB, p *testbed.Process, clients int) (from, to limit.Status) {
	t.Helper()
	testbed.Eventually(t, "all clients being throttled", func() (any, bool) {
		from = limited(t, p)
		busy := 0
		for _, c := range from.Clients {
			if c.Throttled > 0 && c.Queues > 0 {
				busy++
			}
		}
		return from, busy == clients
	})
	testbed.Eventually(t, "the time of the measurement", func() (any, bool) {
		to = limited(t, p)
		return to, to.Elapsed-from.Elapsed >= measured
	})
	return from, to
}

// share is what went through in a measurement, and what the limit gives.
type share struct {
	what  string
	got   uint64
	want  float64
	total bool // of all clients: it is never more
}

// measureShares measures, up to five times, until every share is within 5 % of
// what the limit gives: on a busy machine clients ask for less than they get.
// The whole is never more than the limit.
func measureShares(t testing.TB, p *testbed.Process, clients int, shares func(from, to limit.Status, seconds float64) []share) {
	t.Helper()
	const attempts = 5
	for attempt := 1; ; attempt++ {
		from, to := measure(t, p, clients)
		unfair := ""
		for _, x := range shares(from, to, (to.Elapsed - from.Elapsed).Seconds()) {
			ratio := float64(x.got) / x.want
			if x.total && ratio > 1.05 {
				t.Fatalf("%s: %d, which is %.3f of %.0f", x.what, x.got, ratio, x.want)
			}
			if ratio < 0.95 || ratio > 1.05 {
				unfair += fmt.Sprintf("; %s: %d, which is %.3f of %.0f", x.what, x.got, ratio, x.want)
			}
		}
		throttled, requests := to.Throttled-from.Throttled, to.Requests-from.Requests
		if throttled < requests*9/10 || to.Waited <= from.Waited {
			unfair += fmt.Sprintf("; of %d requests only %d are counted as throttled", requests, throttled)
		}
		if unfair == "" {
			return
		}
		if attempt == attempts {
			t.Fatalf("in %d measurements, at last%s", attempts, unfair)
		}
		t.Logf("measurement %d%s", attempt, unfair)
	}
}

// startReader has fio read random blocks until the test ends.
func startReader(t testing.TB, uri string, args ...string) {
	t.Helper()
	testbed.StartFio(t, uri, append([]string{"--rw=randread", "--size=16m", "--time_based", "--runtime=10m"}, args...)...)
}

// The rates are low: the requests that clients have waiting at the server cover
// its limit for 160 ms or more. At ten times the rate they cover 16 ms, and a
// client that a busy machine holds up for longer than that and the burst does
// not ask for all that the limit gives.
func TestLimitsAreMet(t *testing.T) {
	testbed.Alone(t)
	for _, c := range []struct {
		name, limits string
		iops, bytes  float64
		bs           string
	}{
		{"iops", "iops=200", 200, 0, "4k"},
		{"bandwidth", "bandwidth=8MiB", 0, 8 << 20, "64k"},
		{"of a session", "session-iops=100", 100, 0, "4k"},
	} {
		for _, w := range []testbed.Way{testbed.Ways[0], testbed.ChainWay} {
			t.Run(c.name+"/"+w.Name, func(t *testing.T) {
				t.Parallel()
				burst := "burst=" + spread.String()
				if c.name == "of a session" {
					burst = "session-" + burst
				}
				s := w.Serve(t, testbed.Program(t), testbed.Disk{Name: "disk", Spec: fmt.Sprintf("limit:%s,%s:memory:16MiB", c.limits, burst)})
				startReader(t, s.URI, "--bs="+c.bs, "--iodepth=32", "--numjobs=2")
				measureShares(t, s.Target, 1, func(from, to limit.Status, seconds float64) []share {
					if c.iops > 0 {
						return []share{{"requests", to.Requests - from.Requests, c.iops * seconds, true}}
					}
					return []share{{"bytes", to.Bytes - from.Bytes, c.bytes * seconds, true}}
				})
			})
		}
	}
}

// Two clients get the same, though one has four connections and asks for more
// at a time.
func TestClientsShareALimit(t *testing.T) {
	testbed.Alone(t)
	const rate = 200
	spec := fmt.Sprintf("limit:iops=%d,burst=%v:memory:16MiB", rate, spread)
	check := func(t *testing.T, p *testbed.Process) {
		t.Helper()
		measureShares(t, p, 2, func(from, to limit.Status, seconds float64) []share {
			if len(from.Clients) != 2 || len(to.Clients) != 2 {
				t.Fatalf("clients %+v", to.Clients)
			}
			list := []share{{"requests", to.Requests - from.Requests, rate * seconds, true}}
			for i, c := range to.Clients {
				list = append(list, share{"requests of " + c.Client, c.Requests - from.Clients[i].Requests, rate * seconds / 2, false})
			}
			return list
		})
	}
	t.Run("nbd", func(t *testing.T) {
		t.Parallel()
		s := testbed.Ways[0].Serve(t, testbed.Program(t), testbed.Disk{Name: "disk", Spec: spec})
		startReader(t, s.URI, "--bs=4k", "--iodepth=16", "--numjobs=4")
		startReader(t, s.URI, "--bs=4k", "--iodepth=16")
		check(t, s.Target)
	})
	t.Run("chain", func(t *testing.T) {
		t.Parallel()
		p := testbed.StartTarget(t, testbed.Program(t), "via+shm:///?socket="+filepath.Join(testbed.Folder(t), "v"), testbed.Disk{Name: "disk", Spec: spec})
		for _, jobs := range []string{"--numjobs=4", "--numjobs=1"} {
			a := testbed.AttachDisk(t, testbed.Program(t), p, "disk", "--read-only")
			startReader(t, a.URI("disk", "nbd+unix"), "--bs=4k", "--iodepth=16", jobs)
		}
		check(t, p)
	})
}
