package loop

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/eventfd"
)

// blocker is a task that blocks in its next visit if the test wants it. Before
// that it empties the files that the loop says are ready, and those alone.
type blocker struct {
	t     testing.TB
	g     *group
	bell  int
	peer  int // of its edge-triggered socket
	files []*File

	block, done, again     atomic.Bool
	blocked, release       chan struct{}
	visits, rung, received atomic.Int64
}

func newBlocker(t testing.TB, g *group) *blocker {
	pair := newPair(t)
	closeLater(t, pair[:]...)
	b := &blocker{t: t, g: g, bell: newBell(t), peer: pair[1], blocked: make(chan struct{}, 1), release: make(chan struct{})}
	b.files = []*File{{FD: b.bell}, {FD: pair[0], Edge: true, Write: true}}
	return b
}

func (b *blocker) Visit(Round) Next {
	if b.files[0].Ready {
		b.rung.Add(int64(eventfd.Drain(b.bell)))
	}
	if b.files[1].Ready {
		b.received.Add(int64(drainSocket(b.t, b.files[1].FD)))
	}
	b.visits.Add(1)
	if b.block.CompareAndSwap(true, false) {
		b.g.mayBlock()
		b.blocked <- struct{}{}
		<-b.release
	}
	return Next{Done: b.done.Load(), Again: b.again.Swap(false), Wait: -1, Files: b.files}
}

// blockNext has the task block, and waits for that.
func (b *blocker) blockNext() {
	b.t.Helper()
	b.block.Store(true)
	eventfd.Ring(b.bell)
	receive(b.t, "the task blocks", b.blocked)
}

// counter is a task that counts how often its eventfd was rung, until the test
// ends it.
type counter struct {
	bell   int
	files  []*File
	counts chan uint64
	done   atomic.Bool
}

func newCounter(t testing.TB) *counter {
	c := &counter{bell: newBell(t), counts: make(chan uint64, 100)}
	c.files = []*File{{FD: c.bell}}
	return c
}

func (c *counter) Visit(Round) Next {
	if c.files[0].Ready {
		c.counts <- eventfd.Drain(c.bell)
	}
	return Next{Done: c.done.Load(), Wait: -1, Files: c.files}
}

// count rings, and waits until the task has counted that.
func (c *counter) count(t testing.TB) {
	t.Helper()
	eventfd.Ring(c.bell)
	receive(t, "another task goes on", c.counts)
}

func (c *counter) end(t testing.TB, ended <-chan error) {
	t.Helper()
	c.done.Store(true)
	c.count(t)
	if err := receive(t, "another task ends", ended); err != nil {
		t.Error(err)
	}
}

// visitNew has the loop drive a new task, and waits until that has ended.
func visitNew(t testing.TB, l *Loop) {
	t.Helper()
	e := newEntry(visitor(func(Round) Next { return Next{Done: true} }))
	place([]*Loop{l}, e)
	if err := receive(t, "a new task is visited", e.ended); err != nil {
		t.Error(err)
	}
}

// A task that blocks stops neither the others of its loop nor new ones. Then it
// is visited again, and has lost no event.
func TestBlockedTaskDoesNotStopOthers(t *testing.T) {
	g, loops := newTestGroup(t, 1)
	c := newCounter(t)
	counting := start(g, c)
	var ticks atomic.Int64
	var stop atomic.Bool
	ticking := start(g, visitor(func(Round) Next {
		ticks.Add(1)
		return Next{Done: stop.Load(), Wait: time.Millisecond}
	}))
	b := newBlocker(t, g)
	blocking := start(g, b)
	var sent, rung int64
	change := func() {
		send(t, b.peer, "data")
		eventfd.Ring(b.bell)
		sent, rung = sent+int64(len("data")), rung+1
	}
	for i := range 3 {
		b.blockNext()
		rung++
		change() // most likely while the loop still has the task's files
		for range 5 {
			c.count(t)
		}
		visitNew(t, loops[0])
		before := ticks.Load()
		eventually(t, "times pass", func() bool { return ticks.Load() > before+2 })
		if n := loops[0].load.Load(); n != 2 {
			t.Fatalf("the load is %d without the blocked task, want 2", n)
		}
		change() // while the loop does not
		visits := b.visits.Load()
		b.again.Store(i == 1) // visited anew in any case
		b.release <- struct{}{}
		eventually(t, "the task is visited after it was blocked", func() bool { return b.visits.Load() > visits })
		eventually(t, "all bytes arrive", func() bool { return b.received.Load() == sent })
		eventually(t, "all rings arrive", func() bool { return b.rung.Load() == rung })
		if n := loops[0].load.Load(); n != 3 {
			t.Fatalf("the load is %d afterwards, want 3", n)
		}
		change()
		eventually(t, "bytes arrive as before", func() bool { return b.received.Load() == sent })
	}

	b.blockNext()
	b.done.Store(true)
	c.count(t)
	visits := b.visits.Load()
	b.release <- struct{}{}
	if err := receive(t, "a visit that was blocked ends the task", blocking); err != nil {
		t.Error(err)
	}
	if n := b.visits.Load(); n != visits {
		t.Errorf("%d visits of a task that was done", n-visits)
	}
	stop.Store(true)
	if err := receive(t, "another task ends", ticking); err != nil {
		t.Error(err)
	}
	c.end(t, counting)
	if n := loops[0].load.Load(); n != 0 {
		t.Errorf("the load is %d without tasks", n)
	}
}

