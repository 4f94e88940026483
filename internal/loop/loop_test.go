package loop

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
)

// Drive blocks until a visit says Done, and the goroutine of the loop lasts as
// long as there are tasks.
func TestGoroutineOfALoopLastsAsLongAsItsTasks(t *testing.T) {
	g, loops := newTestGroup(t, 1)
	for range 3 {
		bell := newBell(t)
		visited := make(chan struct{}, 100)
		files := []*File{{FD: bell}}
		done := false
		ended := start(g, visitor(func(Round) Next {
			if files[0].Ready {
				done = eventfd.Drain(bell) == 2
			}
			visited <- struct{}{}
			return Next{Done: done, Wait: -1, Files: files}
		}))
		receive(t, "a new task is visited", visited)
		if !loops[0].isRunning() {
			t.Fatal("a loop with a task has no goroutine")
		}
		eventfd.Ring(bell)
		receive(t, "a task is visited when its file is ready", visited)
		select {
		case err := <-ended:
			t.Fatalf("drive has ended before the task, with %v", err)
		default:
		}
		if _, err := unix.Write(bell, []byte{0: 2, 7: 0}); err != nil { // 2 rings at once
			t.Fatal(err)
		}
		if err := receive(t, "drive ends when the task is done", ended); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the goroutine ends with the last task", func() bool { return !loops[0].isRunning() })
		if n := loops[0].load.Load(); n != 0 {
			t.Fatalf("the load of a loop without tasks is %d", n)
		}
	}
}

func TestLevelTriggeredFileWakesAsLongAsItIsReadable(t *testing.T) {
	s := newStepped(t, 1)[0]
	bell := newBell(t)
	r := &recorder{next: Next{Wait: -1, Files: []*File{{FD: bell}, {FD: -1}}}}
	s.begin(r)
	expectVisits(t, "new", r, 1)
	expectFlags(t, "new", r, false, false, false)
	s.poll()
	expectVisits(t, "nothing is ready", r, 1)
	eventfd.Ring(bell)
	for i := range 3 {
		s.step()
		expectVisits(t, "readable", r, 2+i)
		expectFlags(t, "readable", r, true, false, false)
	}
	eventfd.Drain(bell)
	s.poll()
	expectVisits(t, "drained", r, 4)
}

// An edge-triggered socket is told of once per change, with changes between the
// task's last call and the registration.
func TestEdgeTriggeredSocketIsToldOnce(t *testing.T) {
	s := newStepped(t, 1)[0]
	pair := newPair(t)
	closeLater(t, pair[0])
	r := &recorder{next: Next{Wait: -1, Files: []*File{{FD: pair[0], Edge: true, Write: true}}}}
	r.during = func() { send(t, pair[1], "early") }
	s.begin(r)
	expectFlags(t, "new", r, false, false, false)
	r.during = nil
	s.step()
	expectFlags(t, "a message came before the registration", r, true, true, false)
	s.poll()
	expectVisits(t, "the message stays unread", r, 2)
	send(t, pair[1], "more")
	s.step()
	if !r.found[0].Ready || r.found[0].Closed {
		t.Fatalf("after another message: %+v", r.found[0])
	}
	s.poll()
	expectVisits(t, "told already", r, 3)
	if n := drainSocket(t, pair[0]); n != len("earlymore") {
		t.Fatalf("%d bytes", n)
	}

	for { // until there is no room
		if _, err := unix.Write(pair[0], make([]byte, 4096)); errors.Is(err, unix.EAGAIN) {
			break
		} else if err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
	}
	s.poll()
	expectVisits(t, "no room", r, 3)
	drainSocket(t, pair[1])
	s.step()
	expectFlags(t, "there is room", r, false, true, false)
	s.poll()
	expectVisits(t, "told already", r, 4)

	if err := unix.Shutdown(pair[1], unix.SHUT_WR); err != nil {
		t.Fatal(err)
	}
	s.step()
	if f := r.found[0]; !f.Ready || !f.Closed || f.Gone {
		t.Fatalf("after the peer's shutdown: %+v", f)
	}
	s.poll()
	expectVisits(t, "told already", r, 5)
	_ = unix.Close(pair[1])
	s.step()
	expectFlags(t, "the peer is gone", r, true, true, true)
	s.poll()
	expectVisits(t, "told already", r, 6)
}

// A pipe without writers wakes a level-triggered file as Closed.
func TestLevelTriggeredFileIsClosed(t *testing.T) {
	s := newStepped(t, 1)[0]
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	closeLater(t, pipe[0])
	r := &recorder{next: Next{Wait: -1, Files: []*File{{FD: pipe[0]}}}}
	s.begin(r)
	send(t, pipe[1], "last")
	s.step()
	expectFlags(t, "data", r, true, false, false)
	drainSocket(t, pipe[0])
	_ = unix.Close(pipe[1])
	s.step()
	expectFlags(t, "no writer", r, true, true, true)
}

