package block

import (
	"syscall"
	"testing"

	"github.com/viablk/viablk/internal/contain"
)

// A panic of the engine on a worker is an EIO of its request. Others of the
// same queue go on, and no range stays held.
func TestPanicOnWorker(t *testing.T) {
	e := NewExecutor(&engine{execute: func(r *Request) error {
		if r.User == 1 {
			panic("planted")
		}
		return nil
	}}, 2)
	defer e.Close()
	ranges := NewRanges()
	e.Guard(ranges)
	q := newExecuted(t, e, 8)
	before := contain.Count()
	requests := make([]Request, 8)
	for i := range requests {
		requests[i] = Request{Op: Write, Offset: int64(i/2) << 12, Length: 4096, User: uint64(i % 2)}
		if !q.Submit(&requests[i]) {
			t.Fatal("refused within the depth")
		}
	}
	q.Kick()
	collect(t, q, len(requests))
	for i, r := range requests {
		if want := [...]syscall.Errno{0, syscall.EIO}[r.User]; Errno(r.Err) != want {
			t.Errorf("request %d: %v, want %v", i, r.Err, want)
		}
	}
	if n := contain.Count() - before; n != 4 {
		t.Errorf("%d panics counted", n)
	}
	if !ranges.TryAcquire(0, 1<<20, true) {
		t.Error("a range is held")
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
}

// After a flush that panicked nothing is known to be durable: no later one
// succeeds, and neither does a write with FUA. The device hears of it once.
func TestPanicInFlush(t *testing.T) {
	for _, first := range []Request{{Op: Flush}, {Op: Write, Length: 512, Flags: FUA}} {
		panics := true
		e := NewExecutor(&engine{execute: func(r *Request) error {
			if panics && (r.Op == Flush || r.Flags&FUA != 0) {
				panic("planted")
			}
			return nil
		}}, 1)
		lost := 0
		e.OnLost(func(error) { lost++ })
		q := newExecuted(t, e, 1)
		run := func(r Request) error {
			if !q.Submit(&r) {
				t.Fatal("refused within the depth")
			}
			q.Kick()
			collect(t, q, 1)
			return r.Err
		}
		if err := run(first); Errno(err) != syscall.EIO {
			t.Errorf("%v: %v", first.Op, err)
		}
		panics = false
		for _, r := range []Request{{Op: Flush}, {Op: Write, Length: 512, Flags: FUA}} {
			if err := run(r); Errno(err) != syscall.EIO {
				t.Errorf("%v after a panic in %v: %v", r.Op, first.Op, err)
			}
		}
		if err := run(Request{Op: Write, Length: 512}); err != nil || lost != 1 {
			t.Errorf("write %v, %d losses", err, lost)
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
		e.Close()
	}
}
