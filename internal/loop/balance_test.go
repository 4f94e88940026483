package loop

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
)

func TestTaskIsPlacedWhereTheFewestAre(t *testing.T) {
	all := newStepped(t, 3)
	g := all[0].group
	placed := func() []int32 {
		place(*g.loops.Load(), newEntry(&recorder{}))
		return []int32{all[0].load.Load(), all[1].load.Load(), all[2].load.Load()}
	}
	all[0].load.Store(2)
	all[1].load.Store(1)
	for i, want := range [][]int32{{2, 1, 1}, {2, 2, 1}, {2, 2, 2}, {3, 2, 2}, {3, 3, 2}, {3, 3, 3}} {
		if loads := placed(); fmt.Sprint(loads) != fmt.Sprint(want) {
			t.Fatalf("after %d tasks: %v, want %v", i+1, loads, want)
		}
	}
	for i, want := range []int{1, 2, 3} {
		if n := len(all[i].inbox); n != want {
			t.Errorf("%d tasks are on their way to loop %d, want %d", n, i, want)
		}
	}
}

func TestActivityIsRecent(t *testing.T) {
	now := 1000 * time.Hour
	for _, tasks := range []int{0, 1, 2, 1000, 1<<activityBits - 1} {
		a := newActivity(tasks, now)
		if n, _ := a.tasks(now + 3*balancePeriod); n != tasks {
			t.Errorf("%d tasks, want %d", n, tasks)
		}
		if n, _ := a.tasks(now + 3*balancePeriod + time.Millisecond); n != 0 {
			t.Errorf("%d tasks after a long time", n)
		}
	}
	if n, _ := newActivity(1<<activityBits+5, now).tasks(now); n != 1<<activityBits-1 {
		t.Errorf("%d of very many tasks", n)
	}
}

// A loop hands a task that it visits to one that has two less to visit.
func TestActiveTaskMovesToALoopWithoutWork(t *testing.T) {
	for _, c := range []struct{ first, second, moves int }{
		{1, 0, 0}, {2, 0, 1}, {2, 1, 0}, {3, 1, 1}, {5, 0, 2}, {5, 4, 0}, {6, 2, 2},
	} {
		moves, exact := countMoves(t, c.first, c.second)
		for end := time.Now().Add(waitLimit); !exact && time.Now().Before(end); {
			moves, exact = countMoves(t, c.first, c.second)
		}
		if exact && moves != c.moves {
			t.Errorf("%d and %d active tasks: %d moved, want %d", c.first, c.second, moves, c.moves)
		}
	}
}

// countMoves returns how many of the active tasks of one loop move to another
// one, in time that the test has pass. It returns false if real time passed
// too, so that loops took each other for idle.
func countMoves(t *testing.T, first, second int) (int, bool) {
	t.Helper()
	all := newStepped(t, 2)
	idle := &recorder{next: Next{Wait: -1}}
	all[0].periodStart, all[1].periodStart = 0, 0
	all[0].begin(idle)
	began, exact := time.Now(), true
	run := func(periods int) {
		t.Helper()
		for range periods {
			all[0].pass(balancePeriod)
			for _, s := range all {
				if s.load.Load() > 0 {
					s.poll()
				}
			}
			exact = exact && time.Since(began) < balancePeriod
			began = time.Now()
		}
	}
	run(3) // the visits of new tasks are over
	var active []*recorder
	begin := func(count int, s stepped) {
		for range count {
			r := &recorder{next: Next{Again: true}}
			active = append(active, r)
			place([]*Loop{s.Loop}, newEntry(r))
		}
	}
	begin(second, all[1])
	run(3) // a loop knows of others what their latest period had
	begin(first, all[0])
	run(30)
	for i, r := range active {
		if r.visits < 30 {
			t.Errorf("active task %d was visited %d times", i, r.visits)
		}
	}
	expectVisits(t, "an idle task is not moved", idle, 1)
	moves := len(all[1].entries) - second
	if int(all[1].load.Load()) != second+moves || int(all[0].load.Load()) != 1+first-moves {
		t.Errorf("%d of %d tasks moved, but the loads are %d and %d", moves, first, all[0].load.Load(), all[1].load.Load())
	}
	return moves, exact
}

// A loop that was busy long ago has nothing to visit.
func TestOldActivityDoesNotCount(t *testing.T) {
	all := newStepped(t, 2)
	all[0].periodStart = 0
	all[1].active.Store(int64(newActivity(1000, all[1].group.now())))
	for range 2 {
		place([]*Loop{all[0].Loop}, newEntry(&recorder{next: Next{Again: true}}))
	}
	all[0].pass(10 * balancePeriod)
	for range 3 {
		all[0].pass(balancePeriod)
		all[0].poll()
	}
	if n := all[1].load.Load(); n != 1 {
		t.Errorf("%d tasks were moved, want 1", n)
	}
}