// A time that a task gives counts from the end of the visit, and for that visit
// alone.
func TestTimeOfATaskIsThatOfItsLatestVisit(t *testing.T) {
	s := newStepped(t, 1)[0]
	bell := newBell(t)
	r := &recorder{next: Next{Wait: time.Hour, Files: []*File{{FD: bell}}}}
	s.begin(r)
	s.pass(time.Hour - time.Minute)
	s.poll()
	expectVisits(t, "early", r, 1)
	s.pass(time.Minute)
	s.step()
	expectVisits(t, "the time has passed", r, 2)
	expectFlags(t, "the time has passed", r, false, false, false)
	s.poll()
	expectVisits(t, "the next hour", r, 2)

	s.pass(time.Hour / 2)
	eventfd.Ring(bell)
	s.step()
	eventfd.Drain(bell)
	expectVisits(t, "a file is ready first", r, 3)
	s.pass(time.Hour/2 + time.Minute)
	s.poll()
	expectVisits(t, "the earlier time does not count", r, 3)
	s.pass(time.Hour / 2)
	s.step()
	expectVisits(t, "the later time does", r, 4)

	s.pass(2 * time.Hour)
	eventfd.Ring(bell)
	s.step()
	eventfd.Drain(bell)
	expectVisits(t, "file and time at once", r, 5)

	s.pass(2 * time.Hour)
	s.step()
	expectVisits(t, "time alone", r, 6)
	r.next.Wait = -1
	eventfd.Ring(bell)
	s.step()
	eventfd.Drain(bell)
	expectVisits(t, "a file is ready before the last time", r, 7)
	s.pass(1000 * time.Hour)
	s.poll()
	expectVisits(t, "negative", r, 7)
	if n := len(s.timers); n != 0 {
		t.Fatalf("%d timers are left", n)
	}

	r.next.Wait = 0
	eventfd.Ring(bell)
	s.step()
	eventfd.Drain(bell)
	s.step()
	s.step()
	expectVisits(t, "at once", r, 10)

	r.next.Wait = time.Hour
	r.during = func() { s.pass(30 * time.Minute) } // a long visit
	s.step()
	r.during = nil
	s.pass(50 * time.Minute)
	s.poll()
	expectVisits(t, "the visit itself does not count", r, 11)
	r.next.Wait = 0
	s.pass(20 * time.Minute)
	s.step()

	r.next.Again, r.next.Wait = true, -1 // a timer of an earlier visit stays
	s.step()
	s.step()
	r.next.Again = false
	s.step()
	s.pass(time.Hour)
	s.poll()
	expectVisits(t, "none after the last visit", r, 15)
}

func TestRealTimeIsNotCutShort(t *testing.T) {
	s := newStepped(t, 1)[0]
	for _, wait := range []time.Duration{time.Microsecond, 3 * time.Millisecond} {
		r := &recorder{next: Next{Wait: wait}}
		began := time.Now()
		e := s.begin(r)
		for r.visits < 2 {
			s.step()
		}
		if passed := time.Since(began); passed < wait {
			t.Errorf("visited after %v instead of %v", passed, wait)
		}
		r.next = Next{Done: true}
		for r.visits < 3 {
			s.step()
		}
		if err := receive(t, "drive ends", e.ended); err != nil {
			t.Error(err)
		}
	}
}

// Tasks are visited in the order of their times.
func TestTimesPassInOrder(t *testing.T) {
	s := newStepped(t, 1)[0]
	const tasks = 40
	var visited []int
	for _, minutes := range rand.New(rand.NewPCG(1, 2)).Perm(tasks) {
		times := 0
		s.begin(visitor(func(Round) Next {
			if times++; times > 1 {
				visited = append(visited, minutes)
				return Next{Wait: -1}
			}
			return Next{Wait: time.Duration(minutes)*time.Minute + 30*time.Second}
		}))
	}
	for i := range tasks {
		s.pass(time.Minute)
		s.step()
		if len(visited) != i+1 || visited[i] != i {
			t.Fatalf("after %d minutes: %v", i+1, visited)
		}
	}
}

