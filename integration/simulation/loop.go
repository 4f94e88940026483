package simulation

import (
	"context"
	"slices"
	"time"

	"github.com/viablk/viablk/internal/loop"
	"github.com/viablk/viablk/internal/sched"
)

// loopsPerProcess is how many loops drive the tasks of a process. Now and then
// a task moves from one to the other, and a loop stalls.
const loopsPerProcess = 2

// Of so many iterations of a loop one begins with a move of a task to the other
// loop, and one with a stall, of less than stallTime.
const (
	moveOnes  = 64
	stallOnes = 256
	stallTime = 2 * time.Millisecond
)

// simLoop is a loop of a process.
type simLoop struct {
	process *Process
	driven  []*driven
	added   waiters
	running bool
}

// driven is what a loop drives.
type driven struct {
	task     loop.Task
	files    []*loop.File
	deadline time.Duration // negative: none
	again    bool
	done     *sched.Event
}

// Drive implements [sched.Scheduler]. A loop visits what it drives in an order
// that the seed decides.
func (p *Process) Drive(t loop.Task) error {
	d := &driven{task: t, again: true, done: p.NewEvent()}
	least := &p.loops[0]
	for i := range p.loops {
		if l := &p.loops[i]; len(l.driven) < len(least.driven) {
			least = l
		}
	}
	least.add(p, d)
	p.Wait(context.Background(), -1, d.done)
	return nil
}

// add gives the loop something to drive.
func (l *simLoop) add(p *Process, d *driven) {
	l.process = p
	l.driven = append(l.driven, d)
	if l.running {
		l.added.wake(p.scheduler)
		return
	}
	l.running = true
	p.Go(l.run)
}

// run drives until nothing is left.
func (l *simLoop) run() {
	p, s := l.process, l.process.scheduler
	for len(l.driven) > 0 {
		if s.random.Uint32()%moveOnes == 0 {
			l.move()
			continue
		}
		if s.random.Uint32()%stallOnes == 0 {
			s.block(between(s.random, 0, stallTime))
		}
		ready := l.ready()
		if len(ready) == 0 {
			l.sleep()
			continue
		}
		s.random.Shuffle(len(ready), func(i, k int) { ready[i], ready[k] = ready[k], ready[i] })
		for _, d := range ready {
			l.visit(d)
		}
		p.spins()
	}
	l.running = false
}

// move hands what it drives first to the other loop.
func (l *simLoop) move() {
	for i := range l.process.loops {
		if other := &l.process.loops[i]; other != l {
			d := l.driven[0]
			l.driven = slices.Delete(l.driven, 0, 1)
			d.again = true
			other.add(l.process, d)
			return
		}
	}
}

// ready returns what is to be visited now.
func (l *simLoop) ready() []*driven {
	s := l.process.scheduler
	var ready []*driven
	for _, d := range l.driven {
		found := d.again || d.deadline >= 0 && d.deadline <= s.now
		if !d.again { // else its files may be closed
			for _, f := range d.files {
				f.Ready = s.file(int32(f.FD)).readable
				found = found || f.Ready
			}
		}
		if found {
			ready = append(ready, d)
		}
	}
	return ready
}

// visit visits d.
func (l *simLoop) visit(d *driven) {
	next := d.task.Visit(loop.Round{Alone: len(l.driven) == 1})
	for _, f := range d.files {
		f.Ready = false
	}
	if next.Done {
		l.driven = slices.DeleteFunc(l.driven, func(other *driven) bool { return other == d })
		d.done.Set()
		return
	}
	if d.again = next.Again; d.again {
		return
	}
	d.files, d.deadline = next.Files, -1
	if next.Wait >= 0 {
		d.deadline = l.process.scheduler.now + next.Wait
	}
}

// sleep blocks until something is to be visited, or was added.
func (l *simLoop) sleep() {
	s := l.process.scheduler
	wait := time.Duration(-1)
	lists := []*waiters{&l.added}
	for _, d := range l.driven {
		if left := d.deadline - s.now; d.deadline >= 0 && (wait < 0 || left < wait) {
			wait = left
		}
		for _, f := range d.files {
			lists = append(lists, &s.file(int32(f.FD)).waiting)
		}
	}
	s.block(wait, lists...)
}
