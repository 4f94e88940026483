package top

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"pgregory.net/rapid"

	"github.com/viablk/viablk/cmd/viablk/internal/activity"
	"github.com/viablk/viablk/internal/latency"
)

var update = flag.Bool("top.update", false, "write the golden frames anew")

// start is when the processes of these tests started.
var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// durations are n requests of one operation that took d each, of which the
// disk had the part disk.
func durations(o latency.Operation, n int, d time.Duration, disk float64) *latency.Status {
	var set latency.Set
	r := set.Acquire()
	for range n {
		r.Add(latency.Request, o, d)
		r.Add(latency.Backend, o, time.Duration(disk*float64(d)))
	}
	set.Release(r)
	return set.Read()
}

// twoStates are half a second of exports, each slow for another reason.
func twoStates() (a, b activity.State) {
	base := func(name, face string) activity.Counters {
		return activity.Counters{
			Key: activity.Key{PID: 4242, Export: name, Face: face}, Started: start, State: activity.Connected,
			Backend: "file", Connections: 1, InFlight: 8,
		}
	}
	busy := func(c activity.Counters, n uint64, d time.Duration, disk float64) activity.Counters {
		c.Reads, c.BytesRead, c.Latency = n, n*4096, durations(latency.Read, int(n), d, disk)
		return c
	}
	idle := func(c activity.Counters) activity.Counters { c.InFlight = 0; return c }
	away := base("away", "device")
	away.State, away.Away, away.Reason, away.Backend = activity.Waiting, 12*time.Second, "192.0.2.1:4791: no answer", "via+roce"
	broken := base("broken", "nbd")
	broken.State, broken.Reason = activity.Failed, "another disk \x1b[2J"
	limited := base("limited", "nbd")
	limited.Limited = true
	lossy := base("lossy", "via+roce")
	lossy.Network = &activity.Network{Sent: 1000, Retransmitted: 1, RoundTrip: 100 * time.Microsecond}
	full := base("<script>alert(1)</script>", "nbd")
	far := base("far", "nbd")
	far.Backend, far.Remote, far.Network = "via+roce", true, &activity.Network{RoundTrip: 9 * time.Millisecond}
	remote := base("remote", "nbd")
	remote.Backend, remote.Remote = "via+shm", true
	a = activity.State{Time: start, Exports: []activity.Counters{
		away, broken, limited, lossy, full, far, remote, base("disk", "via+shm"), base("client", "nbd"), base("hung", "nbd"), idle(base("idle", "nbd")),
	}}
	limitedNow := busy(limited, 50, 100*time.Millisecond, 1)
	limitedNow.Throttled = 4 * time.Second
	lossyNow := busy(lossy, 500, 2*time.Millisecond, 0.9)
	lossyNow.Network = &activity.Network{Sent: 2000, Retransmitted: 31, RoundTrip: 100 * time.Microsecond}
	fullNow := busy(full, 123_456, 300*time.Microsecond, 0.1)
	fullNow.Waits = 100_000
	writer := base("disk", "via+shm")
	writer.Writes, writer.BytesWritten, writer.Latency = 600, 600<<20, durations(latency.Write, 600, 40*time.Millisecond, 0.97)
	b = activity.State{Time: start.Add(Interval), Exports: []activity.Counters{
		away, broken, limitedNow, lossyNow, fullNow, busy(far, 100, 10*time.Millisecond, 0.9), busy(remote, 100, 10*time.Millisecond, 0.9),
		writer, busy(base("client", "nbd"), 1000, 50*time.Microsecond, 0.2), base("hung", "nbd"), idle(base("idle", "nbd")),
	}}
	a.Sessions = []activity.Session{
		{PID: 4242, ID: "00112233445566778899aabbccddeeff", Face: "via+shm", Peer: "pid 7, uid 0", Identity: "user root, uid 0", Exports: []string{"disk"}, Connections: 2, Opened: start},
		{PID: 4242, ID: "ffeeddccbbaa99887766554433221100", Face: "via+shm", Peer: "pid 8", Identity: "anonymous", Exports: []string{"other", "disk"}, Connections: 1, Opened: start},
		{PID: 4242, ID: "abcdefabcdef", Face: "nbd", Peer: "elsewhere", Exports: []string{"disk"}, Connections: 1, Opened: start},
	}
	b.Sessions = append([]activity.Session(nil), a.Sessions...)
	b.Sessions[1].Writes, b.Sessions[1].BytesWritten, b.Sessions[1].Waits, b.Sessions[1].LastActive = 600, 600<<20, 60, start
	return a, b
}