// Tasks that were to be visited after the one that blocks are visited, new ones
// and those whose files were found ready.
func TestTasksQueuedBehindABlockedOneAreVisited(t *testing.T) {
	s := newStepped(t, 1)[0]
	g := s.group
	b := newBlocker(t, g)
	blocking := s.begin(b)
	behind := newBlocker(t, g) // does not block
	behindEnded := s.begin(behind)
	var rounds atomic.Int64
	var stop atomic.Bool
	again := s.begin(visitor(func(Round) Next {
		rounds.Add(1)
		return Next{Done: stop.Load(), Again: true}
	}))
	s.poll()
	s.poll()

	// In the next iteration: the one that says Again, the one that blocks, then
	// the one behind it. New ones follow in the one after that.
	b.block.Store(true)
	eventfd.Ring(b.bell)
	send(t, behind.peer, "data")
	go s.routineRun()
	receive(t, "the task blocks", b.blocked)
	eventually(t, "the event of a task behind it arrives", func() bool { return behind.received.Load() == int64(len("data")) })
	before := rounds.Load()
	eventually(t, "the task that says Again is visited", func() bool { return rounds.Load() > before+2 })
	behind.done.Store(true)
	eventfd.Ring(behind.bell)
	if err := receive(t, "the task behind it ends", behindEnded.ended); err != nil {
		t.Error(err)
	}
	b.done.Store(true)
	b.release <- struct{}{}
	stop.Store(true)
	for _, e := range []*entry{blocking, again} {
		if err := receive(t, "tasks end", e.ended); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "the goroutine ends", func() bool { return !s.isRunning() })

	// New ones behind it.
	s.hold(true)
	b = newBlocker(t, g)
	b.block.Store(true)
	b.done.Store(true)
	entries := []*entry{newEntry(b)}
	for range 5 {
		entries = append(entries, newEntry(visitor(func(Round) Next { return Next{Done: true} })))
	}
	for _, e := range entries {
		place([]*Loop{s.Loop}, e)
	}
	go s.routineRun()
	receive(t, "the task blocks", b.blocked)
	for _, e := range entries[1:] {
		if err := receive(t, "new tasks behind it are visited", e.ended); err != nil {
			t.Error(err)
		}
	}
	b.release <- struct{}{}
	if err := receive(t, "the task ends", entries[0].ended); err != nil {
		t.Error(err)
	}
	eventually(t, "the goroutine ends", func() bool { return !s.isRunning() })
}

// Two tasks of a loop block, one after the other.
func TestSecondTaskMayBlockMeanwhile(t *testing.T) {
	g, _ := newTestGroup(t, 1)
	c := newCounter(t)
	counting := start(g, c)
	var both [2]*blocker
	var blocking [2]<-chan error
	for i := range both {
		both[i] = newBlocker(t, g)
		blocking[i] = start(g, both[i])
	}
	for range 2 {
		for _, b := range both {
			b.blockNext()
		}
		c.count(t)
		for _, b := range both {
			send(t, b.peer, "data")
			b.release <- struct{}{}
		}
		for _, b := range both {
			eventually(t, "all bytes arrive", func() bool { return b.received.Swap(0) == int64(len("data")) })
		}
	}
	for i, b := range both {
		b.done.Store(true)
		eventfd.Ring(b.bell)
		if err := receive(t, "the task ends", blocking[i]); err != nil {
			t.Error(err)
		}
	}
	c.end(t, counting)
}

