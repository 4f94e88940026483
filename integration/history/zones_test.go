package history

import (
	"errors"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
)

// randomHistory is what clients of a block did and saw, and when lost writes
// could no longer take effect. The block is a good one if bugs is 0; else now
// and then a read sees an older value, a write is applied twice, or one without
// effect is answered.
func randomHistory(r *rand.Rand, bugs int) (all []Operation, cutoffs []int64) {
	type pending struct {
		o      Operation
		effect int64 // when it happens
		again  int64 // when it happens once more, or 0
	}
	bug := func() bool { return bugs > 0 && r.IntN(bugs) == 0 }
	var work []pending
	span := int64(10 + r.IntN(60))
	clients := 1 + r.IntN(5)
	for client := range clients {
		for at, n := r.Int64N(span/2)+1, 0; at < span && n < 6; n++ {
			end := at + r.Int64N(12)
			p := pending{o: Operation{Client: client, Write: r.IntN(2) == 0, Call: at, Return: end}}
			p.effect = at + r.Int64N(end-at+1)
			if p.o.Write {
				p.o.Value = uint64(client)<<32 | uint64(n+1)
				if p.o.Lost = r.IntN(5) == 0; p.o.Lost {
					p.effect = at + r.Int64N(span) // or never
				}
				if bug() {
					p.again = end + r.Int64N(span/2)
				}
				if bug() {
					p.effect = 2 * span
				}
			}
			work = append(work, p)
			at = end + r.Int64N(4)
		}
	}
	if r.IntN(2) == 0 {
		cutoff := 1 + r.Int64N(span)
		cutoffs = append(cutoffs, cutoff)
		for i := range work {
			o := &work[i].o
			// Its own effect may be behind the cutoff, which is a bug.
			if o.Lost && o.Return <= cutoff && (work[i].effect <= cutoff || bug()) {
				o.Until = cutoff
			} else if o.Lost && o.Return <= cutoff {
				work[i].effect, o.Until = 2*span, cutoff
			}
		}
	}
	type event struct {
		at int64
		i  int
	}
	var events []event
	for i, p := range work {
		events = append(events, event{p.effect, i})
		if p.again != 0 {
			events = append(events, event{p.again, i})
		}
	}
	r.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	slices.SortStableFunc(events, func(a, b event) int { return int(a.at - b.at) })
	values := []uint64{0}
	for _, e := range events {
		o := &work[e.i].o
		switch {
		case o.Write:
			values = append(values, o.Value)
		case bug():
			o.Value = values[r.IntN(len(values))]
		case bug():
			o.Value = 1 << 40
		default:
			o.Value = values[len(values)-1]
		}
	}
	for _, p := range work {
		all = append(all, p.o)
	}
	return all, cutoffs
}

// online checks a history as it happens, and returns whether it is
// linearizable. Anomalies must prove themselves.
func online(t *testing.T, r *rand.Rand, all []Operation, cutoffs []int64) bool {
	t.Helper()
	z := newZones()
	z.keep = r.IntN(10)
	good := true
	check := func(found []anomaly) {
		t.Helper()
		for _, a := range found {
			good = false
			var proof []Operation
			for _, c := range a.clusters {
				proof = append(proof, c.proof()...)
			}
			if err := of(proof...).Check(checkLimit); err == nil {
				t.Errorf("%s: %v is linearizable", a.reason, proof)
			}
		}
	}
	left := slices.Clone(all)
	r.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
	slices.SortStableFunc(left, func(a, b Operation) int { return int(a.Return - b.Return) })
	for len(left) > 0 {
		o := left[0]
		for len(cutoffs) > 0 && cutoffs[0] < o.Return {
			z.expireLost(cutoffs[0])
			cutoffs = cutoffs[1:]
		}
		o.Until = 0 // the cutoff says it
		check(z.add(o))
		left = left[1:]
		if r.IntN(3) == 0 {
			from := o.Return
			for _, o := range left {
				from = min(from, o.Call)
			}
			check(z.check(from))
		}
	}
	for _, f := range cutoffs {
		z.expireLost(f)
	}
	check(z.check(never))
	if n := len(z.active); n > len(all)+1 {
		t.Errorf("%d clusters of %d operations are active", n, len(all))
	}
	return good
}

