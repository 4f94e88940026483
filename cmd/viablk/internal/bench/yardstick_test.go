package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
)

var loopbacks = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}

// With a network every case is measured beside what that can do, in whatever
// way the ends wait.
func TestCasesAreComparedWithNetwork(t *testing.T) {
	for _, at := range loopbacks {
		t.Run(at.String(), func(t *testing.T) {
			here, there := pairOfEventfds(t)
			host, nic := startServerAt(t, t.Context(), there, at), openNIC(t)
			report, err := Run(t.Context(), nic, host, here, Config{
				Modes: []Mode{PingPong, Window, RdmaWrite, UDP, TCP}, Sizes: []int{0, 64, MaximumDatagram, 100_000}, Waits: Waits(),
				Level: via.ReliableDelivery, Rounds: 2, Ops: 30, VIs: 3, Network: at,
			})
			if err != nil {
				t.Fatal(err)
			}
			count := make(map[Mode]int)
			times := make(map[Case]Spread)
			for i := range report.Rows {
				r := &report.Rows[i]
				count[r.Mode]++
				times[r.Case] = r.Time
				for _, problem := range yardstickProblems(r, times) {
					t.Errorf("%v: %s", r.Case, problem)
				}
			}
			want := map[Mode]int{PingPong: 12, Window: 12, RdmaWrite: 9, UDP: 9, TCP: 1}
			for m, n := range want {
				if count[m] != n {
					t.Errorf("%s has %d rows, want %d", m, count[m], n)
				}
			}
		})
	}
}

// yardstickProblems checks a row; times are those of the rows before it.
func yardstickProblems(r *Row, times map[Case]Spread) []string {
	var bad []string
	expect := func(ok bool, format string, arguments ...any) {
		if !ok {
			bad = append(bad, fmt.Sprintf(format, arguments...))
		}
	}
	expect(r.Time.Least > 0, "the time is %+v", r.Time)
	expect(r.PerOp.CPU > 0, "no processor time was used")
	y, compared := r.yardstick()
	expect(compared == (r.Baseline != nil), "the baseline is %+v", r.Baseline)
	switch r.Mode {
	case UDP:
		l := r.Latency
		expect(r.VIs == 1 && l.Min > 0 && l.Min <= l.P50 && l.P50 <= l.P99 && l.P99 <= l.Max, "latencies %+v", l)
	case TCP:
		expect(r.Size == 64<<10 && r.Latency == nil, "the row is %+v", r)
		expect(r.MBps > 1, "%v MB/s", r.MBps)
	}
	if r.Baseline == nil {
		return bad
	}
	before, ok := times[y]
	expect(ok && r.Baseline.Name == string(y.Mode), "the baseline is %q, of a row that comes later", r.Baseline.Name)
	want := before.Median
	if y.Mode == TCP {
		want *= float64(r.Size) / (64 << 10)
	}
	got := r.Baseline.Time.Median
	expect(got > 0.999*want && got < 1.001*want, "the time of the baseline is %v, want %v", got, want)
	return bad
}

// Without a yardstick for it a case is compared with what it was compared with.
func TestCasesWithoutYardstick(t *testing.T) {
	here, there := pairOfEventfds(t)
	host, nic := startServerAt(t, t.Context(), there, loopbacks[0]), openNIC(t)
	report, err := Run(t.Context(), nic, host, here, Config{
		Modes: []Mode{PingPong, RdmaWrite, UDP}, Sizes: []int{64, 2000}, Waits: []Wait{Sleep},
		Level: via.ReliableDelivery, Rounds: 1, Ops: 50, Network: loopbacks[0],
	})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range report.Rows {
		if r.Baseline != nil {
			names = append(names, fmt.Sprintf("%s %d %s", r.Mode, r.Size, r.Baseline.Name))
		}
	}
	if want := []string{"pingpong 64 udp", "rdma-write 64 copy", "rdma-write 2000 copy"}; !slices.Equal(names, want) {
		t.Errorf("the baselines are %q, want %q", names, want)
	}
}

func TestYardsticksNeedNetwork(t *testing.T) {
	cfg := Config{
		Modes: []Mode{UDP}, Sizes: []int{64}, Waits: []Wait{Poll}, Level: via.ReliableDelivery, Rounds: 1, Ops: 10,
	}
	host, nic := startServer(t, t.Context(), nil), openNIC(t)
	if _, err := Run(t.Context(), nic, host, nil, cfg); !errors.Is(err, errNoNetwork) {
		t.Errorf("without an address here: %v", err)
	}
	cfg.Network = loopbacks[0]
	if _, err := Run(t.Context(), nic, host, nil, cfg); !errors.Is(err, errNoNetwork) {
		t.Errorf("without an address there: %v", err)
	}
}

// A yardstick ends with the context, however its ends wait.
func TestEndOfContextEndsYardstick(t *testing.T) {
	for _, m := range Yardsticks() {
		for _, wait := range Waits() {
			t.Run(fmt.Sprint(m, " ", wait), func(t *testing.T) {
				host := startServerAt(t, t.Context(), nil, loopbacks[0])
				ctx, stop := context.WithCancelCause(t.Context())
				cause := errors.New("it is enough")
				cfg := slow(wait)
				cfg.Modes, cfg.Network = []Mode{m}, loopbacks[0]
				cfg.Progress = func(int, int, Case) { time.AfterFunc(20*time.Millisecond, func() { stop(cause) }) }
				if _, err := Run(ctx, openNIC(t), host, nil, cfg); !errors.Is(err, cause) {
					t.Errorf("the run ended with %v", err)
				}
			})
		}
	}
}

// So it does with the other end.
func TestPeerThatEndsYardstickIsNoticed(t *testing.T) {
	for _, m := range Yardsticks() {
		for _, wait := range []Wait{Poll, Sleep} {
			t.Run(fmt.Sprint(m, " ", wait), func(t *testing.T) {
				serving, stop := context.WithCancel(t.Context())
				host := startServerAt(t, serving, nil, loopbacks[0])
				cfg := slow(wait)
				cfg.Modes, cfg.Network = []Mode{m}, loopbacks[0]
				cfg.Progress = func(int, int, Case) { time.AfterFunc(20*time.Millisecond, stop) }
				if _, err := Run(t.Context(), openNIC(t), host, nil, cfg); err == nil || errors.Is(err, errHung) {
					t.Errorf("the run ended with %v", err)
				}
			})
		}
	}
}
