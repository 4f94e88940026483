package simulation

import (
	"errors"
	"time"

	"github.com/viablk/viablk/internal/takeover"
)

// diskItem names the disk among the items of a takeover.
const diskItem = "disk"

// open opens the disk: with the descriptor of the process before, or anew.
func (x *targetProcess) open(from *takeover.Inheritance) (*disk, error) {
	w := x.side.world
	fd, err := from.Claim(diskItem), error(nil)
	if fd < 0 {
		if fd, err = x.files.lock(w.medium); err != nil {
			return nil, err
		}
	}
	return openDisk(x.process, x.files, fd, w.referee), nil
}

// startSuccessor starts a process that takes over from the one that serves, and
// lets something happen to one of the two.
func (t *targetSide) startSuccessor(f Fault) {
	x := t.serving
	if !x.inService() || t.other.alive() {
		return
	}
	y := t.newProcess()
	t.other = y
	mine, theirs := newPipe(x, y)
	y.start(takeover.Inherit(takeover.NewPredecessorOf(theirs)))
	x.process.Go(func() { x.admit(takeover.NewSuccessor(mine, successor{x.process, y.process}), f.Lasts) })
	t.disturb(x, y, f)
}

// admit waits until a successor commits, and then tells the process to end.
func (x *targetProcess) admit(to *takeover.Successor, limit time.Duration) {
	if to.Committed() != nil || to.Waits() != nil {
		return // it has ended
	}
	if !x.inService() {
		_ = to.Expel(errEnded)
		return
	}
	x.leaving = departing{to, []takeover.Item{{Name: diskItem, FD: x.files.add(x.files.open[x.disk.fd])}}}
	x.limit = limit
	x.told.Set()
}

// misfortune is what happens amid a takeover.
type misfortune int

const (
	noMisfortune misfortune = iota
	killSuccessor
	killPredecessor
	stopSuccessor // for longer than its predecessor waits
	stopPredecessor
)

// misfortune returns that of a takeover: every other one has none.
func (f Fault) misfortune() misfortune {
	return [8]misfortune{killSuccessor, killPredecessor, stopSuccessor, stopPredecessor}[f.Pick%8]
}

// disturb lets the misfortune of a takeover happen.
func (t *targetSide) disturb(before, after *targetProcess, f Fault) {
	w := t.world
	when := 7 * time.Duration(f.Pick>>8) % [...]time.Duration{200 * time.Microsecond, 5 * time.Millisecond, 100 * time.Millisecond}[f.Pick>>4%3]
	again := func() { w.after(time.Second, t.start) }
	switch f.misfortune() {
	case killSuccessor:
		w.after(when, func() { after.kill(); again() })
	case killPredecessor:
		w.after(when, func() { before.kill(); again() })
	case stopSuccessor:
		w.after(when, func() { w.stop(after.process, longStop) })
	case stopPredecessor:
		w.after(when, func() { w.stop(before.process, longStop/4) })
	}
}

// longStop is longer than a process waits for its successor.
const longStop = 12 * time.Second

// errEnded is that a process ends before it has a successor.
var errEnded = errors.New("the target ends")
