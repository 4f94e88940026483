package initiator

import (
	"testing"
	"time"
)

// TestBeatCountsTicks: an interval that passed unseen counts once, however long
// it was: a process that was stopped does not give up its peer.
func TestBeatCountsTicks(t *testing.T) {
	b := newBeat(time.Hour)
	stopped := func() {
		b.next = time.Now().Add(-24 * time.Hour)
		for range clockTurns + 1 { // a busy queue looks at the clock now and then
			if b.due() {
				return
			}
		}
		t.Fatal("the interval is over and no tick is due")
	}
	for i := range missedBeats + 1 {
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
		t.Errorf("not given up after %d ticks without a word", missedBeats+2)
	}
	b.heard()
	stopped()
	if b.tick() || b.missed != 0 {
		t.Errorf("given up although the peer was heard")
	}
}

// TestNoBeat: without an interval nothing is ever due, and the owner sleeps for
// as long as it likes.
func TestNoBeat(t *testing.T) {
	b := newBeat(0)
	if d, ok := b.wait(); !ok || d >= 0 {
		t.Errorf("wait %v, %v", d, ok)
	}
	for range 2 * clockTurns {
		if b.due() {
			t.Fatal("a tick is due")
		}
	}
	if b := newBeat(time.Nanosecond); b.interval != leastBeat {
		t.Errorf("interval %v", b.interval)
	}
}
