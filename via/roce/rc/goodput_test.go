package rc_test

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// bulk is a transfer in virtual time.
type bulk struct {
	op     rc.Op
	size   int           // bytes of a work
	rate   float64       // of the link, bytes per second
	delay  time.Duration // one way
	queue  time.Duration // that the link holds; 0 is endless
	window int
	keep   bool // both ends keep packets behind a gap
	mtu    wire.MTU
	warm   int // works before, at 10 Gb/s
	line   bool
	depth  int // works at a time; 0: 16
}

// newLine returns the line of an end, or nil.
func (x bulk) newLine() *rc.Line {
	if !x.line {
		return nil
	}
	return rc.NewLine()
}

// run moves n works and returns the goodput, bytes per second of virtual time.
func (x bulk) run(seed uint64, f fate, n int) (float64, rc.Counters, error) {
	depth := cmp.Or(x.depth, 16)
	w := newWorld(seed)
	var cs [2]*consumer
	var stash *rc.Stash
	if x.keep {
		stash = rc.NewStash(2 * x.window)
	}
	for i, p := range w.ends {
		c := newConsumer([]string{"a", "bb"}[i], seed, true, x.size, depth)
		qp, err := rc.New(rc.Config{
			PeerQP: 5, MTU: x.mtu, SendDepth: depth, ReceiveDepth: 2 * depth,
			AllowWrite: true, AllowRead: true, Reads: 8, PeerReads: 8, Window: x.window, Retries: 7,
			Stash: stash, Selective: x.keep, Line: x.newLine(),
		}, c)
		if err != nil {
			return 0, rc.Counters{}, err
		}
		p.qp, c.qp, cs[i] = qp, qp, c
		p.fate, p.delay, p.queue = f, x.delay, x.queue
	}
	cs[0].peer, cs[1].peer = cs[1], cs[0]
	posted, done, target := 0, 0, 0
	works := make([]rc.Work, depth)
	w.afterEmit = func() {
		for c := cs[0].qp.PollSend(); c != nil; c = cs[0].qp.PollSend() {
			if c.Status != rc.OK {
				cs[0].fail("work ended with %v", c.Status)
			}
			done++
		}
		for ; posted < target && posted-done < depth; posted++ {
			works[posted%depth] = rc.Work{Op: x.op, Key: remoteKey, Addr: remoteAddr + fence, Segments: [][]byte{cs[0].works[0].data}}
			cs[0].qp.Post(&works[posted%depth])
		}
	}
	move := func(n int, rate float64) time.Duration {
		start := w.now
		for _, p := range w.ends {
			p.rate = rate
		}
		for target += n; done < target && cs[0].failure == nil; {
			w.step()
		}
		return w.now - start
	}
	move(x.warm, 1.25e9)
	elapsed := move(n, x.rate)
	return float64(n*x.size) / elapsed.Seconds(), cs[0].qp.Counters(), cs[0].failure
}

// With 1 % of random loss six tenths of the goodput remain, with 5 % the
// transfer proceeds: the window must not treat every loss as congestion. A peer
// that drops the packets behind a gap costs more, as Go-back-N does, except for
// Reads.
func TestGoodputUnderLoss(t *testing.T) {
	lan := bulk{size: 64 << 10, rate: 1.25e9, delay: 20 * time.Microsecond, window: 128, mtu: wire.MTU4096}
	far, fast, narrow := lan, lan, lan
	far.delay = 100 * time.Microsecond
	fast.rate = 5e9
	narrow.queue = 300 * time.Microsecond
	links := map[string]bulk{"10 Gb/s 40 µs short queue": narrow}
	if allLinks {
		links["10 Gb/s 40 µs"], links["10 Gb/s 200 µs"], links["40 Gb/s 40 µs"] = lan, far, fast
	}
	losses := []float64{0, 0.001, 0.01, 0.05}
	for link, x := range links {
		for _, keep := range []bool{true, false} {
			for op, name := range []string{rc.Write: "Write", rc.Read: "Read"} {
				if name == "" {
					continue
				}
				x := x
				x.op, x.keep = rc.Op(op), keep
				least := []float64{0.7, 0.9, 0.6, 0.05} // of the link, then of lossless
				if !keep {
					least = []float64{0.4, 0.9, 0.35, 0.04}
				}
				t.Run(fmt.Sprintf("%s, %s, selective %v", link, name, keep), func(t *testing.T) {
					t.Parallel()
					x.compare(t, losses, least)
				})
			}
		}
	}
}

// compare runs a transfer under each loss. The first loss is none.
func (x bulk) compare(t *testing.T, losses, least []float64) {
	whole := x.rate
	for i, loss := range losses {
		got, c, err := x.run(1, fate{drop: loss}, 1000)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("loss %.1f %%: %.3f of the link; %d of %d packets again, %d NAKs, %d gaps, %d time-outs; window %d, RTT %v",
			loss*100, got/x.rate, c.Retransmitted, c.Sent, c.NAKsReceived, c.ImpliedNAKs, c.Timeouts, c.Window, c.RTT)
		if got < least[i]*whole {
			t.Errorf("loss %.1f %%: %.3g B/s, want %.2f of %.3g", loss*100, got, least[i], whole)
		}
		if i == 0 {
			whole = got
		}
	}
}

// TestLineUnderLoss: random losses are no slow line. About as much goodput
// remains as without a line.
func TestLineUnderLoss(t *testing.T) {
	for _, size := range []int{64, 4 << 10, 64 << 10, 1 << 20} {
		for op, name := range map[rc.Op]string{rc.Write: "Write", rc.Read: "Read"} {
			for _, depth := range []int{1, 16} {
				x := bulk{op: op, size: size, rate: 1.25e9, delay: 20 * time.Microsecond, window: 128, mtu: wire.MTU4096, keep: true, depth: depth}
				t.Run(fmt.Sprintf("%s, %d bytes, depth %d", name, size, depth), func(t *testing.T) {
					t.Parallel()
					var goodput [2]float64
					for seed := range uint64(3) {
						for i, line := range []bool{false, true} {
							x.line = line
							got, _, err := x.run(seed, fate{drop: 0.05}, max(20, min(1000, 32<<20/size)))
							if err != nil {
								t.Fatal(err)
							}
							goodput[i] += got
						}
					}
					if ratio := goodput[1] / goodput[0]; ratio < 0.75 {
						t.Errorf("%.2f of the goodput without a line", ratio)
					}
				})
			}
		}
	}
}
