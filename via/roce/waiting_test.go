package roce

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
)

// What waits is woken by its eventfd, by what is watched, and by time; what was rung
// before it waits counts.
func TestWaiting(t *testing.T) {
	w, err := newWaiting()
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	watched, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watched)
	if err := watch(w.epoll, watched); err != nil {
		t.Fatal(err)
	}
	const long = 59 * time.Minute
	for _, c := range []struct {
		name string
		wake func()
	}{
		{"rung", w.ring},
		{"readable", func() { eventfd.Ring(watched) }},
	} {
		c.wake()
		if !w.until(long) {
			t.Fatalf("%s before: cannot wait", c.name)
		}
		eventfd.Drain(watched)
		go func() { time.Sleep(time.Millisecond); c.wake() }()
		if !w.until(never) {
			t.Fatalf("%s meanwhile: cannot wait", c.name)
		}
		eventfd.Drain(watched)
	}
	for _, d := range []time.Duration{-1, 0, 1, time.Millisecond} {
		begin := time.Now()
		if !w.until(d) || time.Since(begin) < d {
			t.Errorf("waited %v for %v", time.Since(begin), d)
		}
	}
	w.ring() // and the runtime's poller has not forgotten it after a deadline
	if !w.until(long) {
		t.Error("cannot wait any more")
	}
}