// A task that is moved loses no event, and its old loop knows it no more.
func TestMovedTaskLosesNoEvent(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	all := newStepped(t, 2)
	pair, bell := newPair(t), newBell(t)
	closeLater(t, pair[:]...)
	r := &recorder{next: Next{Wait: -1, Files: []*File{{FD: pair[0], Edge: true, Write: true}, {FD: bell}}}}
	sent, received, rung, drained := 0, 0, 0, 0
	r.during = func() { // the flags alone say when
		if r.found[0].Ready {
			received += drainSocket(t, pair[0])
		}
		if r.found[1].Ready {
			drained += int(eventfd.Drain(bell))
		}
	}
	maybe := func() {
		if random.IntN(3) == 0 {
			send(t, pair[1], "x")
			sent++
		}
		if random.IntN(3) == 0 {
			eventfd.Ring(bell)
			rung++
		}
	}
	e := all[0].begin(r)
	for i := range 500 {
		from, to := all[i%2], all[(i+1)%2]
		maybe()
		r.next.Again = random.IntN(3) == 0 // then it is moved while queued
		from.poll()
		r.next.Again = false
		maybe()
		active, _ := activity(to.active.Load()).tasks(from.now)
		from.move(e, to.Loop)
		if n, _ := activity(to.active.Load()).tasks(from.now); n != active+1 {
			t.Fatalf("move %d: %d tasks count as active at the new loop, want %d", i, n, active+1)
		}
		if len(from.entries) != 0 || len(from.ready) != 0 || len(from.timers) != 0 || from.load.Load() != 0 || to.load.Load() != 1 {
			t.Fatalf("move %d: %d tasks, %d queued, %d timers and load %d are left", i, len(from.entries), len(from.ready), len(from.timers), from.load.Load())
		}
		if from.fileAt(int32(bell)) != nil || from.isRegistered(pair[0]) || from.isRegistered(bell) {
			t.Fatalf("move %d: a file is left", i)
		}
		maybe()
		visits := r.visits
		to.poll()
		expectVisits(t, "a task that was moved is new", r, visits+1)
		maybe()
		for range 3 {
			to.poll()
		}
		if received != sent || drained != rung {
			t.Fatalf("move %d: %d of %d bytes, %d of %d rings", i, received, sent, drained, rung)
		}
		from.hold(true) // its goroutine would have ended
	}
}

// stressEnd is a task at one end of a pair of sockets. It answers each number
// with the next one.
type stressEnd struct {
	t        *testing.T
	g        *group
	random   *rand.Rand
	file     File
	next     uint64 // that it expects, or sends first
	last     uint64
	begins   bool
	readable bool
	buffer   [8]byte
	have     int
	blocked  *atomic.Int64
}

func (s *stressEnd) Visit(Round) Next {
	if s.begins {
		s.begins = false
		s.send()
	}
	s.readable = s.readable || s.file.Ready
	before := s.random.IntN(2) == 0
	if before {
		s.block()
	}
	if s.readable && !s.receive() {
		_ = unix.Close(s.file.FD)
		return Next{Done: true}
	}
	if !before {
		s.block()
	}
	return Next{Again: s.readable, Wait: -1, Files: []*File{&s.file}}
}

// block blocks now and then, some times for long enough to lose the loop.
func (s *stressEnd) block() {
	if s.random.IntN(400) == 0 {
		s.g.mayBlock()
		s.blocked.Add(1)
		time.Sleep(time.Duration(s.random.IntN(int(5 * rescuePeriod))))
	}
}

// receive reads and answers one number. It returns false after the last one.
func (s *stressEnd) receive() bool {
	n, err := unix.Read(s.file.FD, s.buffer[s.have:])
	switch {
	case errors.Is(err, unix.EAGAIN):
		s.readable = false
		return true
	case errors.Is(err, unix.EINTR):
		return true
	case err != nil || n == 0:
		if s.next <= s.last {
			s.t.Errorf("%d of %d numbers, then %v", s.next, s.last, err)
		}
		return false
	}
	if s.have += n; s.have < len(s.buffer) {
		return true
	}
	s.have = 0
	if got := binary.LittleEndian.Uint64(s.buffer[:]); got != s.next {
		s.t.Errorf("received %d, want %d", got, s.next)
		return false
	}
	s.next++
	if s.next > s.last {
		return false
	}
	s.send()
	return s.next <= s.last
}

func (s *stressEnd) send() {
	var message [8]byte
	binary.LittleEndian.PutUint64(message[:], s.next)
	for {
		if _, err := unix.Write(s.file.FD, message[:]); err == nil {
			break
		} else if !errors.Is(err, unix.EINTR) {
			s.t.Errorf("send %d: %v", s.next, err)
			break
		}
	}
	s.next++
}

// Tasks talk to each other while loops hand them over, lose them as they block,
// and get new ones. All numbers arrive.
func TestManyTasksReceiveAllMessages(t *testing.T) {
	const (
		pairs       = 25
		generations = 3
	)
	g, loops := newTestGroup(t, 2)
	var blocked atomic.Int64
	var all sync.WaitGroup
	finished := make(chan struct{})
	for i := range pairs {
		all.Go(func() {
			for generation := range generations {
				pair := newPair(t)
				var both sync.WaitGroup
				for k, fd := range pair {
					random := rand.New(rand.NewPCG(uint64(i), uint64(2*generation+k)))
					end := &stressEnd{
						t: t, g: g, random: random, file: File{FD: fd, Edge: i%3 > 0}, blocked: &blocked,
						last: 200, begins: k == 0,
					}
					both.Go(func() {
						e := newEntry(end)
						place(loops[:1], e) // others move to the second loop
						if err := <-e.ended; err != nil {
							t.Error(err)
						}
					})
				}
				both.Wait()
			}
		})
	}
	go func() {
		all.Wait()
		close(finished)
	}()
	receive(t, "all numbers arrive", finished)
	for i, l := range loops {
		if n := l.load.Load(); n != 0 {
			t.Errorf("the load of loop %d is %d", i, n)
		}
	}
	if blocked.Load() == 0 {
		t.Error("no task has blocked")
	}
	if loops[1].visits.Load() == 0 {
		t.Error("no task has moved")
	}
}