// model returns a model that has seen states.
func model(t *testing.T, width, height int, states ...activity.State) *Model {
	t.Helper()
	m := NewModel(t.Context(), func(context.Context) (activity.State, error) { return activity.State{}, errors.New("not asked") })
	m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	for _, s := range states {
		m.Update(sampled{began: time.Now(), state: s})
	}
	return m
}

// press presses keys, of which each is a word or one letter.
func press(m *Model, keys ...string) (cmd tea.Cmd) {
	codes := map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "down": tea.KeyDown, "up": tea.KeyUp, "end": tea.KeyEnd, "pgdown": tea.KeyPgDown, "backspace": tea.KeyBackspace}
	for _, k := range keys {
		key := tea.KeyPressMsg{Code: codes[k]}
		if key.Code == 0 {
			r, _ := utf8.DecodeRuneInString(k)
			key.Code, key.Text = r, k
		}
		_, cmd = m.Update(key)
	}
	return cmd
}

// unseen matches colours, and spaces at the end of a line.
var unseen = regexp.MustCompile("(?m)\x1b\\[[0-9;]*m| +$")

// screen is what a person sees.
func screen(m *Model) string {
	return unseen.ReplaceAllString(unseen.ReplaceAllString(m.View().Content, ""), "") + "\n"
}

// TestFrames compares what a person sees with golden frames.
func TestFrames(t *testing.T) {
	a, b := twoStates()
	later := b
	later.Time = start.Add(5 * time.Second) // and nothing happened
	for _, c := range []struct {
		name          string
		width, height int
		states        []activity.State
		keys          []string
		failure       error
	}{
		{name: "nothing", width: 80, height: 8},
		{name: "first80", width: 80, height: 16, states: []activity.State{a}},
		{name: "rates80", width: 80, height: 16, states: []activity.State{a, b}},
		{name: "rates120", width: 120, height: 16, states: []activity.State{a, b}},
		{name: "rates160", width: 160, height: 16, states: []activity.State{a, b}},
		{name: "silent120", width: 120, height: 16, states: []activity.State{a, b, later}},
		{name: "scrolled80", width: 80, height: 9, states: []activity.State{a, b}, keys: []string{"down", "pgdown", "down"}},
		{name: "reversed80", width: 80, height: 16, states: []activity.State{a, b}, keys: []string{"i", "r"}},
		{name: "filter80", width: 80, height: 10, states: []activity.State{a, b}, keys: []string{"/", "R", "o", "x", "backspace"}},
		{name: "filtered80", width: 80, height: 10, states: []activity.State{a, b}, keys: []string{"/", "r", "o", "enter"}},
		{name: "clients80", width: 80, height: 12, states: []activity.State{a, b}, keys: []string{"/", "d", "i", "s", "k", "enter", "enter"}},
		{name: "clients120", width: 120, height: 12, states: []activity.State{a, b}, keys: []string{"/", "d", "i", "s", "k", "enter", "enter"}},
		{name: "reason80", width: 80, height: 12, states: []activity.State{a, b}, keys: []string{"enter"}},
		{name: "gone80", width: 80, height: 16, states: []activity.State{a, b}, failure: errors.New("no viablk process\x1b[2J")},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := model(t, c.width, c.height, c.states...)
			if c.failure != nil {
				m.Update(sampled{began: time.Now(), err: c.failure})
			}
			press(m, c.keys...)
			compareFrame(t, m, c.name, c.width)
		})
	}
}

// compareFrame compares what a person sees, which is no wider than the screen,
// with a golden frame, or writes that anew.
func compareFrame(t *testing.T, m *Model, name string, width int) {
	t.Helper()
	got, golden := screen(m), filepath.Join("testdata", name+".txt")
	for i, line := range strings.Split(got, "\n") {
		if w := lipgloss.Width(line); w > width {
			t.Errorf("line %d takes %d columns of %d: %s", i, w, width, line)
		}
	}
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the frame differs from %s:\n%s", golden, got)
	}
}

