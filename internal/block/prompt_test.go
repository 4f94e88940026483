package block

import (
	"testing"
	"time"
)

// refusals counts requests that go to workers before the next that does not.
func refusals(p *prompts, alone bool) (n int) {
	for !p.may(alone) {
		n++
	}
	return n
}

// TestPromptsOfADiskThatBlocks: one request that takes very long sends the next ones to
// workers, a disk that goes on so more and more of them, up to a bound, and a disk that
// is fast again is trusted again.
func TestPromptsOfADiskThatBlocks(t *testing.T) {
	for _, alone := range []bool{true, false} {
		p := new(prompts)
		for range 100 {
			p.took(3 * time.Microsecond)
		}
		if n := refusals(p, alone); n != 0 {
			t.Fatalf("a fast disk has a detour of %d requests", n)
		}
		for want := leastDetour; want <= mostDetour; want *= 2 {
			p.took(100 * time.Millisecond)
			if n := refusals(p, alone); n != want {
				t.Fatalf("a detour of %d requests after a slow one, want %d", n, want)
			}
		}
		p.took(time.Second)
		if n := refusals(p, alone); n != mostDetour {
			t.Errorf("a detour of %d requests, %d are the most", n, mostDetour)
		}
		for range mostDetour {
			p.took(3 * time.Microsecond)
		}
		p.took(time.Second)
		if n := refusals(p, alone); n != leastDetour {
			t.Errorf("a detour of %d requests after a long fast time, want %d", n, leastDetour)
		}
	}
}

// TestPromptsAmongOthers: where requests take longer than the wake-up of a worker, those
// that are not alone go to workers, and those that are do not.
func TestPromptsAmongOthers(t *testing.T) {
	for _, c := range []struct{ wakeup, took, others time.Duration }{
		{shortOperation, 5 * time.Microsecond, 0},
		{shortOperation, 12 * time.Microsecond, 1},
		{shortOperation, 500 * time.Microsecond, 1},
		{40 * time.Microsecond, 12 * time.Microsecond, 0},
		{40 * time.Microsecond, 60 * time.Microsecond, 1},
		{longestWakeup, 500 * time.Microsecond, 1},
	} {
		p := new(prompts)
		for range 100 {
			p.woke(c.wakeup)
		}
		n := 0
		for ; n < 100 && p.may(false); n++ {
			p.took(c.took)
		}
		if workers := n < 100; workers != (c.others == 1) || n < 2 {
			t.Errorf("wake-ups of %v, requests of %v: a detour after %d requests", c.wakeup, c.took, n)
		}
		for range 100 {
			p.took(c.took)
			if !p.may(true) {
				t.Fatalf("wake-ups of %v, requests of %v: one that is alone has a detour", c.wakeup, c.took)
			}
		}
		if n := refusals(p, false); n > leastDetour {
			t.Errorf("a detour of %d requests, which those that are alone made longer", n)
		}
	}
}

// TestWakeupsAreLearned: what a worker takes to wake up is measured, and one that was
// kept waiting does not count for more than it may.
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
	if e.prompts.wakeup.Load() <= 0 {
		t.Error("nothing was learned of a worker that woke up")
	}
	for range 1000 {
		e.prompts.woke(time.Hour)
	}
	if got := time.Duration(e.prompts.wakeup.Load()); got > longestWakeup || got < longestWakeup/2 {
		t.Errorf("learned %v, want about %v", got, longestWakeup)
	}
}

// promptEngine runs writes of up to 32 KiB on the owner's goroutine.
type promptEngine struct {
	engine
	prompted int
}

func (e *promptEngine) Prompt(r *Request) bool {
	if r.Length > 32<<10 {
		return false
	}
	e.prompted++
	r.Err = nil
	return true
}

// TestPromptsAreBounded: the owner runs so many bytes itself before Kick, and only
// writes.
func TestPromptsAreBounded(t *testing.T) {
	g := &promptEngine{}
	e := NewExecutor(g, 2)
	defer e.Close()
	q := newExecuted(t, e, 8)
	defer q.Close()
	for range 3 {
		g.prompted = 0
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
			e.prompts.blocked.left.Store(0) // however slow this machine is
			e.prompts.crowded.left.Store(0)
			if !q.Submit(&requests[i]) {
				t.Fatal("refused")
			}
		}
		if g.prompted != 3 || q.immediate.n != 3 {
			t.Errorf("%d requests are run by the owner and %d finished, want 3", g.prompted, q.immediate.n)
		}
		q.Kick()
		collect(t, q, len(requests))
	}
}