// A loop is left to a task that blocks as long as it has no other one.
func TestTaskThatBlocksAloneKeepsItsLoop(t *testing.T) {
	g, loops := newTestGroup(t, 2)
	alone, b, c := newBlocker(t, g), newBlocker(t, g), newCounter(t)
	entries := []*entry{newEntry(alone), newEntry(b), newEntry(c)}
	place(loops[:1], entries[0])
	alone.blockNext()
	visit := loops[0].visits.Load()
	place(loops[1:], entries[1])
	b.blockNext()
	place(loops[1:], entries[2])
	c.count(t) // so the first loop was looked at twice, too
	if now := loops[0].visits.Load(); now != visit || visit%2 != 1 || loops[0].load.Load() != 1 {
		t.Errorf("a task that blocks alone has lost its loop: visits %d and %d, load %d", visit, now, loops[0].load.Load())
	}
	visitNew(t, loops[0])
	if now := loops[0].visits.Load(); now == visit || loops[0].load.Load() != 0 {
		t.Errorf("a task that blocks has kept its loop: visits %d and %d, load %d", visit, now, loops[0].load.Load())
	}
	for i, b := range []*blocker{alone, b} {
		b.done.Store(true)
		b.release <- struct{}{}
		if err := receive(t, "the task ends", entries[i].ended); err != nil {
			t.Error(err)
		}
	}
	c.end(t, entries[2].ended)
}

// A visit that has ended by the time of the look keeps its loop.
func TestVisitThatEndsInTimeKeepsItsLoop(t *testing.T) {
	s := newStepped(t, 1)[0]
	r := &recorder{next: Next{Again: true}}
	s.begin(r)
	s.begin(&recorder{next: Next{Wait: -1}})
	visits := s.visits.Load()
	for visit := range visits {
		s.overtake(visit)
	}
	if n := s.visits.Load(); n != visits || s.load.Load() != 2 || len(s.entries) != 2 {
		t.Fatalf("visits are %d, were %d; load %d, %d tasks", n, visits, s.load.Load(), len(s.entries))
	}
	before := r.visits
	s.step()
	expectVisits(t, "the loop goes on", r, before+1)
}

// A task whose visit was blocked goes on when its old loop has forgotten it,
// not earlier.
func TestBlockedTaskWaitsForItsOldLoop(t *testing.T) {
	s := newStepped(t, 1)[0]
	e := newEntry(&recorder{next: Next{Wait: -1}})
	forgotten, resumed := e.forgotten, make(chan struct{})
	go func() {
		s.group.resume(e, Next{Wait: -1})
		close(resumed)
	}()
	for range 1000 {
		runtime.Gosched()
		if s.load.Load() != 0 {
			t.Fatal("the task has a new loop already")
		}
	}
	close(forgotten)
	receive(t, "the task goes on", resumed)
	if s.load.Load() != 1 || e.forgotten == forgotten {
		t.Fatal("the task has no new loop")
	}
}

// The goroutine that looks lasts as long as a task blocks, ends some time after
// that, and is started anew.
func TestRescueLastsAsLongAsATaskBlocks(t *testing.T) {
	empty := newGroup(1)
	empty.mayBlock() // no loop to look at
	g, loops := newTestGroup(t, 1)
	b := newBlocker(t, g)
	blocking := start(g, b)
	b.blockNext()
	time.Sleep((rescuePolls + 5) * rescuePeriod) // longer than it looks otherwise
	visitNew(t, loops[0])
	b.release <- struct{}{}
	for _, g := range []*group{empty, g} {
		eventually(t, "the goroutine ends", func() bool { return !g.rescue.running.Load() })
	}
	b.blockNext()
	visitNew(t, loops[0])
	b.done.Store(true)
	b.release <- struct{}{}
	if err := receive(t, "the task ends", blocking); err != nil {
		t.Error(err)
	}
}

// A visit finds what has changed since the one before it, and nothing older,
// though that one was blocked.
func TestBlockedVisitForgetsWhatItFound(t *testing.T) {
	g, _ := newTestGroup(t, 1)
	c := newCounter(t)
	counting := start(g, c)
	bell := newBell(t)
	files := []*File{{FD: bell}}
	blocked, release := make(chan struct{}), make(chan struct{})
	visits, stale := 0, 0
	ended := start(g, visitor(func(Round) Next {
		visits++
		rung := uint64(0)
		if files[0].Ready {
			if rung = eventfd.Drain(bell); rung == 0 {
				stale++
			}
		}
		if rung > 0 {
			visits = 0
			g.mayBlock()
			blocked <- struct{}{}
			<-release
		}
		return Next{Done: visits == 4, Wait: time.Millisecond, Files: files}
	}))
	eventfd.Ring(bell)
	receive(t, "the task blocks", blocked)
	c.count(t)
	release <- struct{}{}
	if err := receive(t, "the task ends", ended); err != nil {
		t.Error(err)
	}
	if stale > 0 {
		t.Errorf("%d visits were told of what the blocked one had found", stale)
	}
	c.end(t, counting)
}
