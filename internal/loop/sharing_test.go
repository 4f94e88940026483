package loop

import (
	"runtime"
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

// newSharing returns a loop with a task whose source shares. A thread that is
// held up for busyTime between two visits makes the task an idle one: share is
// called again before each step that depends on it.
func newSharing(t *testing.T) (s stepped, r *recorder, source *fakeSource, share func()) {
	t.Helper()
	s = newStepped(t, 1)[0]
	r, source, share = s.beginSharing()
	share()
	return s, r, source, share
}

// beginSharing places a task on the loop that may share.
func (s stepped) beginSharing() (r *recorder, source *fakeSource, share func()) {
	s.t.Helper()
	bell := newBell(s.t)
	source = &fakeSource{flag: -1}
	r = &recorder{next: Next{Wait: -1, Files: []*File{{FD: bell, Edge: true}}, Source: source}}
	s.begin(r)
	return r, source, func() {
		s.t.Helper()
		const most = 1000
		for range most {
			if source.flag >= 0 {
				return
			}
			eventfd.Ring(bell)
			s.poll()
		}
		s.t.Fatalf("a task that is visited %d times in a row does not share", most)
	}
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
	s := newStepped(t, 1)[0]
	r, source, share := s.beginSharing()
	if source.flag >= 0 {
		t.Fatal("a new task shares")
	}
	r.during = func() {
		if source.flag >= 0 {
			t.Error("a task shares while it is visited")
		}
	}
	for range 3 {
		if share(); source.flag != s.flag.Index() {
			t.Fatal("a busy task shares another flag than the loop's")
		}
		source.pending.Store(true)
		s.step()
		source.pending.Store(false)
	}
	share()
	s.pass(2 * busyTime)
	source.pending.Store(true)
	s.step()
	if source.flag >= 0 {
		t.Fatal("a task shares that was idle")
	}
	source.pending.Store(false)
	share()
	source.refuses = true
	source.pending.Store(true)
	s.step()
	if len(s.sharing) != 0 {
		t.Fatal("a source that refuses is polled")
	}
}

// A task is visited for work that a peer publishes without a ring while the
// loop is awake: before other tasks, before a sleep, after it has set its flag.
func TestSilentWorkIsFound(t *testing.T) {
	s, r, source, share := newSharing(t)
	asleep := s.peerFlag()
	r.during = func() {
		source.pending.Store(false)
		if asleep() {
			t.Error("the loop visits, and its flag says that it sleeps")
		}
	}
	other := &recorder{next: Next{Again: true}}
	busy := s.begin(other)
	visits := r.visits
	source.pending.Store(true)
	s.step() // without a reason but the source's: the other task keeps it awake
	expectVisits(t, "published while another task is visited", r, visits+1)
	other.next = Next{Done: true}
	s.step()
	<-busy.ended

	share()
	visits = r.visits
	source.pending.Store(true)
	s.step()
	expectVisits(t, "published before a sleep", r, visits+1)

	share()
	visits = r.visits
	source.polled = func() { source.pending.Store(source.pending.Load() || asleep()) } // the peer sees it awake, then the loop polls
	s.step()
	expectVisits(t, "published before the flag was seen", r, visits+1)
}

// Tasks that always have something from their peers do not keep events of other
// tasks waiting for longer than pollPeriod and their visits.
func TestSilentWorkLeavesRoomForEvents(t *testing.T) {
	s, r, source, share := newSharing(t)
	asleep := s.peerFlag()
	bell := newBell(t)
	other := &recorder{next: Next{Wait: -1, Files: []*File{{FD: bell}}}}
	other.during = func() { eventfd.Drain(bell) }
	s.begin(other)
	for when, work := range map[string]func(){
		"always":                    func() { source.pending.Store(true) },
		"always as it falls asleep": func() { source.polled = func() { source.pending.Store(asleep()) } },
	} {
		share()
		visits, others := r.visits, other.visits
		work()
		eventfd.Ring(bell)
		s.pass(pollPeriod)
		s.step()
		source.polled = nil
		source.pending.Store(false)
		expectVisits(t, when+": the task of the bell", other, others+1)
		expectVisits(t, when+": the task that shares", r, visits+1)
	}
}

// A loop that finds silent work whenever it polls, and so never sleeps, passes
// through the scheduler all the same.
func TestSilentWorkLeavesTheMonitorAsleep(t *testing.T) {
	before := runtime.GOMAXPROCS(8) // as many loops may renew their time slices
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	s, _, source, share := newSharing(t)
	for range 1000 { // a thread that is held up for long needs no yield
		source.pending.Store(false)
		share()
		source.pending.Store(true)
		yields := s.yields
		s.slice.begun, s.slice.last = time.Now().Add(margin-monitorPeriod), time.Now() // the time slice ends
		if s.step(); s.yields > yields {
			return
		}
	}
	t.Error("no yield at the ends of time slices")
}

// A peer that rings over one source of the loop need not over another one.
func TestRingIsForAll(t *testing.T) {
	s, r, source, share := newSharing(t)
	asleep := s.peerFlag()
	bell := newBell(t)
	other := &recorder{next: Next{Wait: -1, Files: []*File{{FD: bell}}}}
	other.during = func() { eventfd.Drain(bell) }
	s.begin(other)
	share()
	r.during = func() { source.pending.Store(false) }
	visits, others := r.visits, other.visits
	ring := func() {
		for !asleep() {
			time.Sleep(10 * time.Microsecond)
		}
		time.Sleep(time.Millisecond) // most likely it sleeps in the kernel
		source.pending.Store(true)
		eventfd.Ring(bell)
	}
	source.polled = func() { // first while the loop is awake
		source.polled = func() { source.polled = nil; go ring() }
	}
	s.step()
	s.poll()
	expectVisits(t, "the task of the bell", other, others+1)
	expectVisits(t, "published in the sleep that another source's ring ended", r, visits+1)
	if asleep() {
		t.Error("the flag is set after the sleep")
	}
}

// A task that is idle again stops sharing, and what came meanwhile counts.
func TestIdleTaskStopsSharing(t *testing.T) {
	for _, late := range []bool{false, true} {
		s, r, source, _ := newSharing(t)
		visits := r.visits
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
			expectVisits(t, "published while it stopped to share", r, visits+1)
		}
	}
}

// A task that leaves the loop does not share its flag any more.
func TestTaskThatMovesStopsSharing(t *testing.T) {
	loops := newStepped(t, 2)
	from, to := loops[0], loops[1]
	r, source, share := from.beginSharing()
	share()
	e, visits := from.entries[0], r.visits
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
	expectVisits(t, "moved", r, visits+1)
	r.next = Next{Done: true}
	eventfd.Ring(r.found[0].FD)
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
	for range mostSharing {
		_, source, share := s.beginSharing()
		share()
		sources = append(sources, source)
	}
	if len(s.sharing) != mostSharing {
		t.Fatalf("%d tasks share, want %d", len(s.sharing), mostSharing)
	}
	r, last, _ := s.beginSharing()
	for range 10 {
		eventfd.Ring(r.next.Files[0].FD)
		if s.poll(); last.flag >= 0 {
			t.Fatalf("%d tasks share, want %d", len(s.sharing), mostSharing)
		}
	}
	polls := last.polls
	s.poll()
	if last.polls != polls || sources[0].polls == 0 {
		t.Errorf("the loop polls a task that does not share %d times", last.polls-polls)
	}
}