// The heap of timers agrees with a sorted list, and each entry knows its place.
func TestTimersAgreeWithASortedList(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	var heap timers
	entries := make([]*entry, 50)
	for i := range entries {
		entries[i] = &entry{timer: -1}
	}
	model := make(map[*entry]time.Duration)
	check := func() {
		t.Helper()
		if len(heap) != len(model) {
			t.Fatalf("%d timers, want %d", len(heap), len(model))
		}
		for i, e := range heap {
			if want, ok := model[e]; !ok || e.timer != i || e.deadline != want {
				t.Fatalf("the entry at %d has index %d and deadline %v, want %v", i, e.timer, e.deadline, want)
			}
		}
		for i := range heap {
			if heap[i].deadline < heap[max(i-1, 0)/2].deadline {
				t.Fatalf("the entry at %d is earlier than its parent", i)
			}
		}
		if earliest, ok := heap.next(); ok != (len(model) > 0) || ok && earliest != heap[0].deadline {
			t.Fatalf("next is %v, %v with %d timers", earliest, ok, len(model))
		}
	}
	for range 20000 {
		e := entries[random.IntN(len(entries))]
		if random.IntN(3) == 0 {
			heap.unset(e)
			delete(model, e)
			if e.timer != -1 {
				t.Fatalf("an entry without a timer has index %d", e.timer)
			}
		} else {
			model[e] = time.Duration(random.IntN(200) - 10) // some are equal
			heap.set(e, model[e])
		}
		check()
	}
	for _, e := range entries {
		heap.set(e, time.Duration(random.Int64()))
	}
	want := slices.SortedFunc(slices.Values(entries), func(a, b *entry) int { return cmp.Compare(a.deadline, b.deadline) })
	for _, e := range want {
		if heap[0] != e {
			t.Fatalf("the earliest is %v, want %v", heap[0].deadline, e.deadline)
		}
		heap.unset(e)
	}
}

// Tasks that say Again, and one that is always ready, are visited once per
// iteration each.
func TestAgainIsAfterTheOthers(t *testing.T) {
	s := newStepped(t, 1)[0]
	bell := newBell(t)
	eventfd.Ring(bell)
	tasks := []*recorder{
		{next: Next{Again: true}},
		{next: Next{Wait: -1, Files: []*File{{FD: bell}}}},
		{next: Next{Again: true}},
	}
	for _, r := range tasks {
		place([]*Loop{s.Loop}, newEntry(r))
	}
	for i := range 100 {
		s.step()
		for k, r := range tasks {
			if r.visits != i+1 {
				t.Fatalf("task %d has %d visits after %d iterations", k, r.visits, i+1)
			}
		}
	}
}

// A task that says Again is told of files that it listed before.
func TestAgainKeepsFiles(t *testing.T) {
	s := newStepped(t, 1)[0]
	pair := newPair(t)
	closeLater(t, pair[:]...)
	r := &recorder{next: Next{Wait: -1, Files: []*File{{FD: pair[0], Edge: true, Write: true}}}}
	s.begin(r)
	s.step()
	r.next.Again = true
	send(t, pair[1], "one")
	s.step()
	expectFlags(t, "before", r, true, true, false)
	s.step()
	expectFlags(t, "again", r, false, false, false)
	send(t, pair[1], "two")
	s.step()
	expectFlags(t, "another message", r, true, true, false)
	r.next.Again = false
	s.step()
	visits := r.visits
	s.poll()
	expectVisits(t, "told already", r, visits)
}

func TestAloneIsATaskAfterVisitsInARow(t *testing.T) {
	s := newStepped(t, 1)[0]
	bell := newBell(t)
	active := &recorder{next: Next{Again: true}}
	s.begin(active)
	s.step()
	if !active.round.Alone {
		t.Fatal("the only task is not alone")
	}
	idle := &recorder{next: Next{Wait: -1, Files: []*File{{FD: bell}}}}
	e := s.begin(idle)
	for range 2 {
		if active.round.Alone && idle.round.Alone {
			t.Fatal("two tasks are alone")
		}
		for i := 1; i <= 2*aloneAfter; i++ {
			s.step()
			if want := i >= aloneAfter; active.round.Alone != want {
				t.Fatalf("visit %d in a row: alone is %v", i, active.round.Alone)
			}
		}
		eventfd.Ring(bell)
		s.step()
		eventfd.Drain(bell)
		if idle.round.Alone {
			t.Fatal("a task among others is alone")
		}
	}
	idle.next = Next{Done: true}
	eventfd.Ring(bell)
	s.step()
	s.step()
	if err := receive(t, "a task that is done ends", e.ended); err != nil || !active.round.Alone {
		t.Fatalf("the only task that is left: alone is %v, error %v", active.round.Alone, err)
	}
}

func TestYieldIsToldOnce(t *testing.T) {
	s := newStepped(t, 1)[0]
	tasks := []*recorder{{next: Next{Again: true}}, {next: Next{Again: true}}}
	for _, r := range tasks {
		s.begin(r)
	}
	s.step()
	for range 3 {
		s.yields++
		for _, want := range []bool{true, false, false} {
			s.step()
			for k, r := range tasks {
				if r.round.Yielded != want {
					t.Fatalf("task %d: yielded is %v, want %v", k, r.round.Yielded, want)
				}
			}
		}
	}
}

