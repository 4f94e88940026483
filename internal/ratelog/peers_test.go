package ratelog

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// A peer that causes lines without end has its burst and one line a second, and
// takes no line from another peer.
func TestLinesOfPeers(t *testing.T) {
	var p Peers
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	start := time.Now()
	const seconds, perSecond = 10, 1000
	for i := range seconds * perSecond {
		now := start.Add(time.Duration(i) * time.Second / perSecond)
		p.Log(now, "noisy", log, slog.LevelInfo, "logged in", "by", "noisy")
		if i%(2*perSecond) == 0 {
			p.Log(now, "quiet", log, slog.LevelInfo, "logged in", "by", "quiet")
		}
	}
	if n := strings.Count(out.String(), "by=noisy"); n != burst+seconds-1 {
		t.Errorf("%d lines of the noisy peer, want %d", n, burst+seconds-1)
	}
	if n := strings.Count(out.String(), "by=quiet\n"); n != seconds/2 {
		t.Errorf("%d lines of the quiet peer, want %d", n, seconds/2)
	}
	if !strings.Contains(out.String(), "by=noisy not_logged=968\n") {
		t.Errorf("the log does not say how many lines are missing:\n%s", &out)
	}
	out.Reset()
	for range 2 * burst {
		p.Log(start, "", log, slog.LevelInfo, "of this user")
		p.Log(start, "debugged", log, slog.LevelDebug, "not enabled: takes nothing")
	}
	p.Log(start, "debugged", log, slog.LevelInfo, "enabled")
	if n := strings.Count(out.String(), "of this user"); n != 2*burst || !strings.Contains(out.String(), "enabled") {
		t.Errorf("%d lines without a limit, want %d", n, 2*burst)
	}
}

// Peers with many names have no more lines than the table has places, and
// places become free again.
func TestLinesOfManyPeers(t *testing.T) {
	var p Peers
	now := time.Now()
	lines := 0
	for i := range 10 * maxPeers {
		if _, ok := p.allow(now, fmt.Sprint("peer ", i)); ok {
			lines++
		}
	}
	if lines != maxPeers+burst {
		t.Errorf("%d lines at once, want %d", lines, maxPeers+burst)
	}
	now = now.Add(burst * interval)
	for i := range 10 * maxPeers {
		if _, ok := p.allow(now, fmt.Sprint("late ", i%100)); ok != (i < 100*burst) {
			t.Fatalf("line %d: %v", i, ok)
		}
	}
}
