package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/via"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startServer serves one measuring end and returns its address. The test ends
// when the server has ended.
func startServer(t *testing.T, ctx context.Context, eventfds *Eventfds) string {
	t.Helper()
	return startServerAt(t, ctx, eventfds, netip.Addr{})
}

// startServerAt is startServer with yardsticks at an address.
func startServerAt(t *testing.T, ctx context.Context, eventfds *Eventfds, network netip.Addr) string {
	t.Helper()
	host := filepath.Join(t.TempDir(), "bench.sock")
	server, err := Listen(openNIC(t), host)
	if err != nil {
		t.Fatal(err)
	}
	server.Eventfds, server.Network = eventfds, network
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil && ctx.Err() == nil {
			t.Errorf("the server ended with %v", err)
		}
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return host
}

// pairOfEventfds returns the ends of a pair.
func pairOfEventfds(t *testing.T) (a, b *Eventfds) {
	t.Helper()
	var fds [2]int
	for i := range fds {
		var err error
		if fds[i], err = eventfd.New(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { eventfd.Close(fds[i]) })
	}
	return &Eventfds{Private: fds[0], Peer: fds[1]}, &Eventfds{Private: fds[1], Peer: fds[0]}
}

// levelsOf returns the reliability levels of a NIC.
func levelsOf(nic *via.NIC) []via.ReliabilityLevel {
	var all []via.ReliabilityLevel
	for _, l := range []via.ReliabilityLevel{via.UnreliableDelivery, via.ReliableDelivery, via.ReliableReception} {
		if nic.Limits().ReliabilityLevels&l != 0 {
			all = append(all, l)
		}
	}
	return all
}

// Every mode works at every level, for one VI and several, however the ends
// wait, and its rows have what the counters of VIA say.
func TestEveryModeIsMeasured(t *testing.T) {
	for _, level := range levelsOf(openNIC(t)) {
		for _, vis := range []int{1, 5} {
			t.Run(fmt.Sprintf("%v/%d", level, vis), func(t *testing.T) {
				here, there := pairOfEventfds(t)
				host, nic := startServer(t, t.Context(), there), openNIC(t)
				cfg := Config{
					Modes: Modes(), Sizes: []int{0, 64, 5000, 100_000}, Waits: Waits(), Level: level,
					Rounds: 2, Ops: 64, VIs: vis, Many: 70,
				}
				if nic.Limits().RdmaReadLevels&level == 0 {
					cfg.Modes = []Mode{PingPong, Window, RdmaWrite, PostRate, PollScale}
				}
				calls := 0
				cfg.Progress = func(done, total int, _ Case) {
					if done != calls || total != 2*len(cfg.cases()) {
						t.Errorf("case %d of %d, want %d", done, total, calls)
					}
					calls++
				}
				cfg, err := cfg.complete(nic) // for the cases
				if err != nil {
					t.Fatal(err)
				}
				report, err := Run(t.Context(), nic, host, here, cfg)
				if err != nil {
					t.Fatal(err)
				}
				checkRows(t, cfg, report)
			})
		}
	}
}

func checkRows(t *testing.T, cfg Config, report *Report) {
	t.Helper()
	cases := cfg.cases()
	if len(report.Rows) != len(cases) {
		t.Fatalf("%d rows, want %d", len(report.Rows), len(cases))
	}
	for i := range report.Rows {
		r := &report.Rows[i]
		if r.Case != cases[i] || r.Rounds != cfg.Rounds {
			t.Errorf("row %d is %+v, want %+v", i, r.Case, cases[i])
		}
		if !(r.Time.Least > 0) || r.Time.Median < r.Time.Least || r.Time.Most < r.Time.Median || r.Rate <= 0 {
			t.Errorf("%v: the time is %+v", r.Case, r.Time)
		}
		for _, problem := range rowProblems(r, cfg.Level) {
			t.Errorf("%v: %s", r.Case, problem)
		}
	}
}

