package initiator

import (
	"testing"
	"time"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/sched"
)

// TestKeepaliveCountsTicks: an interval counts once, however long it was: a
// process that was stopped does not declare its peer dead.
func TestKeepaliveCountsTicks(t *testing.T) {
	b := newKeepalive(sched.Real, time.Hour, time.Now())
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
		if b.tick(0, 0) {
			t.Fatalf("given up after %d ticks", i)
		}
		if b.due() {
			t.Fatal("another tick is due at once")
		}
	}
	stopped()
	if !b.tick(0, 0) {
		t.Errorf("not given up after %d silent ticks", maxMissed)
	}
	b.heard()
	stopped()
	if b.tick(0, 0) || b.missed != 0 {
		t.Errorf("given up although the peer was heard")
	}
}

// TestLifeOfTheFabric: life of the fabric counts as a message does, but not for
// ever.
func TestLifeOfTheFabric(t *testing.T) {
	b := newKeepalive(sched.Real, time.Hour, time.Now())
	life := uint64(1)
	for n := 0; n <= maxWordless; n++ { // a message arrived in the first interval
		if b.tick(life, 0); b.missed != 0 {
			t.Fatalf("silent in interval %d", n)
		}
		life++
	}
	for n := 1; n < maxMissed; n++ {
		if b.tick(life, 0) {
			t.Fatalf("given up after %d intervals", n)
		}
		life++
	}
	if !b.tick(life, 0) {
		t.Error("packets without a message keep the peer for ever")
	}
	b.heard()
	b.tick(life, 0)
	if b.tick(life, 0); b.missed != 1 {
		t.Error("the same life counts twice")
	}
}

// TestSilenceIsShorterThanFourIntervals: a peer that falls silent just after a
// tick is given up within maxMissed+1 intervals.
func TestSilenceIsShorterThanFourIntervals(t *testing.T) {
	b := newKeepalive(sched.Real, time.Hour, time.Now())
	silence := b.interval // from just after the last tick
	b.tick(0, 0)
	for dead := false; !dead; {
		silence += time.Until(b.next)
		dead = b.tick(0, 0)
	}
	if silence >= (maxMissed+1)*b.interval || silence < maxMissed*b.interval {
		t.Errorf("given up after %v", silence)
	}
}

// TestSilenceOnSlowLine: where answers take long, a peer may be silent for
// longer, and keepalives are rarer: none is sent while packets show that both
// ends are alive, but for long. The limit does not grow without end.
func TestSilenceOnSlowLine(t *testing.T) {
	const interval, answer = 250 * time.Millisecond, 200 * time.Millisecond
	b := newKeepalive(sched.Real, interval, time.Now())
	ticks := func(life uint64, answer time.Duration) (sent int) {
		if b.tick(life, answer) {
			t.Fatal("given up")
		}
		if b.sends() {
			sent = 1
		}
		return sent
	}
	var fast, slow, moving int
	for range 12 {
		b.heard()
		fast += ticks(1, time.Millisecond)
	}
	for range 12 {
		b.heard()
		slow += ticks(1, answer)
	}
	for life := range uint64(12) {
		moving += ticks(2+life, answer)
	}
	if fast != 12 || slow != 4 || moving != 0 {
		t.Errorf("in 12 intervals, %d keepalives on a fast line, %d on a slow one, %d amid a transfer", fast, slow, moving)
	}
	for life := range uint64(2 * mostUnasked) {
		moving += ticks(100+life, answer)
	}
	if moving == 0 {
		t.Error("no keepalive amid a long transfer")
	}
	for _, c := range []struct{ answer, least, most time.Duration }{
		{0, 3 * interval, 4 * interval},
		{answer, 2 * time.Second, 16 * answer},
		{time.Hour, 5 * time.Second, carrier.MostSilence},
	} {
		b := newKeepalive(sched.Real, interval, time.Now())
		b.tick(0, c.answer)
		silence := interval // from just after the tick before
		for dead := false; !dead; {
			silence += time.Until(b.next).Round(time.Millisecond)
			dead = b.tick(0, c.answer)
		}
		if silence < c.least || silence > c.most {
			t.Errorf("an answer takes %v: given up after %v", c.answer, silence)
		}
	}
}

// TestKeepalivesOfProvenTarget: while the control connection shows that the
// target is alive, an I/O connection has few keepalives.
func TestKeepalivesOfProvenTarget(t *testing.T) {
	b := newKeepalive(sched.Real, time.Hour, time.Now())
	sent := 0
	for range 4 * provenIntervals {
		b.prove()
		if b.tick(0, 0) {
			t.Fatal("given up")
		}
		if b.sends() {
			sent++
		}
	}
	if sent != 4 {
		t.Errorf("%d keepalives in %d intervals", sent, 4*provenIntervals)
	}
	if b.tick(0, 0); !b.sends() {
		t.Error("no keepalive once the control connection is silent")
	}
}

// TestQuietKeepalives: a target that shows its life without messages gets few.
// One follows the first interval without a sign, which is not counted as
// silence: a target that stops at any time is given up as soon, and no sooner,
// as one that answers each keepalive.
func TestQuietKeepalives(t *testing.T) {
	b := newKeepalive(sched.Real, time.Hour, time.Now())
	life, sent := uint64(0), 0
	tick := func() (dead bool) {
		b.seen(life)
		dead = b.tick(life, 0)
		if b.sends() {
			sent++
		}
		return dead
	}
	for range mostUnasked {
		if life++; tick() {
			t.Fatal("given up")
		}
	}
	if sent != 0 {
		t.Errorf("%d keepalives in %d intervals with signs", sent, mostUnasked)
	}
	for range provenIntervals {
		life++
		tick()
	}
	if sent != 1 {
		t.Errorf("%d keepalives after so many intervals without a message", sent)
	}
	b.heard()
	life++
	tick()
	if sent = 0; tick() || sent != 1 || b.missed != 0 {
		t.Errorf("after an interval without a sign: %d keepalives, %d missed", sent, b.missed)
	}
	for n := 1; n < maxMissed; n++ {
		if tick() {
			t.Errorf("given up after %d more", n)
		}
	}
	if !tick() {
		t.Errorf("not given up after %d intervals without a sign", maxMissed+1)
	}
}

// TestOneTimeForTicks: the ticks of keepalives with one base are at one time.
func TestOneTimeForTicks(t *testing.T) {
	base := time.Now()
	var all [5]keepalive
	for i := range all {
		time.Sleep(time.Millisecond)
		all[i] = newKeepalive(sched.Real, time.Hour, base)
	}
	for range 3 {
		for i := range all {
			if !all[i].next.Equal(all[0].next) {
				t.Fatalf("a tick at %v, another at %v", all[i].next, all[0].next)
			}
			all[i].heard()
			all[i].tick(0, 0)
		}
	}
}

// TestNoKeepaliveWithoutInterval: without an interval no tick is due, and the
// owner's sleep has no limit.
func TestNoKeepaliveWithoutInterval(t *testing.T) {
	b := newKeepalive(sched.Real, 0, time.Now())
	if d, ok := b.wait(); !ok || d >= 0 {
		t.Errorf("wait %v, %v", d, ok)
	}
	for range 2 * clockIterations {
		if b.due() {
			t.Fatal("a tick is due")
		}
	}
	if b := newKeepalive(sched.Real, time.Nanosecond, time.Now()); b.interval != minKeepalive {
		t.Errorf("interval %v", b.interval)
	}
}
