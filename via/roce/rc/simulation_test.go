package rc_test

import (
	"flag"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

var (
	seedFlag     = flag.Uint64("rc.seed", 0, "replay this seed of the simulation alone")
	seedsFlag    = flag.Uint64("rc.seeds", defaultSeeds, "seeds of the simulation for each fate")
	messagesFlag = flag.Int("rc.messages", 1500, "works that each end posts for each seed")
	leastFlag    = flag.Int64("rc.least", defaultLeast, "works of a simulation of all seeds at least")
)

// fates are what the links of the simulation do.
var fates = map[string]fate{
	"clean":     {},
	"loss 0.1%": {drop: 0.001},
	"loss 1%":   {drop: 0.01},
	"loss 5%":   {drop: 0.05},
	"loss 20%":  {drop: 0.2},
	"duplicate": {duplicate: 0.05},
	"reorder":   {reorder: 0.05},
	"corrupt":   {corrupt: 0.02},
	"delay":     {delay: 0.002},
	"answers":   {dropAnswers: 0.1},
	"outage":    {outageFrom: time.Second + 500*time.Microsecond, outageTo: 3 * time.Second},
	"receives":  {late: 20 * time.Millisecond, drop: 0.005},
	"all":       {drop: 0.02, duplicate: 0.02, reorder: 0.02, corrupt: 0.01, delay: 0.0005, late: 500 * time.Microsecond},
}

// On a reliable connection every work completes in order, at its address,
// exactly once; on an unreliable one at most once, and entire.
func TestSimulation(t *testing.T) {
	var works atomic.Int64
	t.Cleanup(func() { // when all seeds have ended
		t.Logf("%d works", works.Load())
		if *seedFlag == 0 && !t.Failed() && works.Load() < *leastFlag {
			t.Errorf("%d works are fewer than %d", works.Load(), *leastFlag)
		}
	})
	for name, f := range fates {
		for _, reliable := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, reliable %v", name, reliable), func(t *testing.T) {
				t.Parallel()
				first, last := uint64(1), *seedsFlag
				if *seedFlag != 0 {
					first, last = *seedFlag, *seedFlag
				}
				for seed := first; seed <= last; seed++ {
					if err := simulate(seed, f, reliable, &works); err != nil {
						t.Fatalf("-rc.seed %d: %v", seed, err)
					}
				}
			})
		}
	}
}

// simulate runs one connection to the end of its messages, and counts the
// works.
func simulate(seed uint64, f fate, reliable bool, works *atomic.Int64) error {
	w := newWorld(seed)
	most := []int{64, 1000, 5000, 40000}[w.rng.IntN(4)]
	depth := 1 + w.rng.IntN(24)
	cs, err := w.connect(seed, f, reliable, most, depth)
	if err != nil {
		return err
	}
	messages := *messagesFlag
	if most > 10000 {
		messages /= 5
	}
	w.afterEmit = func() {
		for _, c := range cs {
			c.poll()
			c.postLate(w.now)
		}
		for _, c := range cs {
			if !reliable && len(w.flying) == 0 {
				c.expected = c.expected[:0] // lost at the end: no later packet reveals the gap
			}
			for n := w.rng.IntN(8); n > 0 && c.posted < messages && c.post(); n-- {
			}
		}
	}
	for ended := false; !ended; {
		if !w.step() {
			w.now += time.Microsecond
			ended = cs[0].polled == messages && cs[1].polled == messages
		}
		for _, c := range cs {
			if c.failure != nil {
				return fmt.Errorf("at %v: %w (cause %v, %+v)", w.now, c.failure, c.qp.Cause(), c.qp.Counters())
			}
		}
		if w.steps > 1e7 {
			return fmt.Errorf("at %v: no end: %d and %d of %d works", w.now, cs[0].polled, cs[1].polled, messages)
		}
	}
	n := cs[0].qp.Counters().RNRsSent + cs[1].qp.Counters().RNRsSent
	if n > 0 && f.late == 0 || n == 0 && reliable && f == fates["receives"] {
		return fmt.Errorf("%d RNR NAKs, when receives come late by %v at most", n, f.late)
	}
	for _, c := range cs {
		c.poll()
		c.validateFences()
		if reliable && len(c.expected) != 0 {
			c.fail("%d messages never arrived", len(c.expected))
		}
		if c.qp.Cause() != rc.OK {
			c.fail("broken: %v", c.qp.Cause())
		}
		if (reliable || f == fate{}) && c.got != c.peer.sent {
			c.fail("%d of %d messages arrived", c.got, c.peer.sent)
		}
		if c.failure != nil {
			return c.failure
		}
	}
	works.Add(int64(cs[0].polled + cs[1].polled))
	return nil
}

// connect makes two ends with consumers, with PSNs that soon wrap.
func (w *world) connect(seed uint64, f fate, reliable bool, most, depth int) ([2]*consumer, error) {
	var cs [2]*consumer
	cfg := rc.Config{
		Unreliable: !reliable, PeerQP: 5, MTU: wire.MTU(1 + w.rng.IntN(5)),
		PSN: 0xfffff0, PeerPSN: wire.PSN(w.rng.Uint32N(1 << 24)),
		SendDepth: depth, ReceiveDepth: 2 * depth,
		AllowWrite: true, AllowRead: true, Reads: 1 + w.rng.IntN(8), PeerReads: 8,
		Window: 8 + w.rng.IntN(120), Timeout: 100 * time.Millisecond, Retries: 50,
		WaitForReceive: f.late > 0, RNRDelay: 200 * time.Microsecond, RNRRetries: 7,
	}
	cfg.Room = 1 + w.rng.IntN(cfg.Window)
	switch w.rng.IntN(3) {
	case 0:
		cfg.Stash, cfg.Selective = rc.NewStash(1+w.rng.IntN(200)), true
	case 1:
		cfg.Stash = rc.NewStash(100) // the peer retransmits everything nevertheless
	}
	for i, p := range w.ends {
		c := newConsumer([]string{"a", "bb"}[i], seed, reliable, most, depth)
		qp, err := rc.New(cfg, c)
		if err != nil {
			return cs, err
		}
		p.qp, c.qp, cs[i] = qp, qp, c
		c.late = f.late
		p.fate, p.slow = f, w.rng.IntN(2) == 0
		cfg.PSN, cfg.PeerPSN = cfg.PeerPSN, cfg.PSN
	}
	cs[0].peer, cs[1].peer = cs[1], cs[0]
	for _, c := range cs {
		c.start()
	}
	return cs, nil
}
