package block

import (
	"testing"
	"time"
)

// TestPromptsOfADiskThatBecomesSlow: one slow request sends the next ones to workers,
// a disk that stays slow more and more of them, up to a bound, and a disk that is fast
// again is trusted again.
func TestPromptsOfADiskThatBecomesSlow(t *testing.T) {
	p := new(prompts)
	detour := func() (n int) {
		for !p.may() {
			n++
		}
		return n
	}
	for range 100 {
		p.took(3 * time.Microsecond)
	}
	if n := detour(); n != 0 {
		t.Fatalf("a fast disk has a detour of %d requests", n)
	}
	for want := leastDetour; want <= mostDetour; want *= 2 {
		p.took(100 * time.Millisecond)
		if n := detour(); n != want {
			t.Fatalf("a detour of %d requests after a slow one, want %d", n, want)
		}
	}
	p.took(time.Second)
	if n := detour(); n != mostDetour {
		t.Errorf("a detour of %d requests, %d are the most", n, mostDetour)
	}
	for range mostDetour {
		p.took(3 * time.Microsecond)
	}
	p.took(time.Second)
	if n := detour(); n != leastDetour {
		t.Errorf("a detour of %d requests after a long fast time, want %d", n, leastDetour)
	}
	slow := 0
	for ; p.may(); slow++ {
		p.took(shortOperation + 4*time.Microsecond) // none is slow, but workers are no slower
	}
	if slow < 2 || slow > 30 {
		t.Errorf("a detour after %d requests that take as long as a hand-off", slow)
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
			e.prompts.detour.Store(0) // however slow this machine is
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
