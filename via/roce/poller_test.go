package roce

import (
	"testing"
	"time"

	"github.com/viablk/viablk/internal/eventfd"
)

// wait returns on interrupt, on a watched file descriptor, and on timeout; an
// interrupt before wait counts.
func TestPollerWait(t *testing.T) {
	w, err := newPoller()
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	watched, err := eventfd.New()
	if err != nil {
		t.Fatal(err)
	}
	defer eventfd.Close(watched)
	if err := watch(w.epoll, watched); err != nil {
		t.Fatal(err)
	}
	const long = 59 * time.Minute
	for _, c := range []struct {
		name string
		wake func()
	}{
		{"rung", w.interrupt},
		{"readable", func() { eventfd.Ring(watched) }},
	} {
		c.wake()
		if !w.wait(long) {
			t.Fatalf("%s before: cannot wait", c.name)
		}
		eventfd.Drain(watched)
		go func() { time.Sleep(time.Millisecond); c.wake() }()
		if !w.wait(never) {
			t.Fatalf("%s meanwhile: cannot wait", c.name)
		}
		eventfd.Drain(watched)
	}
	for _, d := range []time.Duration{-1, 0, 1, time.Millisecond} {
		begin := time.Now()
		if !w.wait(d) || time.Since(begin) < d {
			t.Errorf("waited %v for %v", time.Since(begin), d)
		}
	}
	w.interrupt() // the runtime's poller still works after a deadline
	if !w.wait(long) {
		t.Error("cannot wait any more")
	}
}
