package spin

import (
	"math/rand/v2"
	"time"
)

// gain measures whether busy-polling pays, by the time from a request to the
// next one with and without polls. A client that waits for each reply before it
// sends the next request sends it sooner if a poll caught the one before. A
// client that sends at a rate of its own does not, and all that polls would do
// is keep a processor busy.
//
// It measures in samples of requests. Now and then a sample does the opposite
// of the verdict, and its time is compared with those of the samples before and
// after it; the more often that confirms the verdict, the less often. The
// intervals are random, as another loop that serves the same requests compares
// too: what it does disturbs one of three samples. At first a loop polls.
type gain struct {
	limit  time.Duration   // that counts for a request at most, and for a pause of the client
	random func(n int) int // less than n

	useless  bool // the verdict: polls do not pay
	stage    stage
	before   float64 // ns of a request in the sample before
	other    float64 // and in the one that did the opposite
	doubts   int     // comparisons in a row that contradict, before the verdict does too
	interval int     // samples between comparisons
	next     int     // samples until then

	now      time.Duration // of the latest idle moment after a request
	served   uint64        // requests until then
	time     time.Duration // of the present sample
	requests uint64        // in it
}

// stage is what the present sample is for.
type stage uint8

const (
	ordinary stage = iota // it may become the one before
	opposite
	after
)

const (
	sampleRequests   = 128                   // the least of a sample
	sampleTime       = 10 * time.Millisecond // its least time
	chunkRequests    = sampleRequests / 2    // of more at once none waited for a reply
	shortestInterval = 1                     // samples
	longestInterval  = 64

	// With polls a request takes less than this part of its time without them:
	// to go on polling, and to begin again.
	goOn  = 0.95
	begin = 0.9

	// So many comparisons in a row have to find that polls do not pay: one may
	// have been disturbed, and without the polls of one end those of the other
	// bring less.
	enoughDoubts = 2
)

// newGain returns a gain that counts at most limit for a request.
func newGain(limit time.Duration) gain {
	return gain{limit: limit, interval: shortestInterval, random: rand.IntN}
}

// polls notes that the loop has run out of work, at a time and after so many
// requests since its beginning, and reports whether it is to poll.
func (g *gain) polls(now time.Duration, served uint64) bool {
	if requests := served - g.served; requests > 0 {
		passed := now - g.now
		g.now, g.served = now, served
		if requests <= chunkRequests {
			g.time += min(passed, time.Duration(requests)*g.limit)
			g.requests += requests
		}
		if g.requests >= sampleRequests && g.time >= sampleTime {
			g.endSample(float64(g.time) / float64(g.requests))
			g.time, g.requests = 0, 0
		}
	}
	return g.useless == (g.stage == opposite)
}

// endSample ends a sample, in which a request took so many ns.
func (g *gain) endSample(each float64) {
	switch g.stage {
	case ordinary:
		g.before = each
		if g.next--; g.next < 0 {
			g.stage = opposite
		}
		return
	case opposite:
		g.other, g.stage = each, after
		return
	}
	g.stage = ordinary
	usual := min(g.before, each)
	pays := usual < goOn*g.other
	if g.useless {
		pays = g.other < begin*usual
	}
	g.decide(pays)
	g.next = g.interval + g.random(g.interval)
}

// decide takes what a comparison found. If that contradicts the verdict, the
// next one comes soon.
func (g *gain) decide(pays bool) {
	if pays != g.useless {
		g.doubts, g.interval = 0, min(4*g.interval, longestInterval)
		return
	}
	g.interval = shortestInterval
	if g.doubts++; g.useless || g.doubts == enoughDoubts {
		g.useless, g.doubts = !g.useless, 0
	}
}
