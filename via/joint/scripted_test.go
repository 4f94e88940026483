package joint

import (
	"context"
	"errors"
	"testing"

	"github.com/viablk/viablk/via"
)

// scriptedQueue is a part's completion queue.
type scriptedQueue struct {
	done             int // reports of each Poll, as far as there is room
	busy             bool
	limit            int // of Resize
	polls, disarmed  int
	entries, resizes int
}

func (q *scriptedQueue) Poll(dst []via.Done) int {
	q.polls++
	return min(q.done, len(dst))
}
func (q *scriptedQueue) Arm() bool { return !q.busy }
func (q *scriptedQueue) FD() int   { return -1 }
func (q *scriptedQueue) Disarm()   { q.disarmed++ }
func (q *scriptedQueue) Resize(entries int) error {
	if q.resizes++; entries > q.limit {
		return via.ErrResource
	}
	q.entries = entries
	return nil
}
func (q *scriptedQueue) Close() error { return nil }

// TestPollVisitsParts: a part that always has more reports than there is room
// for does not keep another one from being visited.
func TestPollVisitsParts(t *testing.T) {
	full, other := &scriptedQueue{done: 100}, &scriptedQueue{done: 1}
	c := &cq{parts: []via.AdapterCQ{full, other}, fd: -1}
	var dst [4]via.Done
	for range 10 {
		if n := c.Poll(dst[:]); n != len(dst) {
			t.Fatalf("%d reports", n)
		}
	}
	if full.polls < 5 || other.polls < 5 {
		t.Errorf("%d and %d visits in 10 polls", full.polls, other.polls)
	}
}

// TestArmAsksAllParts: a queue sleeps if no part has something to do; the part
// that has is visited by the next poll, whatever else there is.
func TestArmAsksAllParts(t *testing.T) {
	for busy := range 3 {
		queues := []*scriptedQueue{{done: 100}, {done: 100}, {done: 100}}
		c := &cq{fd: -1}
		for _, q := range queues {
			c.parts = append(c.parts, q)
		}
		if !c.Arm() {
			t.Fatal("idle parts keep the queue awake")
		}
		queues[busy].busy = true
		if c.Arm() {
			t.Errorf("the queue sleeps while part %d has something to do", busy)
		}
		var dst [1]via.Done
		c.Poll(dst[:])
		if queues[busy].polls != 1 {
			t.Errorf("part %d is not visited", busy)
		}
		c.Disarm()
		for i, q := range queues {
			if q.disarmed != 1 {
				t.Errorf("part %d is disarmed %d times", i, q.disarmed)
			}
		}
	}
}

// TestResizeAllOrNone: parts have the size of before if one refuses another.
func TestResizeAllOrNone(t *testing.T) {
	one, two := &scriptedQueue{limit: 100, entries: 4}, &scriptedQueue{limit: 10, entries: 4}
	c := &cq{parts: []via.AdapterCQ{one, two}, fd: -1, entries: 4}
	if err := c.Resize(50); !errors.Is(err, via.ErrResource) || one.entries != 4 || two.entries != 4 {
		t.Errorf("%v: %d and %d entries", err, one.entries, two.entries)
	}
	if err := c.Resize(8); err != nil || one.entries != 8 || two.entries != 8 {
		t.Errorf("%v: %d and %d entries", err, one.entries, two.entries)
	}
}

// scriptedAdapter is the device of a part.
type scriptedAdapter struct {
	via.Adapter
	err        error // of Register, Update and Deregister
	accessed   bool
	registered int
	updates    int
}

func (a *scriptedAdapter) Register(*via.Memory) error {
	if a.err == nil {
		a.registered++
	}
	return a.err
}

func (a *scriptedAdapter) Update(*via.Memory) error {
	a.updates++
	return a.err
}

func (a *scriptedAdapter) Deregister(*via.Memory) error {
	a.registered--
	return a.err
}
func (a *scriptedAdapter) Accessed(*via.Memory) bool { return a.accessed }

func scripted() (a *adapter, parts [2]*scriptedAdapter) {
	a = &adapter{names: names{limit: 2}}
	for i, name := range []string{"one", "two"} {
		parts[i] = &scriptedAdapter{}
		a.parts = append(a.parts, member{name, parts[i]})
	}
	return a, parts
}

// TestRegisterAllOrNone: a region that one part refuses is known to no part,
// and its name is free.
func TestRegisterAllOrNone(t *testing.T) {
	for refuses := range 2 {
		a, parts := scripted()
		parts[refuses].err = via.ErrResource
		for range 10 { // more than there are names
			if err := a.Register(new(via.Memory)); !errors.Is(err, via.ErrResource) || err.Error()[:3] != a.parts[refuses].name {
				t.Fatalf("part %d refuses: %v", refuses, err)
			}
		}
		if n := parts[0].registered + parts[1].registered; n != 0 || a.names.count != 0 {
			t.Errorf("part %d refuses: %d registered, %d names", refuses, n, a.names.count)
		}
	}
}

// TestErrorsOfParts: memory is withdrawn from all parts, and is the consumer's
// when no peer of any is inside it.
func TestErrorsOfParts(t *testing.T) {
	for bad := range 2 {
		a, parts := scripted()
		m := new(via.Memory)
		if a.Accessed(m) {
			t.Error("accessed by no peer")
		}
		parts[bad].accessed = true
		if !a.Accessed(m) {
			t.Errorf("a peer of part %d goes unnoticed", bad)
		}
		if _, err := a.names.draw(); err != nil {
			t.Fatal(err)
		}
		parts[bad].err = via.ErrStillAccessed
		if err := a.Update(m); !errors.Is(err, via.ErrStillAccessed) || parts[0].updates+parts[1].updates != 2 {
			t.Errorf("update, part %d: %v", bad, err)
		}
		if err := a.Deregister(m); !errors.Is(err, via.ErrStillAccessed) || parts[0].registered+parts[1].registered != -2 {
			t.Errorf("deregister, part %d: %v", bad, err)
		}
	}
}

// TestHostsOfNoPart: what names no part is refused before a part is asked.
func TestHostsOfNoPart(t *testing.T) {
	a, _ := scripted()
	for _, host := range []string{"", ":x", "three:x", "tw:o"} {
		if _, _, err := a.Connect(context.Background(), host, nil, via.LinkConfig{}); !errors.Is(err, via.ErrNotReachable) {
			t.Errorf("connect to %q: %v", host, err)
		}
		if _, err := a.Listen(host, nil); !errors.Is(err, via.ErrInvalidParameter) {
			t.Errorf("listen at %q: %v", host, err)
		}
	}
}
