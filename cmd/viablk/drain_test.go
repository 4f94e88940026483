package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// drainable is a service that serves parts and may be drained. end ends it as a
// signal does, and returns the result.
func drainable(t *testing.T, parts ...part) (s *service, mux *http.ServeMux, end func() error) {
	t.Helper()
	s = newTestService(t, waitTimeout)
	s.mayDrain = true
	s.report = func() processStatus {
		p := newStatus("target")
		p.Sessions = []sessionStatus{{ID: "1"}}
		return p
	}
	mux = http.NewServeMux()
	s.handleDrain(mux)
	s.handleReload(mux)
	s.handleTakeover(mux)
	s.handleUpgrade(mux)
	for _, p := range parts {
		s.start(p)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.wait(nil) }()
	for !s.ready.Load() {
		time.Sleep(time.Millisecond)
	}
	return s, mux, func() error {
		s.signals <- syscall.SIGTERM
		return <-ended
	}
}

// TestDrainedProcessStays: a drain ends what clients are connected to and
// nothing else, once, and the end of the process the rest.
func TestDrainedProcessStays(t *testing.T) {
	var r recorder
	watched := r.obedient("watched")
	watched.stays = true
	s, mux, end := drainable(t, watched, part{name: "end only"}, r.obedient("clients"))
	for i := range 2 {
		if i > 0 {
			s.parts[2][0].drain = func(context.Context) error { return nil } // as servers do
		}
		if code, answer := callMux(mux, http.MethodPost, "/v1/drain", ""); code != http.StatusNoContent {
			t.Fatalf("got %d: %s", code, answer.Error.Message)
		}
		if want := []string{"clients drained"}; !slices.Equal(r.notes, want) || !s.draining.Load() {
			t.Fatalf("got %q, want %q", r.notes, want)
		}
	}
	s.admin = "socket"
	for _, route := range []string{"/v1/reload", "/v1/takeover", "/v1/upgrade"} {
		w := httptest.NewRecorder()
		q := httptest.NewRequest(http.MethodPost, route, strings.NewReader("{}"))
		q.Header.Set("Upgrade", takeoverProtocol)
		s.mayHandOver = func(claim) error { return errors.New("it was asked") }
		if mux.ServeHTTP(w, q); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), errDraining.Error()) {
			t.Errorf("%s: got %d: %s", route, w.Code, w.Body)
		}
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	if want := []string{"clients drained", "watched drained"}; !slices.Equal(r.notes, want) {
		t.Errorf("got %q, want %q", r.notes, want)
	}
	if code, answer := callMux(mux, http.MethodPost, "/v1/drain", ""); code != http.StatusConflict || answer.Error.Message != errEnding.Error() {
		t.Errorf("a process that ends: got %d: %s", code, answer.Error.Message)
	}
}

// TestDrainCutsNothingOff: the time of a call ends the call alone. Parts do not
// wait for each other: a client of one that does not finish keeps the clients
// of none.
func TestDrainCutsNothingOff(t *testing.T) {
	finish := make(chan struct{})
	var both sync.WaitGroup
	both.Add(2)
	slow := func() part {
		first := sync.OnceFunc(both.Done)
		return part{
			name:  "slow",
			serve: func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) },
			drain: func(ctx context.Context) error {
				first()
				select {
				case <-finish:
					return nil
				case <-ctx.Done():
					t.Error("a request was cut off")
					return context.Cause(ctx)
				}
			},
		}
	}
	_, mux, end := drainable(t, slow(), slow())
	for range 2 {
		code, answer := callMux(mux, http.MethodPost, "/v1/drain", `{"timeout": "0s"}`)
		if code != http.StatusServiceUnavailable || answer.Error.Message != "the target still drains: 1 clients are left, with 0 requests in flight" {
			t.Errorf("got %d: %s", code, answer.Error.Message)
		}
	}
	both.Wait()
	close(finish)
	if code, answer := callMux(mux, http.MethodPost, "/v1/drain", "{}"); code != http.StatusNoContent {
		t.Errorf("got %d: %s", code, answer.Error.Message)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}

// TestDrainCallsEnd: calls that wait end with the process, and are not more
// than their limit.
func TestDrainCallsEnd(t *testing.T) {
	draining := make(chan struct{}, 2)
	s, mux, end := drainable(t, part{name: "stuck", drain: func(ctx context.Context) error {
		draining <- struct{}{}
		<-ctx.Done()
		return context.Cause(ctx)
	}})
	answers := make(chan int)
	for range maximumDrainCalls + 1 {
		go func() {
			code, _ := callMux(mux, http.MethodPost, "/v1/drain", `{"timeout": "1h"}`)
			answers <- code
		}()
	}
	<-draining
	if code := <-answers; code != http.StatusServiceUnavailable {
		t.Errorf("a call above the limit: got %d", code)
	}
	s.cancel(errReleased)
	for range maximumDrainCalls {
		if code := <-answers; code != http.StatusConflict {
			t.Errorf("a call at the end: got %d", code)
		}
	}
	if err := end(); err == nil {
		t.Error("the part ended in peace")
	}
}

// TestDrainRefusals: a call that makes no sense begins no drain.
func TestDrainRefusals(t *testing.T) {
	s, mux, end := drainable(t)
	for body, want := range map[string]int{
		`{"timeout": "-1s"}`: 400, `{"timeout": "2h"}`: 400, `{"timeout": 30}`: 400, `{"force": true}`: 400, `{} {}`: 400, `[`: 400,
		strings.Repeat(" ", maximumDocument+1): 413,
	} {
		if code, answer := callMux(mux, http.MethodPost, "/v1/drain", body); code != want || answer.Error.Message == "" {
			t.Errorf("%.20q: got %d", body, code)
		}
	}
	for _, c := range []struct {
		name      string
		arrange   func()
		code      int
		complaint error
	}{
		{"starts", func() { s.ready.Store(false) }, 503, errStarts},
		{"is taken over", func() { s.ready.Store(true); s.phases.now = phaseTakeover }, 409, errTakenOver},
		{"is no target", func() { s.phases.resume(); s.mayDrain = false }, 409, errNoDrain},
	} {
		c.arrange()
		if code, answer := callMux(mux, http.MethodPost, "/v1/drain", ""); code != c.code || answer.Error.Message != c.complaint.Error() {
			t.Errorf("a process that %s: got %d: %s", c.name, code, answer.Error.Message)
		}
	}
	if s.draining.Load() {
		t.Error("it drains")
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}

func TestOneTarget(t *testing.T) {
	target, attach := processStatus{Command: "target"}, processStatus{Command: "attach"}
	for _, c := range []struct {
		processes []processStatus
		code      int // 0: there is one
	}{
		{[]processStatus{target}, 0},
		{[]processStatus{attach}, 0}, // it answers itself
		{[]processStatus{attach, target, attach}, 0},
		{[]processStatus{target, target}, exitUsage},
		{[]processStatus{attach, attach}, exitTryAgain},
	} {
		p, err := oneTarget(c.processes)
		var code *exit
		if errors.As(err, &code) != (c.code != 0) || code != nil && code.code != c.code || (p == nil) != (c.code != 0) {
			t.Errorf("%d processes: %v, %v", len(c.processes), p, err)
		}
	}
}
