package spin

import (
	"math/rand/v2"
	"testing"
	"time"
)

// world is a loop with a client, in a time of its own.
type world struct {
	gain
	random *rand.Rand
	clock  time.Duration
	served uint64

	idles, polled int // since the last reset
}

const (
	service = 5 * time.Microsecond
	wakeUp  = 15 * time.Microsecond
)

func newWorld(seed uint64) *world {
	w := &world{gain: newGain(400 * time.Microsecond), random: rand.New(rand.NewPCG(seed, 0))}
	w.gain.random = w.random.IntN
	return w
}

// seeds is how many worlds a test has. The race detector, with which tests are
// short, finds nothing in one goroutine.
func seeds(n uint64) uint64 {
	if testing.Short() {
		return n / 20
	}
	return n
}

// idle runs out of work and returns what it takes to notice the next request.
func (w *world) idle() time.Duration {
	w.idles++
	if w.polls(w.clock, w.served) {
		w.polled++
		return 0
	}
	return wakeUp
}

// closed serves a client that sends each request a time after the reply to the
// one before, give or take a half.
func (w *world) closed(requests int, think time.Duration) {
	for range requests {
		w.clock += w.idle() + think/2 + time.Duration(w.random.Int64N(int64(think))) + service
		w.served++
	}
}

// open serves a client that sends requests at a rate.
func (w *world) open(requests int, period time.Duration) {
	next := w.clock
	for range requests {
		next += period/2 + time.Duration(w.random.Int64N(int64(period)))
		if next > w.clock {
			w.clock = next + w.idle()
		}
		w.clock += service
		w.served++
	}
}

// share returns the part of the idle moments with polls, since the last call.
func (w *world) share() float64 {
	s := float64(w.polled) / float64(w.idles)
	w.idles, w.polled = 0, 0
	return s
}

// TestPollsThatPay: a loop polls for a client that waits for replies, but when
// it compares, and only when it compares for one with a rate of its own. It
// notices within 3 s that one has become the other.
func TestPollsThatPay(t *testing.T) {
	for seed := range seeds(200) {
		w := newWorld(seed)
		check := func(what string, least, most float64) {
			if s := w.share(); s < least || s > most {
				t.Errorf("seed %d: %s: polls in %.3f of the idle moments, want %v to %v", seed, what, s, least, most)
			}
		}
		w.closed(100_000, 10*time.Microsecond)
		check("the first client, which waits", 0.9, 1)
		for _, period := range []time.Duration{25 * time.Microsecond, 100 * time.Microsecond, time.Millisecond} {
			w.open(int(3*time.Second/period), period)
			w.share()
			w.open(int(4*time.Second/period), period)
			check("a rate of one in "+period.String(), 0, 0.06)
		}
		w.closed(200_000, 10*time.Microsecond) // 3 s or more
		w.share()
		w.closed(200_000, 10*time.Microsecond)
		check("a client that waits", 0.9, 1)
	}
}

// TestPollsOfBursts: a loop polls for a client that waits for replies and makes
// pauses.
func TestPollsOfBursts(t *testing.T) {
	for seed := range seeds(50) {
		w := newWorld(seed)
		for range 2000 {
			w.closed(50, 10*time.Microsecond)
			w.clock += 20 * time.Millisecond
		}
		if s := w.share(); s < 0.9 {
			t.Errorf("seed %d: polls in %.3f of the idle moments", seed, s)
		}
	}
}

// TestComparisonsOfTwoLoops: two loops serve each request, the first one twice,
// and each compares. Now and then all of it takes longer for a while, as on a
// machine with other work. Both go on polling.
func TestComparisonsOfTwoLoops(t *testing.T) {
	sum, n := 0.0, seeds(100)
	for seed := range n {
		a, b := newWorld(seed), newWorld(seed+n)
		slow := time.Duration(0) // until then
		for range 200_000 {
			if a.random.IntN(2000) == 0 {
				slow = a.clock + time.Duration(a.random.Int64N(int64(40*time.Millisecond)))
			}
			cost := a.idle() + 5*time.Microsecond + time.Duration(a.random.Int64N(int64(10*time.Microsecond)))
			b.clock = a.clock + cost
			cost += b.idle() + service
			a.clock += cost
			cost = a.idle() + service
			if a.clock < slow {
				cost += 15 * time.Microsecond
			}
			a.clock += cost
			a.served++
			b.served++
		}
		sum += a.share() + b.share()
	}
	if s := sum / float64(2*n); s < 0.98 {
		t.Errorf("polls in %.4f of the idle moments", s)
	}
}

