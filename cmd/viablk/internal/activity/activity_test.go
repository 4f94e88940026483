package activity

import (
	"testing"
	"time"

	"github.com/viablk/viablk/internal/latency"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// counters are those of an export whose requests took a time, of which the
// disk had a part.
func counters(face string, reads uint64, each time.Duration, disk float64) Counters {
	c := Counters{Key: Key{PID: 1, Export: "d", Face: face}, Started: start, State: Connected, Reads: reads, BytesRead: reads * 4096}
	var set latency.Set
	r := set.Acquire()
	for range reads {
		r.Add(latency.Request, latency.Read, each)
		r.Add(latency.Backend, latency.Read, time.Duration(disk*float64(each)))
	}
	set.Release(r)
	c.Latency = set.Read()
	return c
}

// between returns the rows of two states, a second apart.
func between(a, b []Counters) []Row {
	var t Tracker
	t.Add(State{Time: start, Exports: a})
	return t.Add(State{Time: start.Add(time.Second), Exports: b}).Exports
}

// TestPlaces: where the time of requests goes.
func TestPlaces(t *testing.T) {
	with := func(c Counters, change func(*Counters)) Counters { change(&c); return c }
	for _, c := range []struct {
		name        string
		before, now Counters
		want        Place
		share       float64
	}{
		{"disk", counters("nbd", 10, time.Millisecond, 1), counters("nbd", 30, time.Millisecond, 0.75), InBackend, -2},
		{"idle", counters("nbd", 10, time.Millisecond, 1), counters("nbd", 10, time.Millisecond, 1), Nowhere, -1},
		{"server", Counters{Key: Key{1, "d", "nbd"}, Started: start}, counters("nbd", 10, time.Millisecond, 0.25), InTransit, -1},
		{
			"queue",
			Counters{Key: Key{1, "d", "nbd"}, Started: start},
			with(counters("nbd", 10, time.Millisecond, 0.25), func(c *Counters) { c.Waits = 8 }), InQueue, 0.8,
		},
		{
			"target",
			Counters{Key: Key{1, "d", "nbd"}, Started: start},
			with(counters("nbd", 10, time.Millisecond, 0.75), func(c *Counters) { c.Remote = true }), InTarget, 0.75,
		},
		{
			"far target",
			Counters{Key: Key{1, "d", "nbd"}, Started: start, Network: &Network{}},
			with(counters("nbd", 10, time.Millisecond, 0.75), func(c *Counters) {
				c.Remote, c.Network = true, &Network{Sent: 20, RoundTrip: 600 * time.Microsecond}
			}), InNetwork, -1,
		},
		{
			"loss",
			Counters{Key: Key{1, "d", "nbd"}, Started: start, Network: &Network{Sent: 900, Retransmitted: 5}},
			with(counters("nbd", 10, time.Millisecond, 1), func(c *Counters) { c.Network = &Network{Sent: 1900, Retransmitted: 15} }), InNetwork, -1,
		},
		{
			"one packet lost",
			Counters{Key: Key{1, "d", "nbd"}, Started: start, Network: &Network{Sent: 900, Retransmitted: 5}},
			with(counters("nbd", 10, time.Millisecond, 1), func(c *Counters) { c.Network = &Network{Sent: 1900, Retransmitted: 14} }), InBackend, 1,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			rows := between([]Counters{c.before}, []Counters{c.now})
			where, share := rows[0].Where()
			if where != c.want || c.share >= -1 && share != c.share {
				t.Errorf("got %s %v, want %s %v", where, share, c.want, c.share)
			}
		})
	}
}

// TestLimitsOfFaces: limits are those of an export over all faces, and so is
// the time that they are compared with.
func TestLimitsOfFaces(t *testing.T) {
	var before, now []Counters
	for _, face := range []string{"nbd", "via+shm"} {
		c := counters(face, 10, 100*time.Millisecond, 1)
		c.Limited, c.Throttled = true, 1200*time.Millisecond
		before, now = append(before, Counters{Key: c.Key, Started: start, Limited: true}), append(now, c)
	}
	for _, r := range between(before, now) {
		if where, share := r.Where(); where != InLimits || share < 0.59 || share > 0.61 {
			t.Errorf("%s: got %s %v", r.Face, where, share)
		}
	}
}

// TestRates: counters of the same process give rates, those of another start
// none, and a sum over peers that falls is no flood.
func TestRates(t *testing.T) {
	a, b := counters("nbd", 100, time.Millisecond, 1), counters("nbd", 350, time.Millisecond, 1)
	a.Network, b.Network = &Network{Retransmitted: 100}, &Network{Retransmitted: 7}
	r := between([]Counters{a}, []Counters{b})[0]
	if r.ReadRate != 250 || r.ReadBytes != 250*4096 || r.Retransmit != 0 || r.Operations[latency.Read].Rate != 250 {
		t.Errorf("got %+v", r)
	}
	if p := r.P99; p < 768*time.Microsecond || p > 1280*time.Microsecond {
		t.Errorf("p99 is %v", p)
	}
	b.Started = start.Add(time.Millisecond)
	if r := between([]Counters{a}, []Counters{b})[0]; r.Interval != 0 || r.Rate() != 0 || r.InBackend != -1 {
		t.Errorf("another process: %+v", r)
	}
}

// TestSilence: requests that are not answered are noticed, and how long, until
// one is answered or none is left.
func TestSilence(t *testing.T) {
	var tracker Tracker
	add := func(second int, reads uint64, inFlight int) Row {
		c := counters("nbd", reads, time.Millisecond, 1)
		c.InFlight = inFlight
		return tracker.Add(State{Time: start.Add(time.Duration(second) * time.Second), Exports: []Counters{c}}).Exports[0]
	}
	add(0, 5, 1)
	for _, c := range []struct {
		second   int
		reads    uint64
		inFlight int
		silent   int
		stuck    bool
	}{
		{1, 5, 1, 1, false},
		{2, 5, 3, 2, true},
		{3, 5, 3, 3, true},
		{4, 6, 3, 0, false},
		{5, 6, 1, 1, false},
		{6, 6, 0, 0, false},
		{7, 6, 1, 0, false},
		{8, 6, 1, 1, false},
	} {
		r := add(c.second, c.reads, c.inFlight)
		if r.Silent != time.Duration(c.silent)*time.Second || r.Troubled() != c.stuck {
			t.Errorf("second %d: silent for %v, troubled %v", c.second, r.Silent, r.Troubled())
		}
	}
}

// TestClients: clients belong to an export by its way in.
func TestClients(t *testing.T) {
	var tracker Tracker
	sessions := []Session{
		{PID: 1, ID: "a", Face: "nbd", Exports: []string{"d"}},
		{PID: 1, ID: "b", Face: "via+shm", Exports: []string{"x", "d"}},
		{PID: 2, ID: "a", Face: "nbd", Exports: []string{"d"}},
	}
	tracker.Add(State{Time: start, Sessions: sessions})
	later := append([]Session(nil), sessions...)
	later[0].Reads, later[0].Waits = 20, 5
	rows := tracker.Add(State{Time: start.Add(2 * time.Second), Sessions: later})
	of := rows.Of(Key{1, "d", "nbd"})
	if len(of) != 1 || of[0].ID != "a" || of[0].ReadRate != 10 || of[0].Waited != 0.25 {
		t.Errorf("got %+v", of)
	}
	if of := rows.Of(Key{1, "d", "via+shm"}); len(of) != 1 || of[0].ID != "b" || of[0].Waited != -1 {
		t.Errorf("got %+v", of)
	}
}
