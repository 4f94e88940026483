package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/initiator"
)

// startTestMonitor starts the metrics listener of a process with a status. The
// service ends with the test, which waits for all of its goroutines.
func startTestMonitor(t *testing.T, report func() processStatus) (svc *service, url string) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	svc = &service{log: log, report: report, failed: make(chan error, 1), signals: nil}
	svc.abandon = func(err error) { t.Errorf("the listener did not end: %v", err) }
	svc.ctx, svc.cancel = context.WithCancelCause(context.Background())
	url, err := svc.startMonitor(t.Context(), config.Config{Metrics: config.Metrics{Listen: ":0", ReadyAway: 10 * time.Second}}, nil, handover{}, &certificates{log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		svc.end(errReleased)
		select {
		case err := <-svc.failed:
			t.Error(err)
		default:
		}
		http.DefaultClient.CloseIdleConnections()
		goleak.VerifyNone(t)
	})
	return svc, url
}

// ask gets a page of the listener.
func ask(t *testing.T, url string) (code int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Error(err)
	}
	return response.StatusCode, string(content)
}

// Scrapes at once, of more connections than are served, are all answered, and
// the state is computed no more often than once in the time that it is good
// for.
func TestScrapesAtOnce(t *testing.T) {
	var computed atomic.Int64
	_, url := startTestMonitor(t, func() processStatus {
		computed.Add(1)
		return newStatus("target")
	})
	begin := time.Now()
	var all sync.WaitGroup
	for range 300 {
		all.Go(func() {
			if code, body := ask(t, url+"/metrics"); code != http.StatusOK || !strings.Contains(body, "\nviablk_up 1\n") {
				t.Errorf("got %d: %s", code, body)
			}
		})
	}
	all.Wait()
	if n, most := computed.Load(), 1+int64(time.Since(begin)/statusFresh); n < 1 || n > most {
		t.Errorf("the state was computed %d times, at most %d are allowed", n, most)
	}
}

// A process that cannot tell its state is not healthy, and asks for it once at
// a time.
func TestStuckProcessIsNotHealthy(t *testing.T) {
	var computed atomic.Int64
	stuck := make(chan struct{})
	_, url := startTestMonitor(t, func() processStatus {
		computed.Add(1)
		<-stuck
		return newStatus("target")
	})
	var all sync.WaitGroup
	for _, page := range []string{"healthz", "readyz", "metrics", "v1/status", "healthz"} {
		all.Go(func() {
			if code, body := ask(t, url+"/"+page); code != http.StatusServiceUnavailable || !strings.Contains(body, "did not report its state within 1s") {
				t.Errorf("%s: got %d: %s", page, code, body)
			}
		})
	}
	all.Wait()
	if n := computed.Load(); n != 1 {
		t.Errorf("the state is computed %d times", n)
	}
	close(stuck)
	for code := 0; code != http.StatusOK; {
		code, _ = ask(t, url+"/healthz")
	}
}

