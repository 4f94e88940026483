package loop

import (
	"os"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/eventfd"
)

// Of the sleeps of a loop the last eight count, and all of them have to be
// short for it to be awake often.
func TestLoopThatWakesSeldomRests(t *testing.T) {
	var s sleepTimes
	now := time.Second
	if !s.seldom(now) {
		t.Error("the first sleep is not one of few")
	}
	for range restSleeps {
		now += time.Millisecond
		s.seldom(now)
	}
	if s.seldom(now) {
		t.Error("a loop that wakes each millisecond rests")
	}
	if now += restTime; !s.seldom(now) {
		t.Error("a loop that slept for long does not rest")
	}
	now += restTime / 2
	for i := range restSleeps - 1 { // a message, its answer, and so on
		if !s.seldom(now) {
			t.Errorf("a loop that wakes a few times does not rest at the %d.", i+1)
		}
	}
	if s.seldom(now) {
		t.Error("a loop that wakes many times rests")
	}
}

// Each of what a loop waits for ends a rest: a file, the time of a task, the
// bell. A rest leaves no descriptor.
func TestRestEnds(t *testing.T) {
	s := newStepped(t, 1)[0]
	bell := newBell(t)
	r := &recorder{next: Next{Wait: -1, Files: []*File{{FD: bell}}}}
	e := s.begin(r)
	rest := func(wait time.Duration) {
		t.Helper()
		n, ok := s.rest(wait)
		if !ok {
			t.Fatal("the runtime's poller does not take the epoll set")
		}
		s.collect(n)
	}
	open := countDescriptors(t)
	for range 3 {
		eventfd.Ring(bell)
		rest(-1)
		if !e.queued || !r.next.Files[0].Ready {
			t.Fatal("a file does not end a rest")
		}
		s.poll()
		eventfd.Drain(bell)
		time.AfterFunc(time.Millisecond, func() { eventfd.Ring(bell) }) // amid the rest
		rest(time.Hour)
		if !e.queued {
			t.Fatal("a file does not end a rest that has begun")
		}
		s.poll()
		eventfd.Drain(bell)
		began := s.group.now()
		rest(5 * time.Millisecond)
		if passed := s.group.now() - began; passed < 5*time.Millisecond {
			t.Fatalf("a rest of 5 ms took %v", passed)
		}
		if e.queued {
			t.Fatal("the end of a rest without an event visits a task")
		}
		eventfd.Ring(s.bell)
		rest(-1)
	}
	if now := countDescriptors(t); now != open {
		t.Errorf("%d descriptors are open, before %d", now, open)
	}
}

func countDescriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