// The checks of blocks as they come and of histories agree.
func TestZonesAgreeWithPorcupine(t *testing.T) {
	const histories = 20_000
	verdicts := make(map[bool]int)
	for seed := range uint64(histories) {
		r := rand.New(rand.NewPCG(seed, 1))
		bugs := []int{0, 0, 40, 12, 4}[seed%5]
		all, cutoffs := randomHistory(r, bugs)
		want := of(all...).Check(checkLimit) == nil
		if bugs == 0 && !want {
			t.Fatalf("seed %d: the history of a good block is wrong: %v", seed, all)
		}
		if got := online(t, r, all, cutoffs); got != want {
			t.Fatalf("seed %d: linearizable as it comes is %v, in the end %v:\n%+v", seed, got, want, all)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		verdicts[want]++
	}
	t.Logf("%d histories are linearizable, %d are not", verdicts[true], verdicts[false])
	if verdicts[true] < histories/3 || verdicts[false] < histories/10 {
		t.Error("one of both is too rare")
	}
}

// A load of a good disk has no anomaly, in bounded memory.
func TestMonitorOfGoodDisk(t *testing.T) {
	m, h := newMemory(load.Blocks), NewMonitor()
	long := load
	long.Requests, long.Hot = 4_000, 2
	if err := long.Run(h, 0, m, m); err != nil {
		t.Fatal(err)
	}
	m.fail = errors.New("gone") // and each write is lost, with its effect
	if err := long.Run(h, 8, m); !errors.Is(err, m.fail) {
		t.Fatalf("got %v", err)
	}
	m.fail = nil
	h.ExpireLost()
	if err := long.Run(h, 16, m); err != nil {
		t.Fatal(err)
	}
	for _, a := range h.Finish() {
		t.Error(a)
	}
	c := h.Counts()
	if c.Operations < 16*long.Requests || c.Lost < 4 || c.Anomalies != 0 {
		t.Errorf("%+v", c)
	}
	for block, z := range h.blocks {
		if n := len(z.clusters); n > 3*kept {
			t.Errorf("block %d: %d clusters of %d operations are kept", block, n, c.Operations)
		}
	}
}

// A monitor finds stale reads, and each one that it reports is proven by the
// few operations that it names.
func TestMonitorOfStaleDisk(t *testing.T) {
	m, h := newMemory(load.Blocks), NewMonitor()
	m.lazy = 1000
	long := load
	long.Requests = 1_500
	if err := long.Run(h, 0, m, m); err != nil {
		t.Fatal(err)
	}
	found := h.Finish()
	if len(found) < 3 {
		t.Fatalf("%d anomalies", len(found))
	}
	for _, a := range found {
		path := filepath.Join(t.TempDir(), "anomaly.json")
		if err := a.History().Save(path); err != nil {
			t.Fatal(err)
		}
		again, err := Replay(path)
		if err != nil {
			t.Fatal(err)
		}
		var v *Violation
		if err := again.Check(checkLimit); !errors.As(err, &v) || v.Block != a.Block || v.Operations > 6 {
			t.Errorf("%v: the replay says %v", a, err)
		}
	}
	t.Logf("%d anomalies; the first: %v", h.Counts().Anomalies, found[0])
}

// A write of a client that is gone must not take effect behind the cutoff.
func TestMonitorExpiresLostWrites(t *testing.T) {
	for _, expired := range []bool{false, true} {
		m := NewMonitor()
		m.End(0, lost(write(0, 1, m.Begin(0), m.Now())))
		if expired {
			m.ExpireLost()
		}
		m.End(1, write(1, 2, m.Begin(1), m.Now()))
		m.End(1, read(1, 2, m.Begin(1), m.Now()))
		m.End(1, read(1, 1, m.Begin(1), m.Now()))
		if found := m.Finish(); len(found) > 0 != expired {
			t.Errorf("expired is %v: %v", expired, found)
		}
	}
}

func BenchmarkMonitor(b *testing.B) {
	m, h := newMemory(load.Blocks), NewMonitor()
	long := load
	long.Longest, long.Requests = 1, b.N/load.Clients+1
	b.ResetTimer()
	if err := long.Run(h, 0, m); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	if found := h.Finish(); len(found) > 0 {
		b.Error(found[0])
	}
}