func TestReadiness(t *testing.T) {
	disk := func(state initiator.State, seconds float64) processStatus {
		p := newStatus("attach")
		p.Exports = []exportStatus{{Name: "disk"}}
		p.Initiators = []initiator.Status{{Export: "remote", State: state, DisconnectedSeconds: seconds}}
		return p
	}
	backendDisk := func(state initiator.State, seconds float64) processStatus {
		p := newStatus("target")
		p.Exports = []exportStatus{{Name: "behind"}, {Name: "own"}}
		p.Disks = []diskStatus{{Name: "behind", State: state, WaitingSeconds: seconds}, {Name: "own"}}
		return p
	}
	for _, c := range []struct {
		name              string
		status            processStatus
		started, draining bool
		failed            string // the check; empty: ready
	}{
		{"target", newStatus("target"), true, false, ""},
		{"reload failed", newStatus("target"), true, false, "last reload"},
		{"starts", newStatus("target"), false, false, "started"},
		{"drains", newStatus("target"), true, true, "not draining"},
		{"connected", disk(initiator.StateConnected, 0), true, false, ""},
		{"away for a moment", disk(initiator.StateWaiting, 10), true, false, ""},
		{"away", disk(initiator.StateWaiting, 10.1), true, false, "disk disk"},
		{"failed", disk(initiator.StateFailed, 0), true, false, "disk disk"},
		{"backend connected", backendDisk(initiator.StateConnected, 0), true, false, ""},
		{"backend away for a moment", backendDisk(initiator.StateWaiting, 10), true, false, ""},
		{"backend away", backendDisk(initiator.StateWaiting, 10.1), true, false, "disk behind"},
		{"backend failed", backendDisk(initiator.StateFailed, 0), true, false, "disk behind"},
	} {
		t.Run(c.name, func(t *testing.T) {
			svc, url := startTestMonitor(t, func() processStatus { return c.status })
			svc.ready.Store(c.started)
			svc.draining.Store(c.draining)
			svc.reloads.count(c.failed != "last reload")
			code, body := ask(t, url+"/readyz")
			var got readiness
			if err := json.Unmarshal([]byte(body), &got); err != nil {
				t.Fatal(err)
			}
			want := http.StatusOK
			if c.failed != "" {
				want = http.StatusServiceUnavailable
			}
			if code != want || got.Ready != (c.failed == "") || len(got.Checks) != 3+len(c.status.Initiators)+len(c.status.Disks)/2 {
				t.Errorf("got %d: %s", code, body)
			}
			for _, check := range got.Checks {
				if check.Passed == (check.Name == c.failed) {
					t.Errorf("the check %q: %s", check.Name, body)
				}
			}
			if code, _ := ask(t, url+"/healthz"); code != http.StatusOK {
				t.Errorf("health is %d", code)
			}
		})
	}
}

// Events are as far apart as the interval, but for a burst after a pause.
func TestPace(t *testing.T) {
	now := time.Unix(1000, 0)
	p := pace{interval: time.Second, burst: 3}
	for i, want := range []time.Duration{0, 0, 0, 1, 2} {
		if got := p.wait(now); got != want*time.Second {
			t.Errorf("event %d waits %v", i, got)
		}
	}
	if got := p.wait(now.Add(2500 * time.Millisecond)); got != 500*time.Millisecond {
		t.Errorf("an event soon after waits %v", got)
	}
	now = now.Add(time.Hour)
	for i, want := range []time.Duration{0, 0, 0, 1} {
		if got := p.wait(now); got != want*time.Second {
			t.Errorf("event %d after a pause waits %v", i, got)
		}
	}
}

// Events of a flood come in batches, at the rate of the interval.
func TestPaceOfBatches(t *testing.T) {
	start := time.Unix(1000, 0)
	now, p := start, pace{interval: time.Second, burst: 5, batch: 5}
	waits := 0
	for range 105 {
		if wait := p.wait(now); wait > 0 {
			now = now.Add(wait)
			waits++
		}
	}
	if passed := now.Sub(start); waits != 20 || passed != 100*time.Second {
		t.Errorf("%d waits in %v", waits, passed)
	}
}

// One connection more than there are places waits until another ends, and Close
// ends a wait.
func TestPlacesOfConnections(t *testing.T) {
	inner, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newPacedListener(inner, 2, pace{burst: 1})
	defer l.Close()
	accepted := make(chan net.Conn)
	ended := make(chan error)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				ended <- err
				return
			}
			accepted <- c
		}
	}()
	var first net.Conn
	for i := range 3 {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i < 2 {
			first = <-accepted
		}
	}
	if len(l.places) != 2 {
		t.Errorf("%d places are in use", len(l.places))
	}
	select {
	case <-accepted:
		t.Fatal("a third connection was accepted")
	case <-time.After(20 * time.Millisecond): // long enough to see a wrong one at times
	}
	first.Close()
	first.Close() // gives back one place
	<-accepted
	if len(l.places) != 2 {
		t.Errorf("%d places are in use", len(l.places))
	}
	l.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}
