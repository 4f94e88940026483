package loop

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/internal/memfd"
	"github.com/viablk/viablk/internal/sleepflag"
)

// fakeSource is a source whose peer is the test.
type fakeSource struct {
	refuses bool
	pending atomic.Bool
	flag    int // -1: not shared
	polls   int
	polled  func() // amid Pending
	ended   []string
}

func (s *fakeSource) Share(flag int) bool {
	if flag < 0 {
		s.ended = append(s.ended, "share")
		s.flag = -1
		return true
	}
	if s.refuses {
		return false
	}
	s.flag = flag
	return true
}

func (s *fakeSource) Disarm() {
	s.ended = append(s.ended, "disarm")
	s.flag = -1
}

func (s *fakeSource) Pending() bool {
	s.polls++
	if s.polled != nil {
		s.polled()
	}
	return s.pending.Load()
}

// newSharing returns a loop with a task whose source shares, and which has been
// visited n times.
func newSharing(t *testing.T, n int) (s stepped, r *recorder, source *fakeSource, e *entry, bell int) {
	t.Helper()
	s = newStepped(t, 1)[0]
	bell = newBell(t)
	source = &fakeSource{flag: -1}
	r = &recorder{next: Next{Wait: -1, Files: []*File{{FD: bell, Edge: true}}, Source: source}}
	e = s.begin(r)
	for r.visits < n {
		eventfd.Ring(bell)
		s.step()
	}
	return s, r, source, e, bell
}

// peerFlag returns what a peer sees of the loop's flag.
func (s stepped) peerFlag() func() bool {
	s.t.Helper()
	page, err := sleepflag.Process()
	if err != nil {
		s.t.Fatal(err)
	}
	fd, err := unix.Dup(page.FD())
	if err != nil {
		s.t.Fatal(err)
	}
	mem, err := memfd.MapPeer(fd, sleepflag.Size, unix.PROT_READ)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = unix.Munmap(mem) })
	return func() bool { return sleepflag.Asleep(sleepflag.Load(mem, s.flag.Index())) }
}

// A task shares from its second visit within busyTime on, as long as it waits.
func TestBusyTaskShares(t *testing.T) {
	s, r, source, _, bell := newSharing(t, 1)
	if source.flag >= 0 {
		t.Fatal("a new task shares")
	}
	r.during = func() {
		if source.flag >= 0 {
			t.Error("a task shares while it is visited")
		}
	}
	for range 3 {
		eventfd.Ring(bell)
		s.step()
		if source.flag != s.flag.Index() {
			t.Fatal("a busy task does not share the loop's flag")
		}
	}
	s.pass(2 * busyTime)
	eventfd.Ring(bell)
	s.step()
	if source.flag >= 0 {
		t.Fatal("a task shares that was idle")
	}
	source.refuses = true
	eventfd.Ring(bell)
	s.step()
	if len(s.sharing) != 0 {
		t.Fatal("a source that refuses is polled")
	}
}

// A task is visited for work that a peer publishes without a ring while the
// loop is awake: before other tasks, before a sleep, after it has set its flag.
func TestSilentWorkIsFound(t *testing.T) {
	s, r, source, _, _ := newSharing(t, 2)
	asleep := s.peerFlag()
	r.during = func() {
		source.pending.Store(false)
		if asleep() {
			t.Error("the loop visits, and its flag says that it sleeps")
		}
	}
	other := &recorder{next: Next{Again: true}}
	busy := s.begin(other)
	source.pending.Store(true)
	s.step() // without a reason but the source's: the other task keeps it awake
	expectVisits(t, "published while another task is visited", r, 3)
	other.next = Next{Done: true}
	s.step()
	<-busy.ended

	source.pending.Store(true)
	s.step()
	expectVisits(t, "published before a sleep", r, 4)

	source.polled = func() { source.pending.Store(source.pending.Load() || asleep()) } // the peer sees it awake, then it looks
	s.step()
	expectVisits(t, "published before the flag was seen", r, 5)
}

// Tasks that always have something from their peers do not keep events of other
// tasks waiting for longer than pollPeriod and their visits.
func TestSilentWorkLeavesRoomForEvents(t *testing.T) {
	s, r, source, _, _ := newSharing(t, 2)
	bell := newBell(t)
	other := &recorder{next: Next{Wait: -1, Files: []*File{{FD: bell}}}}
	other.during = func() { eventfd.Drain(bell) }
	s.begin(other)
	eventfd.Ring(bell)
	source.pending.Store(true)
	s.pass(pollPeriod)
	s.step()
	expectVisits(t, "the task of the bell", other, 2)
	expectVisits(t, "the task that shares", r, 3)

	asleep := s.peerFlag()
	source.polled = func() { source.pending.Store(asleep()) } // always as the loop falls asleep
	eventfd.Ring(bell)
	s.pass(pollPeriod)
	s.step()
	expectVisits(t, "the task of the bell", other, 3)
	expectVisits(t, "the task that shares", r, 4)
}

