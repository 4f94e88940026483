package target

import (
	"testing"
	"time"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
)

// TestKeepaliveOfARangeHolder: an I/O connection may be silent for ever, but
// not while it holds a range that never becomes free.
func TestKeepaliveOfARangeHolder(t *testing.T) {
	for name, row := range map[string]struct {
		holding int
		moves   int // keepalives between two released ranges
		ends    bool
	}{
		"holds nothing":  {0, 0, false},
		"moves":          {2, 1, false},
		"moves slowly":   {2, maxHeld - 1, false},
		"is stuck":       {1, 0, true},
		"moves too late": {1, maxHeld + 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorker(newConn(&Server{cfg: Config{KeepAlive: time.Second}.withDefaults()}, nil, "peer", ""))
			w.login.role, w.execute.held.count = wire.RoleIO, row.holding
			for n := 1; n <= 3*maxHeld && w.failure == nil; n++ {
				w.checkPeer()
				w.execute.held.released = row.moves > 0 && n%row.moves == 0
				if row.ends && w.failure != nil && n != maxHeld {
					t.Errorf("the connection ends after %d keepalives", n)
				}
			}
			if ends := w.failure != nil; ends != row.ends {
				t.Errorf("the connection ends: %v, %v", ends, w.failure)
			}
		})
	}
}

// TestHolderOnASlowLink: packets of a peer that holds a range count as
// progress, but not for ever.
func TestHolderOnASlowLink(t *testing.T) {
	h := heldRanges{count: 1}
	for n := 1; n < maxHeldSlow; n++ {
		if h.stuck(uint64(n), time.Second, 0) {
			t.Fatalf("stuck after %d checks with packets", n)
		}
	}
	if !h.stuck(maxHeldSlow, time.Second, 0) {
		t.Error("packets without a released range keep the connection for ever")
	}
	h = heldRanges{count: 1}
	for n := 1; n < maxHeld; n++ {
		if h.stuck(0, time.Second, 0) {
			t.Fatalf("stuck after %d checks", n)
		}
	}
	if !h.stuck(0, time.Second, 0) {
		t.Error("the same life counts twice")
	}
}

// TestLifeOfTheFabric: life of the fabric counts as a message does, but not for
// ever. A peer that falls silent is given up within maxMissedKeepalives+1
// intervals.
func TestLifeOfTheFabric(t *testing.T) {
	const interval = time.Hour
	now, life := time.Now(), uint64(1)
	p := peerWatch{base: now, next: now, heard: true}
	step := func() bool {
		now = p.next
		return p.tick(now, interval, life, 0)
	}
	for n := 0; n <= maxWordless; n++ { // a message arrived in the first interval
		if step(); p.missed != 0 {
			t.Fatalf("silent in interval %d", n)
		}
		life++
	}
	for n := 1; n < maxMissedKeepalives; n++ {
		if step() {
			t.Fatalf("given up after %d intervals", n)
		}
		life++
	}
	if !step() {
		t.Error("packets without a message keep the peer for ever")
	}
	p.heard = true
	last := now // the message arrived just after this tick
	for step(); !step(); {
	}
	if silence := now.Sub(last); silence >= (maxMissedKeepalives+1)*interval || silence < maxMissedKeepalives*interval {
		t.Errorf("given up after %v", silence)
	}
}

// TestPauseOfTheTarget: an interval counts once, however long it was: a target
// that was stopped does not declare its initiator dead.
func TestPauseOfTheTarget(t *testing.T) {
	const interval = time.Second
	now := time.Now()
	p := peerWatch{base: now, next: now}
	for n := 1; n < maxMissedKeepalives; n++ {
		now = now.Add(24 * time.Hour)
		if p.tick(now, interval, 0, 0) {
			t.Fatalf("given up after %d intervals", n)
		}
		if wait := p.next.Sub(now); wait < interval/2 {
			t.Errorf("the next interval is over in %v", wait)
		}
	}
	if now = now.Add(24 * time.Hour); !p.tick(now, interval, 0, 0) {
		t.Errorf("not given up after %d intervals", maxMissedKeepalives)
	}
}

// TestLoginBeginsKeepalive: from the login on, the interval is that of
// keepalives, and no longer the time to log in.
func TestLoginBeginsKeepalive(t *testing.T) {
	w := newWorker(newConn(&Server{cfg: Config{KeepAlive: time.Second}.withDefaults()}, nil, "peer", ""))
	w.watch.next = time.Now().Add(loginTimeout)
	w.setLogin(&login{role: wire.RoleControl})
	if wait := time.Until(w.watch.next); wait > time.Second {
		t.Errorf("the first check is in %v, keepalives come every second", wait)
	}
}

// TestSilenceOnSlowLine: where answers take long, the initiator may be silent
// for longer, but not without end, and so may one that holds a range.
func TestSilenceOnSlowLine(t *testing.T) {
	const interval = 250 * time.Millisecond
	for _, c := range []struct{ answer, least, most time.Duration }{
		{0, 3 * interval, 4 * interval},
		{200 * time.Millisecond, 2 * time.Second, 3200 * time.Millisecond},
		{time.Hour, 5 * time.Second, carrier.MostSilence},
	} {
		now := time.Now()
		began := now.Add(-interval) // just after the tick before
		p := peerWatch{base: now, next: now, heard: true}
		for !p.tick(now, interval, 0, c.answer) {
			now = p.next
		}
		if silence := now.Sub(began); silence < c.least || silence > c.most {
			t.Errorf("an answer takes %v: given up after %v", c.answer, silence)
		}
		var h heldRanges
		h.count = 1
		checks, moving := 0, 0
		for !h.stuck(0, interval, c.answer) {
			checks++
		}
		if held := time.Duration(checks+1) * interval; held < c.least || held > carrier.MostSilence {
			t.Errorf("an answer takes %v: without a packet, a range is held for %v", c.answer, held)
		}
		for h = (heldRanges{count: 1}); !h.stuck(uint64(moving+1), interval, c.answer); {
			moving++
		}
		if most := maxHeldSlow * 8; moving+1 < maxHeldSlow || moving > most {
			t.Errorf("an answer takes %v: a range is held for %d checks", c.answer, moving+1)
		}
	}
}

// TestSlowLineBecomesFast: a transfer that took long on a slow line does not
// fail when the others are done and answers are fast again.
func TestSlowLineBecomesFast(t *testing.T) {
	const interval = 250 * time.Millisecond
	h := heldRanges{count: 1}
	life := uint64(0)
	move := func(checks int, answer time.Duration) {
		for range checks {
			life++
			if h.stuck(life, interval, answer) {
				t.Fatalf("an answer takes %v: stuck after %d checks with packets", answer, life)
			}
		}
	}
	move(2*maxHeldSlow, 500*time.Millisecond)
	move(maxHeldSlow/2, 0)
	for checks := 0; !h.stuck(life+1, interval, 0); life++ {
		if checks++; checks > maxHeldSlow/2 {
			t.Fatal("a range is held without end")
		}
	}
}