// TestManyAtOnceAreNoSample: requests that come many at a time say nothing
// about polls, and change nothing.
func TestManyAtOnceAreNoSample(t *testing.T) {
	w := newWorld(1)
	for range 100_000 {
		w.clock += w.idle() + 100*time.Microsecond
		w.served += chunkRequests + 1
	}
	if s := w.share(); s != 1 {
		t.Errorf("polls in %.3f of the idle moments", s)
	}
}

// try makes a comparison of three samples, in which a request takes so long.
func try(g *gain, before, opposite, after float64) {
	for g.stage == ordinary {
		g.endSample(before)
	}
	g.endSample(opposite)
	g.endSample(after)
}

// TestVerdicts gives comparisons what they measured.
func TestVerdicts(t *testing.T) {
	type samples [3]float64 // before, with the opposite, after
	pay, disturbed, useless := samples{10, 20, 10}, samples{20, 20, 10}, samples{10, 10.2, 10.1}
	help, fail := samples{20, 10, 20}, samples{20, 19, 20} // polls, after a verdict that they are useless
	for _, c := range []struct {
		name        string
		comparisons []samples
		useless     bool
		interval    int
	}{
		{"polls pay", []samples{pay}, false, 4 * shortestInterval},
		{"they still do", []samples{pay, pay, pay, pay}, false, longestInterval},
		{"the sample before was disturbed", []samples{disturbed, disturbed}, false, 16 * shortestInterval},
		{"a doubt", []samples{pay, pay, useless}, false, shortestInterval},
		{"a doubt, and another one", []samples{useless, useless}, true, shortestInterval},
		{"two doubts, but not in a row", []samples{useless, pay, useless}, false, shortestInterval},
		{"polls are useless", []samples{useless, useless, fail, fail}, true, 16 * shortestInterval},
		{"they are not any more", []samples{useless, useless, fail, help}, false, shortestInterval},
		{"one neighbour was disturbed", []samples{useless, useless, {20, 10, 11}, {11, 10, 20}}, true, 16 * shortestInterval},
		{"a new doubt", []samples{useless, useless, help, useless}, false, shortestInterval},
		{"and another one", []samples{useless, useless, help, useless, useless}, true, shortestInterval},
	} {
		g := newGain(time.Millisecond)
		g.random = func(n int) int { return n - 1 }
		for i, w := range c.comparisons {
			if try(&g, w[0], w[1], w[2]); g.next != 2*g.interval-1 {
				t.Errorf("%s: %d samples until the next comparison, at an interval of %d", c.name, g.next, g.interval)
			}
			if i == 0 && g.stage != ordinary {
				t.Errorf("%s: stage %d after a comparison", c.name, g.stage)
			}
		}
		if g.useless != c.useless || g.interval != c.interval {
			t.Errorf("%s: useless %v with an interval of %d, want %v and %d", c.name, g.useless, g.interval, c.useless, c.interval)
		}
	}
}

// TestTimeOfRequests: a sample has the whole time of its requests, idle moments
// within one included, but for pauses.
func TestTimeOfRequests(t *testing.T) {
	g := newGain(50 * time.Microsecond)
	for _, c := range []struct {
		at       time.Duration // us
		served   uint64
		time     time.Duration
		requests uint64
	}{
		{0, 0, 0, 0},
		{10, 0, 0, 0},
		{30, 1, 30, 1},
		{40, 1, 30, 1},
		{50, 2, 50, 2},
		{1050, 3, 100, 3}, // a pause
		{1200, 6, 250, 6}, // three at once
		{1300, 7 + chunkRequests, 250, 6},
		{1310, 8 + chunkRequests, 260, 7},
	} {
		g.polls(c.at*time.Microsecond, c.served)
		if g.time != c.time*time.Microsecond || g.requests != c.requests {
			t.Errorf("at %d us: %v of %d requests, want %d us of %d", c.at, g.time, g.requests, c.time, c.requests)
		}
	}
	g = newGain(time.Millisecond)
	g.stage = after
	for i := range uint64(1000) {
		g.polls(time.Duration(i)*10*time.Microsecond, i)
	}
	if g.stage != after {
		t.Error("a sample ended before its time")
	}
	if g.polls(10*time.Millisecond, 1000); g.stage != ordinary || g.requests != 0 || g.time != 0 {
		t.Errorf("the sample did not end: %d requests, %v", g.requests, g.time)
	}
}

// A spinner does what its gain says.
func TestSpinnerFollowsItsGain(t *testing.T) {
	s := alone(time.Hour)
	for _, useless := range []bool{true, false} {
		s.gain.useless = useless
		if _, started := spinOnce(&s, 1); started == useless {
			t.Errorf("spins: %v, useless: %v", started, useless)
		}
	}
	wantQuiet(t)
}