// rowProblems checks what a row of its mode has.
func rowProblems(r *Row, level via.ReliabilityLevel) []string {
	var bad []string
	expect := func(ok bool, format string, arguments ...any) {
		if !ok {
			bad = append(bad, fmt.Sprintf(format, arguments...))
		}
	}
	if r.PerOp != nil {
		expect(r.PerOp.AgentCalls == 0, "%d calls to the kernel agent", r.PerOp.AgentCalls)
	}
	switch r.Mode {
	case PingPong:
		expect(r.PerOp.Sends == 1 && r.PerOp.Receives == 1, "%v sends and %v receives a round trip", r.PerOp.Sends, r.PerOp.Receives)
		expect((r.Baseline != nil) == (r.Wait == Sleep), "the baseline is %+v", r.Baseline)
		l := r.Latency
		expect(l.Min > 0 && l.Min <= l.P50 && l.P50 <= l.P90 && l.P90 <= l.P99 && l.P99 <= l.P999 && l.P999 <= l.Max, "latencies %+v", l)
	case Window:
		expect(r.PerOp.Sends+r.PerOp.Dropped == 1, "%v sends and %v drops a message", r.PerOp.Sends, r.PerOp.Dropped)
		expect(level == via.UnreliableDelivery || r.PerOp.Dropped == 0, "%v drops a message", r.PerOp.Dropped)
		expect(level == via.UnreliableDelivery || r.Arrived.Least == 1, "%+v of the messages arrived", r.Arrived)
	case RdmaRead, RdmaWrite:
		expect(r.PerOp.Rdma == 1, "%v operations", r.PerOp.Rdma)
		expect(r.Baseline != nil && r.Baseline.Name == "copy" && r.Baseline.Time.Least > 0, "the baseline is %+v", r.Baseline)
	case PostRate:
		expect(r.PerOp.Sends == 1, "%v sends a post", r.PerOp.Sends)
		expect(r.PerOp.Records == 1, "%v ring writes a post", r.PerOp.Records)
		expect(r.Post.Least > 0 && r.Post.Median <= r.Time.Median, "post %+v of %+v", r.Post, r.Time)
		fallthrough
	case PollScale:
		expect((r.Baseline != nil) == (r.VIs > 1), "the baseline is %+v", r.Baseline)
	}
	return bad
}

func TestReportAsJSON(t *testing.T) {
	host, nic := startServer(t, t.Context(), nil), openNIC(t)
	report, err := Run(t.Context(), nic, host, nil, Config{
		Modes: []Mode{PingPong, RdmaWrite, PostRate}, Sizes: []int{64}, Waits: []Wait{Poll},
		Level: via.ReliableDelivery, Rounds: 1, Ops: 64, Many: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Conditions map[string]any   `json:"conditions"`
		Rows       []map[string]any `json:"rows"`
		Published  []map[string]any `json:"published"`
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"time", "provider", "reliability", "processes", "bound", "cpu", "cores", "kernel", "go", "rounds", "modes", "waits", "sizes"} {
		if _, ok := got.Conditions[key]; !ok {
			t.Errorf("the conditions have no %q", key)
		}
	}
	want := map[int][]string{
		0: {"mode", "size", "wait", "vis", "batch", "rounds", "ops", "time_ns", "per_second", "mb_per_second", "latency", "per_op"},
		1: {"baseline"},
		2: {"post_ns"},
	}
	for row, keys := range want {
		for _, key := range keys {
			if _, ok := got.Rows[row][key]; !ok {
				t.Errorf("row %d has no %q: %v", row, key, got.Rows[row])
			}
		}
	}
	if len(got.Published) != 5 || got.Published[0]["system"] != "MyVIA" || got.Published[0]["latency_us"] != 8.46 {
		t.Errorf("published are %v", got.Published)
	}
}

// slow is a configuration that does not end within a test.
func slow(wait Wait) Config {
	return Config{
		Modes: []Mode{PingPong}, Sizes: []int{64}, Waits: []Wait{wait}, Level: via.ReliableDelivery,
		Rounds: 1000, Ops: 1_000_000,
	}
}

// hangs is the timeout for a peer that does hang.
const hangs = 200 * time.Millisecond

func TestEndOfContextEndsRun(t *testing.T) {
	for _, wait := range Waits() {
		t.Run(string(wait), func(t *testing.T) {
			host := startServer(t, t.Context(), nil)
			ctx, stop := context.WithCancelCause(t.Context())
			cause := errors.New("it is enough")
			cfg := slow(wait)
			cfg.Progress = func(int, int, Case) { time.AfterFunc(20*time.Millisecond, func() { stop(cause) }) }
			if _, err := Run(ctx, openNIC(t), host, nil, cfg); !errors.Is(err, cause) {
				t.Errorf("the run ended with %v", err)
			}
		})
	}
}

// An interrupted run reports complete rounds, or, in the first, complete cases.
func TestInterruptedRunReports(t *testing.T) {
	cfg := Config{
		Modes: []Mode{PingPong, RdmaWrite}, Sizes: []int{64}, Waits: []Wait{Sleep}, Level: via.ReliableDelivery,
		Rounds: 5, Ops: 10,
	}
	for at, want := range map[int]struct{ rows, rounds int }{0: {0, 0}, 1: {1, 1}, 2: {2, 1}, 3: {2, 1}, 5: {2, 2}} {
		host := startServer(t, t.Context(), nil)
		ctx, stop := context.WithCancelCause(t.Context())
		cause := errors.New("it is enough")
		cfg.Progress = func(done, _ int, _ Case) {
			if done == at {
				stop(cause)
			}
		}
		report, err := Run(ctx, openNIC(t), host, nil, cfg)
		if !errors.Is(err, cause) {
			t.Errorf("at case %d the run ended with %v", at, err)
		}
		if report == nil {
			if want.rows > 0 {
				t.Errorf("at case %d there is no report", at)
			}
			continue
		}
		if len(report.Rows) != want.rows || report.Conditions.Rounds != want.rounds {
			t.Errorf("at case %d: %d rows of %d rounds, want %v", at, len(report.Rows), report.Conditions.Rounds, want)
		}
		for i := range report.Rows {
			if report.Rows[i].Rounds != want.rounds {
				t.Errorf("at case %d a row has %d rounds", at, report.Rows[i].Rounds)
			}
		}
	}
}

func TestPeerThatEndsIsNoticed(t *testing.T) {
	for _, wait := range Waits() {
		t.Run(string(wait), func(t *testing.T) {
			serving, stop := context.WithCancel(t.Context())
			host := startServer(t, serving, nil)
			cfg := slow(wait)
			cfg.Progress = func(int, int, Case) { time.AfterFunc(20*time.Millisecond, stop) }
			_, err := Run(t.Context(), openNIC(t), host, nil, cfg)
			if err == nil || errors.Is(err, errHung) {
				t.Errorf("the run ended with %v", err)
			}
		})
	}
}

// A peer that accepts a connection and then does nothing costs the timeout,
// not more.
func TestPeerThatHangsIsNoticed(t *testing.T) {
	host, nic := filepath.Join(t.TempDir(), "bench.sock"), openNIC(t)
	l, err := nic.Listen(via.Address{Host: host, Discriminator: controlName})
	if err != nil {
		t.Fatal(err)
	}
	ctl, err := openControl(nic)
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Wait(t.Context())
		if err == nil {
			err = r.Accept(t.Context(), ctl.vi)
		}
		accepted <- err
	}()
	cfg := slow(Poll)
	cfg.Timeout = hangs
	_, err = Run(t.Context(), openNIC(t), host, nil, cfg)
	if !errors.Is(err, errHung) {
		t.Errorf("the run ended with %v", err)
	}
	if err := errors.Join(<-accepted, ctl.close(), l.Close()); err != nil {
		t.Error(err)
	}
}

