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
	for i := range maxMissed + 1 {
		stopped()
		if b.tick() {
			t.Fatalf("given up after %d ticks", i)
		}
		if b.due() {
			t.Fatal("another tick is due at once")
		}
	}
	stopped()
	if !b.tick() {
		t.Errorf("not given up after %d silent ticks", maxMissed+2)
	}
	b.heard()
	stopped()
	if b.tick() || b.missed != 0 {
		t.Errorf("given up although the peer was heard")
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
