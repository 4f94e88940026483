package integration

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/viablk/viablk/target/limit"
)

// Limits are measured by the server's own counters and clock, between two
// readings while clients ask for more than they get: what a busy machine does to
// the clients is not in it. measured is the least time between the readings; what
// a pause of the server lets accumulate is at most spread, a twentieth of it.
const (
	measured = 4 * time.Second
	spread   = measured / 20
)

// limited reads the limits of the only export.
func (p *process) limited() limit.Status {
	p.t.Helper()
	all := p.status().Limits
	if len(all) != 1 || all[0].Export != "disk" {
		p.t.Fatalf("limits of %+v, not of one disk", all)
	}
	return all[0].Status
}

// measure returns what a server let through between two moments at which a number
// of clients were busy.
func (p *process) measure(clients int) (from, to limit.Status) {
	p.t.Helper()
	eventually(p.t, "all clients being throttled", func() (any, bool) {
		from = p.limited()
		busy := 0
		for _, c := range from.Clients {
			if c.Throttled > 0 && c.Queues > 0 {
				busy++
			}
		}
		return from, busy == clients
	})
	eventually(p.t, "the time of the measurement", func() (any, bool) {
		to = p.limited()
		return to, to.Elapsed-from.Elapsed >= measured
	})
	return from, to
}

// fair fails the test unless got is within 5 % of want.
func fair(t testing.TB, what string, got uint64, want float64) {
	t.Helper()
	if ratio := float64(got) / want; ratio < 0.95 || ratio > 1.05 {
		t.Errorf("%s: %d, which is %.3f of %.0f", what, got, ratio, want)
	}
}

// greedy asks for random blocks until the test ends.
func greedy(t testing.TB, uri string, args ...string) {
	t.Helper()
	startFio(t, uri, append([]string{"--rw=randread", "--size=16m", "--time_based", "--runtime=10m"}, args...)...)
}

func TestLimitsAreMet(t *testing.T) {
	for _, c := range []struct {
		name, limits string
		iops, bytes  float64
		bs           string
	}{
		{"iops", "iops=2000", 2000, 0, "4k"},
		{"bandwidth", "bandwidth=32MiB", 0, 32 << 20, "64k"},
		{"of a session", "session-iops=1000", 1000, 0, "4k"},
	} {
		for _, w := range []way{ways[0], chainWay} {
			t.Run(c.name+"/"+w.name, func(t *testing.T) {
				t.Parallel()
				burst := "burst=" + spread.String()
				if c.name == "of a session" {
					burst = "session-" + burst
				}
				s := w.serve(t, program(t), disk{"disk", fmt.Sprintf("limit:%s,%s:memory:16MiB", c.limits, burst)})
				greedy(t, s.uri, "--bs="+c.bs, "--iodepth=32", "--numjobs=2")
				from, to := s.target.measure(1)
				seconds := (to.Elapsed - from.Elapsed).Seconds()
				if c.iops > 0 {
					fair(t, "requests", to.Requests-from.Requests, c.iops*seconds)
				}
				if c.bytes > 0 {
					fair(t, "bytes", to.Bytes-from.Bytes, c.bytes*seconds)
				}
				if to.Throttled-from.Throttled < (to.Requests-from.Requests)*9/10 || to.Waited <= from.Waited {
					t.Errorf("of %d requests only %d are counted as throttled", to.Requests-from.Requests, to.Throttled-from.Throttled)
				}
			})
		}
	}
}

// Two clients get the same, though one has four connections and asks for more at
// a time.
func TestClientsShareALimit(t *testing.T) {
	const rate = 2000
	spec := fmt.Sprintf("limit:iops=%d,burst=%v:memory:16MiB", rate, spread)
	check := func(t *testing.T, p *process) {
		t.Helper()
		from, to := p.measure(2)
		seconds := (to.Elapsed - from.Elapsed).Seconds()
		fair(t, "requests", to.Requests-from.Requests, rate*seconds)
		if len(from.Clients) != 2 || len(to.Clients) != 2 {
			t.Fatalf("clients %+v", to.Clients)
		}
		for i, c := range to.Clients {
			fair(t, "requests of "+c.Client, c.Requests-from.Clients[i].Requests, rate*seconds/2)
		}
	}
	t.Run("nbd", func(t *testing.T) {
		t.Parallel()
		s := ways[0].serve(t, program(t), disk{"disk", spec})
		greedy(t, s.uri, "--bs=4k", "--iodepth=16", "--numjobs=4")
		greedy(t, s.uri, "--bs=4k", "--iodepth=16")
		check(t, s.target)
	})
	t.Run("chain", func(t *testing.T) {
		t.Parallel()
		p := startTarget(t, program(t), "via+shm:///?socket="+filepath.Join(folder(t), "v"), disk{"disk", spec})
		for _, jobs := range []string{"--numjobs=4", "--numjobs=1"} {
			a := attachDisk(t, program(t), p, "disk", "--read-only")
			greedy(t, a.uri("disk", "nbd+unix"), "--bs=4k", "--iodepth=16", jobs)
		}
		check(t, p)
	})
}
