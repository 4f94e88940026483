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

// share is what went through in a measurement, and what the limit gives.
type share struct {
	what  string
	got   uint64
	want  float64
	total bool // of all clients: it is never more
}

// judge measures until every share is within 5 % of what the limit gives, a few times:
// where others have the processors, clients ask for less than they get. The whole is
// never more than the limit.
func (p *process) judge(clients int, shares func(from, to limit.Status, seconds float64) []share) {
	p.t.Helper()
	const attempts = 5
	for attempt := 1; ; attempt++ {
		from, to := p.measure(clients)
		unfair := ""
		for _, x := range shares(from, to, (to.Elapsed - from.Elapsed).Seconds()) {
			ratio := float64(x.got) / x.want
			if x.total && ratio > 1.05 {
				p.t.Fatalf("%s: %d, which is %.3f of %.0f", x.what, x.got, ratio, x.want)
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
			p.t.Fatalf("in %d measurements, at last%s", attempts, unfair)
		}
		p.t.Logf("measurement %d%s", attempt, unfair)
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
				s.target.judge(1, func(from, to limit.Status, seconds float64) []share {
					if c.iops > 0 {
						return []share{{"requests", to.Requests - from.Requests, c.iops * seconds, true}}
					}
					return []share{{"bytes", to.Bytes - from.Bytes, c.bytes * seconds, true}}
				})
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
		p.judge(2, func(from, to limit.Status, seconds float64) []share {
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
