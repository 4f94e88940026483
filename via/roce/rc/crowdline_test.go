package rc_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/viablk/viablk/via/roce/rc"
)

// TestCrowdSharesSlowLine: while a crowd is idle, its cable becomes one of 1
// Mbit/s. Then all of it transfer at once. No connection breaks, no end is
// silent for longer than the other one bears, no transfer pauses for much
// longer than that, and all are done within twice the time that the cable
// needs.
func TestCrowdSharesSlowLine(t *testing.T) {
	const size, rate = 64 << 10, 125e3
	delays := []time.Duration{20 * time.Microsecond, time.Millisecond}
	for _, members := range []int{1, 8, min(40, mostMembers), mostMembers} {
		for op, name := range map[rc.Op]string{rc.Write: "Write", rc.Read: "Read"} {
			for seed, delay := range delays {
				t.Run(fmt.Sprintf("%d, %s, %v", members, name, delay), func(t *testing.T) {
					t.Parallel()
					c := newCrowd(uint64(seed), op, members, size, rc.NewLine)
					if _, err := c.ask(time.Second); err != nil {
						t.Fatal(err)
					}
					slow := cable{rate: rate, room: 100_000, burst: 70_000, delay: delay}
					c.cables = [2]cable{slow, slow}
					if err := c.idle(12 * time.Second); err != nil {
						t.Fatal(err)
					}
					again, of := c.retransmitted()
					need := time.Duration(float64(members*size) / rate * 1e9)
					elapsed, err := c.ask(2 * need)
					if err != nil {
						t.Fatal(err)
					}
					var worst [2]float64
					pause := 0.0
					for _, m := range c.members {
						pause = max(pause, m.transfer.worst)
						for i := range worst {
							worst[i] = max(worst[i], m.peers[i].worst)
						}
					}
					againNow, ofNow := c.retransmitted()
					again, of = againNow-again, ofNow-of
					t.Logf("%v, the cable needs %v; %d of %d packets again, %d lost; silent for %.2f, and transfers pause for %.2f, of what an end bears",
						elapsed, need, again, of, c.cables[0].lost+c.cables[1].lost, worst, pause)
					if pause > 3 {
						t.Errorf("a transfer has no part of the line for %.2f of what an end bears", pause)
					}
					if worst[0] > 1 || worst[1] > 1 {
						t.Errorf("an end is silent for longer than the other one bears: %.2f", worst)
					}
					if again > of/5 {
						t.Errorf("%d of %d packets are retransmitted", again, of)
					}
				})
			}
		}
	}
}

// TestCrowdOnFastLine: what bounds a crowd on a slow line costs it little on a
// fast one.
func TestCrowdOnFastLine(t *testing.T) {
	const members, size = 32, 1 << 20
	without := func() *rc.Line { return nil }
	for op, name := range map[rc.Op]string{rc.Write: "Write", rc.Read: "Read"} {
		var elapsed [2]time.Duration
		for i, line := range []func() *rc.Line{without, rc.NewLine} {
			c := newCrowd(1, op, members, size, line)
			c.cables[0].room, c.cables[1].room = 64<<20, 64<<20
			var err error
			if elapsed[i], err = c.ask(time.Second); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("%s: %v without a line, %v with one", name, elapsed[0], elapsed[1])
		if elapsed[1] > elapsed[0]*11/10 {
			t.Errorf("%s: %v without a line, %v with one", name, elapsed[0], elapsed[1])
		}
	}
}
