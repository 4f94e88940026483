package block

import (
	"testing"
	"time"
)

// refusals counts requests that go to workers before the next that does not.
func refusals(p *inlinePolicy, alone bool) (n int) {
	for !p.allows(alone) {
		n++
	}
	return n
}

// TestInlineWritesOfADiskThatBlocks: one request that takes very long sends the
// next ones to workers, a disk that goes on so more and more of them, up to a
// bound, and a disk that is fast again is trusted again.
func TestInlineWritesOfADiskThatBlocks(t *testing.T) {
	for _, alone := range []bool{true, false} {
		p := new(inlinePolicy)
		for range 100 {
			p.record(3 * time.Microsecond)
		}
		if n := refusals(p, alone); n != 0 {
			t.Fatalf("a fast disk offloads %d requests", n)
		}
		for want := minOffloads; want <= maxOffloads; want *= 2 {
			p.record(100 * time.Millisecond)
			if n := refusals(p, alone); n != want {
				t.Fatalf("%d requests offloaded after a slow one, want %d", n, want)
			}
		}
		p.record(time.Second)
		if n := refusals(p, alone); n != maxOffloads {
			t.Errorf("%d requests offloaded, %d are the most", n, maxOffloads)
		}
		for range maxOffloads {
			p.record(3 * time.Microsecond)
		}
		p.record(time.Second)
		if n := refusals(p, alone); n != minOffloads {
			t.Errorf("%d requests offloaded after a long fast time, want %d", n, minOffloads)
		}
	}
}

// TestInlineWritesAmongOthers: where requests take longer than the wake-up of a
// worker, those that are not alone go to workers, and those that are do not.
func TestInlineWritesAmongOthers(t *testing.T) {
	for _, c := range []struct{ wakeup, elapsed, others time.Duration }{
		{shortOperation, 5 * time.Microsecond, 0},
		{shortOperation, 12 * time.Microsecond, 1},
		{shortOperation, 500 * time.Microsecond, 1},
		{40 * time.Microsecond, 12 * time.Microsecond, 0},
		{40 * time.Microsecond, 60 * time.Microsecond, 1},
		{longestWakeup, 500 * time.Microsecond, 1},
	} {
		p := new(inlinePolicy)
		for range 100 {
			p.recordWakeup(c.wakeup)
		}
		n := 0
		for ; n < 100 && p.allows(false); n++ {
			p.record(c.elapsed)
		}
		if workers := n < 100; workers != (c.others == 1) || n < 2 {
			t.Errorf("wake-ups of %v, requests of %v: offloaded after %d requests", c.wakeup, c.elapsed, n)
		}
		for range 100 {
			p.record(c.elapsed)
			if !p.allows(true) {
				t.Fatalf("wake-ups of %v, requests of %v: one that is alone is offloaded", c.wakeup, c.elapsed)
			}
		}
		if n := refusals(p, false); n > minOffloads {
			t.Errorf("%d requests offloaded, which those that are alone made longer", n)
		}
	}
}

// TestWakeupsAreLearned: what a worker takes to wake up is measured, and one
// that was kept waiting does not count for more than it may.
func TestWakeupsAreLearned(t *testing.T) {
	e := NewExecutor(&engine{}, 1)
	defer e.Close()
	q := newExecuted(t, e, 1)
	defer q.Close()
	r := Request{Op: Read, Length: 512}
	if !q.Submit(&r) {
		t.Fatal("refused")
	}
	q.Kick()
	collect(t, q, 1)
	if e.inline.wakeup.Load() <= 0 {
		t.Error("nothing was learned of a worker that woke up")
	}
	for range 1000 {
		e.inline.recordWakeup(time.Hour)
	}
	if got := time.Duration(e.inline.wakeup.Load()); got > longestWakeup || got < longestWakeup/2 {
		t.Errorf("learned %v, want about %v", got, longestWakeup)
	}
}

// inlineTestEngine runs writes of up to 32 KiB on the owner's goroutine.
type inlineTestEngine struct {
	engine
	inlined int
}

func (e *inlineTestEngine) ExecuteInline(r *Request) bool {
	if r.Length > 32<<10 {
		return false
	}
	e.inlined++
	r.Err = nil
	return true
}

// TestInlineWritesAreBounded: the owner runs so many bytes itself before Kick,
// and only writes.
func TestInlineWritesAreBounded(t *testing.T) {
	g := &inlineTestEngine{}
	e := NewExecutor(g, 2)
	defer e.Close()
	q := newExecuted(t, e, 8)
	defer q.Close()
	for range 3 {
		g.inlined = 0
		requests := []Request{
			{Op: Write, Length: 32 << 10},
			{Op: Read, Length: 4 << 10},
			{Op: Write, Length: 33 << 10},
			{Op: Write, Length: 28 << 10},
			{Op: Flush},
			{Op: Write, Length: 8 << 10}, // more than is left
			{Op: Write, Length: 4 << 10},
		}
		for i := range requests {
			e.inline.blocked.left.Store(0) // however slow this machine is
			e.inline.concurrent.left.Store(0)
			if !q.Submit(&requests[i]) {
				t.Fatal("refused")
			}
		}
		if g.inlined != 3 || q.immediate.Len() != 3 {
			t.Errorf("%d requests are run by the owner and %d finished, want 3", g.inlined, q.immediate.Len())
		}
		q.Kick()
		collect(t, q, len(requests))
	}
}
