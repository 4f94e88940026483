package top

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/cmd/viablk/internal/activity"
)

// pathStates are half a second of a disk over two paths, of which one was lost,
// or came back, and one of a disk over a path of each kind.
func pathStates(up bool) (a, b activity.State) {
	at := func(t time.Time, n uint64) activity.State {
		disk := activity.Counters{
			Key: activity.Key{PID: 4242, Export: "disk", Face: "device"}, Started: start, State: activity.Connected,
			Backend: "via+roce", Remote: true, Connections: 1, Reads: 4 * n,
			Paths: []activity.HostPath{
				{Host: "192.0.2.1", State: "down", Reason: "192.0.2.1:4791: no answer \x1b[2J", Queues: 0, Requests: 1000 + n, Losses: 3, LastLoss: start.Add(-12 * time.Second)},
				{Host: "2001:db8:1234:5678:9abc:def0:1234:5678%eth0", State: "up", Queues: 1, Requests: 50 + 3*n},
			},
		}
		if up {
			disk.Paths[0].State = activity.PathUp
		}
		return activity.State{Time: t, Exports: []activity.Counters{disk}}
	}
	return at(start, 0), at(start.Add(Interval), 250)
}

// TestPathFrames compares what a person sees of paths with golden frames.
func TestPathFrames(t *testing.T) {
	for _, c := range []struct {
		name          string
		up            bool
		width, height int
		keys          []string
	}{
		{"degraded80", false, 80, 8, nil},
		{"paths80", false, 80, 14, []string{"enter"}},
		{"paths120", false, 120, 14, []string{"enter"}},
		{"pathsup80", true, 80, 8, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := pathStates(c.up)
			m := model(t, c.width, c.height, a, b)
			press(m, c.keys...)
			compareFrame(t, m, c.name, c.width)
		})
	}
}

// TestPathDocument: programs get each path, and no time of a loss that was not.
func TestPathDocument(t *testing.T) {
	a, b := pathStates(false)
	var tracker activity.Tracker
	tracker.Add(a)
	rows := tracker.Add(b)
	text, err := json.Marshal(NewDocument(&rows, start, nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"paths":[{"host":"192.0.2.1","state":"down","reason":"192.0.2.1:4791: no answer \u001b[2J","connections":0,"share_of_requests":0.25,"path_losses":3,"last_loss":"2026-01-02T03:03:53Z"}`,
		`"state":"up","connections":1,"share_of_requests":0.75,"path_losses":0}]`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
}