// A loop that finds silent work whenever it polls, and so never sleeps, passes
// through the scheduler all the same.
func TestSilentWorkLeavesTheMonitorAsleep(t *testing.T) {
	s, r, source, _, _ := newSharing(t, 2)
	source.pending.Store(true)
	s.step()
	before := s.yields
	s.slice.begun = time.Now().Add(margin - monitorPeriod) // the time slice ends
	s.step()
	expectVisits(t, "the task that shares", r, 4)
	if n := s.yields - before; n != 1 {
		t.Errorf("%d yields at the end of a time slice", n)
	}
}

// A peer that rings over one source of the loop need not over another one.
func TestRingIsForAll(t *testing.T) {
	s, r, source, _, _ := newSharing(t, 2)
	asleep := s.peerFlag()
	bell := newBell(t)
	other := &recorder{next: Next{Wait: -1, Files: []*File{{FD: bell}}}}
	other.during = func() { eventfd.Drain(bell) }
	s.begin(other)
	r.during = func() { source.pending.Store(false) }
	ring := func() {
		for !asleep() {
			time.Sleep(10 * time.Microsecond)
		}
		time.Sleep(time.Millisecond) // most likely it sleeps in the kernel
		source.pending.Store(true)
		eventfd.Ring(bell)
	}
	source.polled = func() {
		source.polled = nil // after the first look: the loop awake
		source.polled = func() { source.polled = nil; go ring() }
	}
	s.step()
	s.poll()
	expectVisits(t, "the task of the bell", other, 2)
	expectVisits(t, "published in the sleep that another source's ring ended", r, 3)
	if asleep() {
		t.Error("the flag is set after the sleep")
	}
}

// A task that is idle again stops sharing, and what came meanwhile counts.
func TestIdleTaskStopsSharing(t *testing.T) {
	for _, late := range []bool{false, true} {
		s, r, source, _, _ := newSharing(t, 2)
		s.periodStart = 0
		s.pass(2 * busyTime)
		source.ended = nil
		if late {
			source.polled = func() { source.pending.Store(len(source.ended) > 0) } // as the peer is told
		}
		r.during = func() { source.polled = nil; source.pending.Store(false) }
		s.poll()
		if source.flag >= 0 || !slices.Equal(source.ended, []string{"share"}) || len(s.sharing) != 0 {
			t.Fatalf("an idle task shares flag %d; %v", source.flag, source.ended)
		}
		if late {
			s.step()
			expectVisits(t, "published while it stopped to share", r, 3)
		}
	}
}

// A task that leaves the loop does not share its flag any more.
func TestTaskThatMovesStopsSharing(t *testing.T) {
	loops := newStepped(t, 2)
	from, to := loops[0], loops[1]
	bell := newBell(t)
	source := &fakeSource{flag: -1}
	r := &recorder{next: Next{Wait: -1, Files: []*File{{FD: bell, Edge: true}}, Source: source}}
	e := from.begin(r)
	eventfd.Ring(bell)
	from.step()
	if source.flag != from.flag.Index() {
		t.Fatal("a busy task does not share")
	}
	r.during = func() {
		if source.flag >= 0 {
			t.Error("a task shares the flag of the loop that it has left")
		}
	}
	from.move(e, to.Loop)
	if source.flag >= 0 || len(from.sharing) != 0 {
		t.Fatal("a task on its way shares")
	}
	to.step()
	expectVisits(t, "moved", r, 3)
	r.next = Next{Done: true}
	eventfd.Ring(bell)
	to.step()
	<-e.ended
	if len(to.sharing) != 0 {
		t.Fatal("a task that is done shares")
	}
}

// Only so many tasks share: the loop polls each of them in every iteration.
func TestFewTasksShare(t *testing.T) {
	s := newStepped(t, 1)[0]
	var sources []*fakeSource
	var bells []int
	for range mostSharing + 3 {
		bell, source := newBell(t), &fakeSource{flag: -1}
		s.begin(&recorder{next: Next{Wait: -1, Files: []*File{{FD: bell, Edge: true}}, Source: source}})
		bells, sources = append(bells, bell), append(sources, source)
	}
	for _, bell := range bells {
		eventfd.Ring(bell)
	}
	for range 3 { // events come 64 at a time
		s.poll()
	}
	sharing := 0
	for _, source := range sources {
		if source.flag >= 0 {
			sharing++
		}
	}
	if sharing != mostSharing {
		t.Errorf("%d of %d tasks share, want %d", sharing, len(sources), mostSharing)
	}
}