// A loop passes through the scheduler when its time slice is due, and gives
// that back with its last task.
func TestLoopUsesItsTimeSlice(t *testing.T) {
	s := newStepped(t, 1)[0]
	bell := newBell(t)
	r := &recorder{next: Next{Wait: -1, Files: []*File{{FD: bell}}}}
	s.begin(r)
	before := renewing.Load()
	for end := time.Now().Add(waitLimit); s.yields == 0 && time.Now().Before(end); {
		if !s.slice.active {
			renewing.Add(1)
		}
		s.slice = timeSlice{begun: time.Now().Add(-monitorPeriod), last: time.Now(), offloads: offloads.Load(), active: true}
		s.poll() // not due if it begins late
	}
	eventfd.Ring(bell)
	s.step()
	if s.yields == 0 || !r.round.Yielded {
		t.Errorf("%d yields, told of one: %v", s.yields, r.round.Yielded)
	}
	r.next = Next{Done: true}
	s.step()
	if s.admit() || s.slice.active || renewing.Load() != before {
		t.Errorf("%d loops hold a time slice, want %d", renewing.Load(), before)
	}
}

// Events add up until the visit.
func TestEventsAddUp(t *testing.T) {
	s := newStepped(t, 1)[0]
	pair := newPair(t)
	closeLater(t, pair[:]...)
	r := &recorder{next: Next{Wait: -1, Files: []*File{{FD: pair[0], Edge: true, Write: true}}}}
	s.begin(r)
	for _, event := range []uint32{unix.EPOLLRDHUP, unix.EPOLLHUP, unix.EPOLLOUT, unix.EPOLLIN} {
		s.events[0] = unix.EpollEvent{Events: event, Fd: int32(pair[0])}
		s.collect(1)
	}
	s.poll()
	expectVisits(t, "four events", r, 2)
	expectFlags(t, "four events", r, true, true, true)
}

// A descriptor that epoll refuses ends its task, and no other one.
func TestRefusedDescriptorEndsItsTask(t *testing.T) {
	s := newStepped(t, 1)[0]
	other := &recorder{next: Next{Again: true}}
	s.begin(other)
	regular, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer regular.Close()
	bells := []int{newBell(t), newBell(t)}
	r := &recorder{next: Next{Wait: time.Hour, Files: []*File{{FD: bells[0]}}}}
	e := s.begin(r)
	r.next.Files = []*File{r.next.Files[0], {FD: bells[1]}, {FD: int(regular.Fd())}}
	eventfd.Ring(bells[0])
	s.step()
	err = receive(t, "the task ends", e.ended)
	if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), fmt.Sprintf("descriptor %d:", regular.Fd())) {
		t.Fatalf("error %v", err)
	}
	for _, bell := range bells {
		if s.fileAt(int32(bell)) != nil || s.isRegistered(bell) {
			t.Error("another file of the task is still watched")
		}
	}
	if len(s.timers) != 0 || s.load.Load() != 1 || len(s.entries) != 1 {
		t.Errorf("%d timers, load %d, %d tasks", len(s.timers), s.load.Load(), len(s.entries))
	}
	visits := other.visits
	s.step()
	expectVisits(t, "the other task", other, visits+1)
}

// A task with the same files costs no system call of the loop but the wait, and
// no memory.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	s := newStepped(t, 1)[0]
	bell, pair := newBell(t), newPair(t)
	closeLater(t, pair[:]...)
	files := []*File{{FD: bell}, {FD: pair[0], Edge: true, Write: true}}
	r := &recorder{next: Next{Wait: time.Hour, Files: files}}
	r.during = func() { eventfd.Drain(bell) }
	e := s.begin(r)
	idle := &recorder{next: Next{Wait: time.Minute}}
	s.begin(idle)
	s.poll()
	before := r.visits
	cycle := func() {
		eventfd.Ring(bell)
		if !s.admit() || !s.iterate() {
			t.Fatal("the loop has ended")
		}
	}
	if n := testing.AllocsPerRun(1000, cycle); n != 0 {
		t.Errorf("%v allocations", n)
	}
	expectVisits(t, "cycles", r, before+1001)
	r.next.Again = true
	cycle()
	if n := testing.AllocsPerRun(1000, cycle); n != 0 {
		t.Errorf("%v allocations of a task that says Again", n)
	}

	epoll := s.epoll
	s.epoll = -1 // refuses all
	if err := s.watch(e, files); err != nil {
		t.Error(err)
	}
	s.epoll = epoll
	if s.fileAt(int32(bell)) == nil || s.fileAt(int32(pair[0])) == nil {
		t.Error("files in the list are not watched any more")
	}
}

// The longest time is one.
func TestLongestTime(t *testing.T) {
	s := newStepped(t, 1)[0]
	r := &recorder{next: Next{Wait: math.MaxInt64}}
	s.begin(r)
	s.poll()
	expectVisits(t, "long before the time", r, 1)
}