// An echo that never comes is a hang, too: the wait of the data path ends.
func TestSilentDataPathIsNoticed(t *testing.T) {
	for _, wait := range Waits() {
		t.Run(string(wait), func(t *testing.T) {
			nic := openNIC(t)
			host := startServer(t, t.Context(), nil)
			cfg, err := slow(wait).complete(nic)
			if err != nil {
				t.Fatal(err)
			}
			s := &session{ctx: t.Context(), cfg: cfg, nic: nic, host: host}
			if err := s.open(); err != nil {
				t.Fatal(err)
			}
			sh := shape{VIs: 1, Sends: 2, Receives: 2}
			err = s.with(step{Role: gather, Batch: 2, Receives: 2}, sh, wait, func(c *circuit) error {
				c.wait.hangTimeout = hangs          // of the data path alone: the control path keeps its own
				return c.pingPong(make([]int64, 1)) // the answer waits for the second message
			})
			if !errors.Is(err, errHung) {
				t.Errorf("the wait ended with %v", err)
			}
			if err := s.close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestServerRefusesRequests(t *testing.T) {
	good := request{Hello: &hello{Version: protocolVersion, Area: minimumArea, Level: via.ReliableDelivery}}
	for name, c := range map[string]struct {
		requests []request
		want     string
	}{
		"version":        {[]request{{Hello: &hello{Version: 99, Area: minimumArea}}}, "versions 99 and 2"},
		"small area":     {[]request{{Hello: &hello{Version: protocolVersion, Area: 1}}}, "not within the limits"},
		"large area":     {[]request{{Hello: &hello{Version: protocolVersion, Area: maximumArea + 1}}}, "not within the limits"},
		"second hello":   {[]request{good, good}, "or the second one"},
		"early step":     {[]request{{Step: &step{Role: echo}}}, "out of turn"},
		"stop":           {[]request{good, {Stop: true}}, "out of turn"},
		"empty":          {[]request{good, {}}, "out of turn"},
		"role":           {[]request{good, {Step: &step{Role: "dance"}}}, `unknown role "dance"`},
		"wait":           {[]request{good, {Step: &step{Role: echo, Wait: "never"}}}, `unknown way to wait "never"`},
		"no VI":          {[]request{good, {Step: &step{Role: echo, Wait: Poll, Receives: 1}}}, "not within the limits"},
		"many VIs":       {[]request{good, {Step: &step{Role: echo, Wait: Poll, Receives: 1, VIs: MaximumVIs + 1}}}, "not within the limits"},
		"many receives":  {[]request{good, {Step: &step{Role: echo, Wait: Poll, VIs: 4, Receives: maximumReceives/4 + 1}}}, "not within the limits"},
		"long message":   {[]request{good, {Step: &step{Role: echo, Wait: Poll, VIs: 1, Receives: 1, Size: minimumArea + 1}}}, "do not fit"},
		"negative size":  {[]request{good, {Step: &step{Role: echo, Wait: Poll, VIs: 1, Receives: 1, Size: -1}}}, "do not fit"},
		"batch":          {[]request{good, {Step: &step{Role: gather, Wait: Poll, VIs: 1, Receives: 1, Batch: batch + 1}}}, "a batch of"},
		"no eventfds":    {[]request{good, {Step: &step{Role: bell, Count: 1}}}, "no eventfds"},
		"no network":     {[]request{good, {Step: &step{Role: datagrams, Wait: Poll}}}, "no address at which"},
		"no stream":      {[]request{good, {Step: &step{Role: stream}}}, "no address at which"},
		"long datagram":  {[]request{good, {Step: &step{Role: datagrams, Wait: Poll, Size: MaximumDatagram + 1}}}, "are longer than 1232"},
		"short datagram": {[]request{good, {Step: &step{Role: datagrams, Wait: Poll, Size: -1}}}, "are longer than 1232"},
		"hasty datagram": {[]request{good, {Step: &step{Role: datagrams}}}, `unknown way to wait ""`},
		"negative count": {[]request{good, {Step: &step{Role: bell, Count: -1}}}, "too many"},
	} {
		t.Run(name, func(t *testing.T) {
			ctl, served := visitServer(t)
			var err error
			for _, r := range c.requests {
				var a answer
				if err = errors.Join(ctl.send(r), ctl.receive(t.Context(), time.Minute, &a)); err != nil {
					t.Fatal(err)
				}
				if a.Error != "" {
					err = errors.New(a.Error)
				}
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the answer is %v, want %q", err, c.want)
			}
			if err := ctl.close(); err != nil {
				t.Error(err)
			}
			if err := <-served; err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the server ended with %v, want %q", err, c.want)
			}
		})
	}
}

// A malformed message ends the visit, and not the server.
func TestServerRefusesGarbage(t *testing.T) {
	for _, garbage := range []any{"a text", []int{1}, map[string]int{"unknown": 1}} {
		ctl, served := visitServer(t)
		if err := ctl.send(garbage); err != nil {
			t.Fatal(err)
		}
		if err := <-served; err == nil || !strings.Contains(err.Error(), "no message") {
			t.Errorf("after %v the server ended with %v", garbage, err)
		}
		if err := ctl.close(); err != nil {
			t.Error(err)
		}
	}
}

// visitServer starts a server and connects to it; the result of its Serve
// follows.
func visitServer(t *testing.T) (*control, <-chan error) {
	t.Helper()
	host, nic := filepath.Join(t.TempDir(), "bench.sock"), openNIC(t)
	server, err := Listen(nic, host)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		err := server.Serve(t.Context())
		served <- errors.Join(err, server.Close())
	}()
	near := openNIC(t)
	ctl, err := openControl(near)
	if err != nil {
		t.Fatal(err)
	}
	s := &session{ctx: t.Context(), host: host}
	if err := s.dial(ctl.vi, controlName); err != nil {
		t.Fatal(err)
	}
	return ctl, served
}

// The loops allocate nothing. The runtime itself allocates now and then,
// for a thread for example, is not in every round.
func TestAllocNothingPerOperation(t *testing.T) {
	here, there := pairOfEventfds(t)
	host, nic := startServer(t, t.Context(), there), openNIC(t)
	report, err := Run(t.Context(), nic, host, here, Config{
		Modes: []Mode{PingPong, Window, RdmaWrite, RdmaRead, PostRate}, Sizes: []int{64}, Waits: Waits(),
		Level: via.ReliableDelivery, Rounds: 3, Ops: 1000, Many: 10,
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range report.Rows {
		if r := &report.Rows[i]; r.PerOp.Allocations > 0.05 {
			t.Errorf("%v: %.3f allocations an operation", r.Case, r.PerOp.Allocations)
		}
	}
}
