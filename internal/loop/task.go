package loop

import "time"

// Task is what a loop drives: a connection, for instance. A loop visits it when
// it is new, when one of its files is ready, when the time that it gave has
// passed, and when it asked to be visited again. One goroutine at a time visits
// a task, and sees what the one before it did; it need not be the same one.
type Task interface {
	// Visit does a share of what there is to do: other tasks of the loop wait
	// meanwhile. It does not sleep. Before it does what may block after all, a
	// call of a file system for instance, it calls [MayBlock]. A panic ends
	// the process.
	Visit(Round) Next
}

// Round says how a visit comes about.
type Round struct {
	// Alone: no other task of the loop had anything to do for a while. The task
	// may poll for a short time before it returns.
	Alone bool

	// Yielded: the loop passed through the scheduler since the last visit.
	Yielded bool
}

// Next says when a loop is to visit the task again. The zero Next is: when a
// file is ready, and there is none, or at once.
type Next struct {
	Done  bool          // never; the rest has no meaning
	Again bool          // after the other tasks have been visited; the rest has no meaning
	Wait  time.Duration // then at the latest; negative: no limit

	// Files: or when one of them is ready. The loop reads the slice before the
	// next visit alone.
	Files []*File

	// Source, if not nil: or when it has something. It is armed: then the
	// descriptor that is its own, one of Files, becomes ready.
	Source Source
}

// Source is where work of a task comes from peers that can go by a flag of this
// process, package sleepflag: [via.CQ] is one.
type Source interface {
	// Share has the peers go by a flag, which the loop sets while it sleeps,
	// instead of the descriptor alone. A negative flag ends that, as far as the
	// peers are told; Pending then finds what they had been silent about. It
	// returns false if a peer cannot; then nothing has changed.
	Share(flag int) bool

	// Pending reports whether there is something to do.
	Pending() bool

	// Disarm ends what armed the source, and Share. The next visit looks at it
	// in any case.
	Disarm()
}

// File is a file descriptor that wakes a task. The task owns it, and keeps the
// descriptor open until it has left the file out of [Next.Files] or the visit
// that closes it has ended. A duplicate that stays open after the descriptor
// was closed by a visit would wake whatever gets its number next.
type File struct {
	FD int // negative: none

	// Version is another one when FD has become another file of the same
	// number.
	Version uint64

	// Edge: the file wakes the task once with each change, as suits a socket:
	// the task then asks the socket until that would block. Otherwise it does
	// as long as it is readable.
	Edge bool

	// Write: the file wakes the task when it is writable, too. A socket whose
	// peer takes data would wake it with each reply.
	Write bool

	// The loop has found since the last visit:
	Ready    bool // readable, or closed by the peer
	Writable bool // if Write was set; or closed by the peer
	Closed   bool // the peer sends no more, or is gone
	Gone     bool // the peer is gone
}

// clear forgets what was found.
func (f *File) clear() { f.Ready, f.Writable, f.Closed, f.Gone = false, false, false, false }

// watched is a file in the epoll set of a loop.
type watched struct {
	entry   *entry
	file    *File
	fd      int32
	version uint64
	edge    bool
	write   bool
	seen    uint32 // the latest list of files that has it
}

// entry is a task of a loop. The goroutine of the loop uses it, between two
// loops the one that moves it.
type entry struct {
	task      Task
	index     int // in Loop.entries
	files     []*watched
	list      uint32 // counts the lists of files
	queued    bool   // in Loop.ready
	deadline  time.Duration
	timer     int // index in Loop.timers; -1: none
	period    uint32
	yields    uint64
	visited   time.Duration // when it was last
	source    Source        // while it is in Loop.sharing
	sharing   int           // its index there
	ended     chan error    // of Drive
	forgotten chan struct{} // closed when a loop that was overtaken has forgotten it
}