// TestMarkStays: a marked row stays marked when the order changes, and until a
// person marks one it is the first.
func TestMarkStays(t *testing.T) {
	a, b := twoStates()
	m := model(t, 80, 24, a)
	press(m, "e")
	if got := m.rows[m.index()].Export; got != "away" {
		t.Errorf("marked %s", got)
	}
	m.Update(sampled{began: time.Now(), state: b})
	press(m, "down", "down", "down")
	marked := m.rows[m.index()].Key
	press(m, "r", "i", "l")
	if got := m.rows[m.index()].Key; got != marked {
		t.Errorf("marked %v, not %v", got, marked)
	}
	press(m, "enter")
	if *m.detail != marked {
		t.Errorf("the clients are those of %v", *m.detail)
	}
	if cmd := press(m, "q"); cmd == nil || cmd() != tea.Quit() {
		t.Error("q does not end the view")
	}
}

// TestProcessStartsAgain: counters that begin again give no rates.
func TestProcessStartsAgain(t *testing.T) {
	a, b := twoStates()
	m := model(t, 120, 24, a, b)
	m.Update(sampled{began: time.Now(), err: errors.New("gone")})
	if !strings.Contains(screen(m), "asking again: gone") || len(m.rows) == 0 {
		t.Error("the last rows are gone, or there is no word of it")
	}
	again := a
	again.Time = start.Add(time.Hour)
	again.Exports = append([]activity.Counters(nil), a.Exports...)
	for i := range again.Exports {
		again.Exports[i].Started = start.Add(time.Minute)
	}
	_, cmd := m.Update(sampled{began: time.Now(), state: again})
	if cmd == nil {
		t.Error("no other state is asked for")
	}
	for i := range m.rows {
		if r := &m.rows[i]; r.Interval != 0 || r.Rate() != 0 {
			t.Errorf("%s has a rate", r.Export)
		}
	}
	if strings.Contains(screen(m), "asking again") {
		t.Error("the failure stays")
	}
}

// TestAnyKeys: no keys, sizes and states panic, and no line is too wide.
func TestAnyKeys(t *testing.T) {
	a, b := twoStates()
	rapid.Check(t, func(r *rapid.T) {
		m := model(t, 80, 24)
		for range rapid.IntRange(0, 30).Draw(r, "steps") {
			switch rapid.IntRange(0, 3).Draw(r, "kind") {
			case 0:
				m.Update(tea.WindowSizeMsg{Width: rapid.IntRange(0, 200).Draw(r, "width"), Height: rapid.IntRange(0, 50).Draw(r, "height")})
			case 1:
				s := []activity.State{a, b, {Time: start}}[rapid.IntRange(0, 2).Draw(r, "state")]
				m.Update(sampled{began: time.Now(), state: s})
			default:
				press(m, rapid.SampledFrom([]string{"enter", "esc", "down", "up", "end", "pgdown", "/", "backspace", "r", "i", "é", "世", "d"}).Draw(r, "key"))
			}
			for _, line := range strings.Split(screen(m), "\n") {
				if w := lipgloss.Width(line); w > max(m.width, 1) {
					r.Fatalf("%d columns of %d: %q", w, m.width, line)
				}
			}
		}
	})
}

// TestDocument: what is not known is absent, not zero.
func TestDocument(t *testing.T) {
	a, b := twoStates()
	var tracker activity.Tracker
	tracker.Add(a)
	rows := tracker.Add(b)
	text, err := json.Marshal(NewDocument(&rows, start, nil))
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Exports []map[string]any `json:"exports"`
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	found := make(map[string]map[string]any)
	for _, x := range d.Exports {
		found[x["export"].(string)] = x
	}
	if x := found["lossy"]; x["retransmitted_per_second"] != 60.0 || x["time_in"] != "network" || x["reads_per_second"] != 1000.0 {
		t.Errorf("got %v", x)
	}
	if x := found["idle"]; x["share_in_backend"] != nil || x["retransmitted_per_second"] != nil || x["time_in"] != "-" {
		t.Errorf("got %v", x)
	}
	if x := NewDocument(&rows, start, errors.New("gone")); x.Error != "gone" || len(x.Exports) != 0 {
		t.Errorf("got %+v", x)
	}
}
