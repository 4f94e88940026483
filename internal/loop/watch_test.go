package loop

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
)

// dupTo makes number another descriptor of a file, and returns number.
func dupTo(t testing.TB, fd, number int) int {
	t.Helper()
	if err := unix.Dup3(fd, number, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	return number
}

// freeNumber returns a descriptor number that nothing has, high enough that
// nothing gets it meanwhile.
func freeNumber(t testing.TB) int {
	t.Helper()
	bell := newBell(t)
	number, err := unix.FcntlInt(uintptr(bell), unix.F_DUPFD_CLOEXEC, 700)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(number)
	return number
}

func TestListOfFilesMayChange(t *testing.T) {
	s := newStepped(t, 1)[0]
	first, second, pair := newBell(t), newBell(t), newPair(t)
	closeLater(t, pair[:]...)
	files := []*File{{FD: first}, {FD: second}, {FD: pair[0], Edge: true, Write: true}}
	r := &recorder{next: Next{Wait: -1, Files: files[:1]}}
	visit := func(files ...*File) { // with this list
		t.Helper()
		before := r.visits
		r.during = func() { r.next.Files = files }
		eventfd.Ring(first)
		s.step()
		eventfd.Drain(first)
		r.during = nil
		expectVisits(t, "the list changes", r, before+1)
	}
	s.begin(r)
	eventfd.Ring(second)
	s.poll()
	expectVisits(t, "a file that is not yet in the list", r, 1)
	visit(files...)
	s.step()
	if f := r.found; f[0].Ready || !f[1].Ready || f[2].Ready || !f[2].Writable {
		t.Fatalf("files that were added: %+v", f)
	}
	visit(files[0])
	before := r.visits
	send(t, pair[1], "unread")
	s.poll()
	expectVisits(t, "files that were removed", r, before)
	if s.isRegistered(second) || s.isRegistered(pair[0]) {
		t.Fatal("files that were removed are still registered")
	}
	eventfd.Drain(second)
	visit(files[2], files[0]) // in another order
	s.step()
	if f := r.found; !f[0].Ready || f[1].Ready {
		t.Fatalf("a file that was added once more: %+v", f)
	}
	visit(files[2], &File{FD: first}, files[1])
	s.poll()
	before = r.visits
	eventfd.Ring(first)
	s.step()
	expectVisits(t, "another File of a descriptor", r, before+1)
	if f := r.found; f[0].Ready || !f[1].Ready || f[2].Ready {
		t.Fatalf("another File of a descriptor: %+v", f)
	}
}

// A file that stays readable wakes its task as long as it is not watched for
// edges, whatever it was when it was added.
func TestFileMayBecomeEdgeTriggeredAndBack(t *testing.T) {
	s := newStepped(t, 1)[0]
	f := &File{FD: newBell(t)}
	r := &recorder{next: Next{Wait: -1, Files: []*File{f}}}
	s.begin(r)
	eventfd.Ring(f.FD)
	for _, edge := range []bool{false, true, false, true} {
		r.during = func() { f.Edge = edge }
		s.step()
		r.during = nil
		s.poll() // an edge-triggered file is told once more when it becomes one
		before := r.visits
		s.poll()
		if again := r.visits > before; again == edge {
			t.Fatalf("edge %v: a readable file wakes again: %v", edge, again)
		}
		if edge {
			eventfd.Ring(f.FD)
		}
	}
}

// A file that is closed and opened anew within the visit, with the same number,
// is another Version.
func TestReopenedFileWakesItsTask(t *testing.T) {
	for _, edge := range []bool{false, true} {
		s := newStepped(t, 1)[0]
		number := freeNumber(t)
		closeLater(t, number)
		var peers [3]int
		f := &File{FD: number, Edge: edge, Write: edge}
		opened := func(i int) {
			pair := newPair(t)
			peers[i] = pair[1]
			closeLater(t, peers[i])
			dupTo(t, pair[0], number) // closes the one that was there
			_ = unix.Close(pair[0])
			f.Version++
		}
		opened(0)
		r := &recorder{next: Next{Wait: -1, Files: []*File{f}}}
		s.begin(r)
		s.poll()
		for i := range peers {
			before := r.visits
			send(t, peers[i], "data")
			if i+1 < len(peers) {
				r.during = func() { opened(i + 1) }
			}
			s.step()
			expectVisits(t, "a message", r, before+1)
			r.during = nil
			if !r.found[0].Ready {
				t.Fatalf("file %d is not ready", i)
			}
			s.poll() // an edge-triggered socket is writable
			if f := r.found[0]; i+1 < len(peers) && edge && (f.Ready || !f.Writable) {
				t.Fatalf("after file %d was opened: %+v", i+1, f)
			}
			before = r.visits
			if edge || i+1 < len(peers) {
				s.poll()
				expectVisits(t, "told already", r, before)
			}
		}
	}
}

// A file that the task closes in the visit and no longer lists is forgotten.
func TestClosedFileIsForgotten(t *testing.T) {
	s := newStepped(t, 1)[0]
	bell, pair := newBell(t), newPair(t)
	closeLater(t, pair[1])
	files := []*File{{FD: pair[0], Edge: true, Write: true}, {FD: bell}}
	r := &recorder{next: Next{Wait: -1, Files: files}}
	s.begin(r)
	s.step()
	number := pair[0]
	r.during = func() {
		_ = unix.Close(number)
		files[0].FD = -1
	}
	send(t, pair[1], "unread")
	s.step()
	r.during = nil
	before := r.visits
	s.poll()
	expectVisits(t, "the file is closed", r, before)
	if s.fileAt(int32(number)) != nil {
		t.Fatal("the loop still has the file")
	}
	eventfd.Ring(bell)
	s.step()
	expectVisits(t, "the other file", r, before+1)
}

// reuse is two tasks of a loop: closer closes its file during a visit after
// which it says Again, and opener opens another one of the same number.
type reuse struct {
	stepped
	closer, opener *recorder
	entry          *entry // of closer
	number, peer   int    // of opener
	bell           int    // of closer, besides
}

func newReuse(t *testing.T, s stepped, edge bool) *reuse {
	t.Helper()
	u := &reuse{stepped: s, number: freeNumber(t), bell: newBell(t)}
	closeLater(t, u.number)
	first, second := newPair(t), newPair(t)
	u.peer = second[1]
	closeLater(t, first[1], second[0], second[1])
	dupTo(t, first[0], u.number)
	_ = unix.Close(first[0])
	u.closer = &recorder{next: Next{Wait: -1, Files: []*File{{FD: u.bell}, {FD: u.number, Edge: edge}}}}
	u.opener = &recorder{next: Next{Again: true}}
	u.entry = s.begin(u.closer)
	s.begin(u.opener)
	u.closer.during = func() {
		_ = unix.Close(u.number)
		u.closer.next.Again, u.closer.during = true, nil
	}
	u.opener.during = func() {
		if u.closer.next.Again {
			dupTo(t, second[0], u.number)
			u.opener.next = Next{Wait: -1, Files: []*File{{FD: u.number, Edge: edge}}}
			u.opener.during = nil
		}
	}
	eventfd.Ring(u.bell)
	s.step() // closes
	eventfd.Drain(u.bell)
	s.step() // opens, if opener was visited before closer
	if u.opener.next.Again {
		t.Fatal("the number is not in use again")
	}
	return u
}

// check checks that opener gets the events of the number, and closer does not.
func (u *reuse) check(when string) {
	t := u.t
	t.Helper()
	if u.opener.found = nil; len(u.opener.next.Files) > 0 {
		u.poll() // registers, and tells that the socket is writable
		u.poll()
	}
	visits, before := u.closer.visits, u.opener.visits
	send(t, u.peer, "data")
	u.poll()
	if u.opener.visits != before+1 || !u.opener.found[0].Ready {
		t.Fatalf("%s: the file is not ready to its task: %+v", when, u.opener.found)
	}
	if drainSocket(t, u.number) != len("data") {
		t.Fatalf("%s: no data", when)
	}
	if again := u.closer.next.Again; !again && u.closer.visits != visits {
		t.Fatalf("%s: the task that closed the number gets its events", when)
	}
	if f := u.closer.found; len(f) > 1 && f[1].Ready {
		t.Fatalf("%s: the closed file is ready", when)
	}
}

// The registration of a number lasts when another task, which closed that
// number, is done with it.
func TestNumberBelongsToTheTaskThatOpenedIt(t *testing.T) {
	for _, edge := range []bool{false, true} {
		for name, end := range map[string]func(u *reuse, other *Loop){
			"removed from the list": func(u *reuse, _ *Loop) {
				u.closer.next = Next{Wait: -1, Files: u.closer.next.Files[:1]}
				u.poll()
			},
			"done": func(u *reuse, _ *Loop) {
				u.closer.next = Next{Done: true}
				u.poll()
			},
			"moved": func(u *reuse, other *Loop) {
				u.closer.next = Next{Wait: -1, Files: u.closer.next.Files[:1]}
				u.move(u.entry, other)
			},
		} {
			t.Run(name, func(t *testing.T) {
				all := newStepped(t, 2)
				u := newReuse(t, all[0], edge)
				u.check("registered by its new task")
				end(u, all[1].Loop)
				u.check("the old task has forgotten it")
			})
		}
	}
}

// A task may hand over an open file to another task of its loop, which lists
// it before the first one has ceased to.
func TestOpenFileIsHandedOver(t *testing.T) {
	for _, edge := range []bool{false, true} {
		s := newStepped(t, 1)[0]
		pair := newPair(t)
		closeLater(t, pair[:]...)
		from := &recorder{next: Next{Wait: time.Hour, Files: []*File{{FD: pair[0], Edge: edge}}}}
		s.begin(from)
		s.poll()
		to := &recorder{next: Next{Wait: -1, Files: []*File{{FD: pair[0], Edge: edge}}}}
		e := s.begin(to)
		s.poll()
		for range 2 {
			visits, before := from.visits, to.visits
			send(t, pair[1], "data")
			s.step()
			expectVisits(t, "the new task", to, before+1)
			expectVisits(t, "the old task", from, visits)
			if !to.found[0].Ready || drainSocket(t, pair[0]) == 0 {
				t.Fatalf("not ready: %+v", to.found[0])
			}
			from.next.Files = nil // from its next visit on
			s.pass(2 * time.Hour)
			s.poll()
		}
		select {
		case err := <-e.ended:
			t.Fatal(err)
		default:
		}
	}
}

// Descriptors beyond the events of one wait all get their visits.
func TestMoreFilesAreReadyThanOneWaitReturns(t *testing.T) {
	s := newStepped(t, 1)[0]
	tasks := make([]*recorder, 3*len(s.events))
	for i := range tasks {
		bell := newBell(t)
		tasks[i] = &recorder{next: Next{Wait: -1, Files: []*File{{FD: bell}}}}
		tasks[i].during = func() { eventfd.Drain(bell) }
		s.begin(tasks[i])
	}
	for _, r := range tasks {
		eventfd.Ring(r.next.Files[0].FD)
	}
	for range 4 { // the bell of the loop is one, too
		s.poll()
	}
	for i, r := range tasks {
		if r.visits != 2 || !r.found[0].Ready {
			t.Errorf("task %d of %d: %d visits", i, len(tasks), r.visits)
		}
	}
}

// A task hears that a socket is writable while it asks for that, and not of
// each message that its peer takes.
func TestWritableIfAsked(t *testing.T) {
	s := newStepped(t, 1)[0]
	pair := newPair(t)
	closeLater(t, pair[:]...)
	socket := &File{FD: pair[0], Edge: true}
	r := &recorder{next: Next{Wait: -1, Files: []*File{socket}}}
	e := s.begin(r)
	taken := func() {
		send(t, pair[0], "a message")
		if n := drainSocket(t, pair[1]); n == 0 {
			t.Fatal("the message has not arrived")
		}
	}
	for range 2 {
		visits := r.visits
		taken()
		s.poll()
		expectVisits(t, "the peer took a message", r, visits)
		socket.Write = true
		s.push(e)
		s.poll()
		s.step() // it is writable from the beginning
		expectFlags(t, "it asks", r, false, true, false)
		taken()
		s.step()
		expectFlags(t, "the peer took another one", r, false, true, false)
		socket.Write = false
		s.push(e)
		s.poll()
	}
}
