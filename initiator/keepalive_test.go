package initiator

import (
	"testing"
	"time"

	"github.com/viablk/viablk/internal/sched"
)

// TestKeepaliveCountsTicks: an interval counts once, however long it was: a
// process that was stopped does not declare its peer dead.
func TestKeepaliveCountsTicks(t *testing.T) {
	b := newKeepalive(sched.Real, time.Hour)
	stopped := func() {
		b.next = time.Now().Add(-24 * time.Hour)
		for range clockIterations + 1 { // a busy queue looks at the clock now and then
			if b.due() {
				return
			}
		}
		t.Fatal("the interval is over and no tick is due")
	}
	for i := range maxMissed { // a message arrived in the first interval
		stopped()
		if b.tick(0) {
			t.Fatalf("given up after %d ticks", i)
		}
		if b.due() {
			t.Fatal("another tick is due at once")
		}
	}
	stopped()
	if !b.tick(0) {
		t.Errorf("not given up after %d silent ticks", maxMissed)
	}
	b.heard()
	stopped()
	if b.tick(0) || b.missed != 0 {
		t.Errorf("given up although the peer was heard")
	}
}

// TestLifeOfTheFabric: life of the fabric counts as a message does, but not for
// ever.
func TestLifeOfTheFabric(t *testing.T) {
	b := newKeepalive(sched.Real, time.Hour)
	life := uint64(1)
	for n := 0; n <= maxWordless; n++ { // a message arrived in the first interval
		if b.tick(life); b.missed != 0 {
			t.Fatalf("silent in interval %d", n)
		}
		life++
	}
	for n := 1; n < maxMissed; n++ {
		if b.tick(life) {
			t.Fatalf("given up after %d intervals", n)
		}
		life++
	}
	if !b.tick(life) {
		t.Error("packets without a message keep the peer for ever")
	}
	b.heard()
	b.tick(life)
	if b.tick(life); b.missed != 1 {
		t.Error("the same life counts twice")
	}
}

// TestSilenceIsShorterThanFourIntervals: a peer that falls silent just after a
// tick is given up within maxMissed+1 intervals.
func TestSilenceIsShorterThanFourIntervals(t *testing.T) {
	b := newKeepalive(sched.Real, time.Hour)
	silence := b.interval // from just after the last tick
	b.tick(0)
	for dead := false; !dead; {
		silence += time.Until(b.next)
		dead = b.tick(0)
	}
	if silence >= (maxMissed+1)*b.interval || silence < maxMissed*b.interval {
		t.Errorf("given up after %v", silence)
	}
}

// TestNoKeepaliveWithoutInterval: without an interval no tick is due, and the
// owner's sleep has no limit.
func TestNoKeepaliveWithoutInterval(t *testing.T) {
	b := newKeepalive(sched.Real, 0)
	if d, ok := b.wait(); !ok || d >= 0 {
		t.Errorf("wait %v, %v", d, ok)
	}
	for range 2 * clockIterations {
		if b.due() {
			t.Fatal("a tick is due")
		}
	}
	if b := newKeepalive(sched.Real, time.Nanosecond); b.interval != minKeepalive {
		t.Errorf("interval %v", b.interval)
	}
}
