package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/viablk/viablk/config"
)

// TestStateLog: there is a line for each export and session, up to a limit, and
// also in a log that shows errors alone.
func TestStateLog(t *testing.T) {
	p := newStatus("target")
	for i := range maximumStateLines + 7 {
		p.Faces = append(p.Faces, faceStatus{Export: fmt.Sprint(i), Face: "nbd", State: "connected"})
	}
	p.Sessions = []sessionStatus{{ID: "0123456789abcdef", Exports: []string{"0"}}, {ID: "x"}}
	for _, level := range []string{"debug", "error"} {
		var out bytes.Buffer
		logState(newLog(config.Log{Level: level, Format: "text"}, &out), &p, true)
		for event, want := range map[string]int{
			"event=state ": 1, "draining=true": 1, "event=state_export ": maximumStateLines, "event=state_session ": 2,
			"session=01234567 ": 1, "event=state_more exports=7 sessions=0": 1,
		} {
			if n := strings.Count(out.String(), event); n != want {
				t.Errorf("log at %s: %d times %q, want %d", level, n, event, want)
			}
		}
	}
}

// TestStateSignal: SIGUSR1 logs the state and ends nothing.
func TestStateSignal(t *testing.T) {
	s := newTestService(t, waitTimeout)
	asked, done := 0, make(chan struct{})
	s.log = slog.New(slog.DiscardHandler)
	s.report = func() processStatus {
		if asked++; asked == 3 {
			close(done)
		} else if asked < 3 {
			s.inquiries <- nil
		}
		return newStatus("target")
	}
	s.inquiries <- nil
	if err := s.wait(done); err != nil || asked < 3 {
		t.Errorf("asked %d times, %v", asked, err)
	}
}
