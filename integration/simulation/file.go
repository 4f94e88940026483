package simulation

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// firstFile is the descriptor of the first file. No real one is as large.
const firstFile = 1 << 24

// file is a file descriptor that becomes readable: a bell, or a queue's.
type file struct {
	process  *Process
	number   int
	readable bool
	closed   bool
	waiting  waiters
}

// newFile returns a file that is not readable.
func (s *Scheduler) newFile(p *Process) *file {
	f := &file{process: p, number: firstFile + len(s.files)}
	s.files = append(s.files, f)
	return f
}

// file returns the file of a descriptor.
func (s *Scheduler) file(fd int32) *file {
	i := int(fd) - firstFile
	if i < 0 || i >= len(s.files) || s.files[i].closed {
		panic(fmt.Sprintf("simulation: poll of descriptor %d, not one of the simulation, or closed", fd))
	}
	return s.files[i]
}

// look sets Revents, and reports whether a descriptor is readable.
func (s *Scheduler) look(fds []unix.PollFd) bool {
	found := false
	for i := range fds {
		fds[i].Revents = 0
		if s.file(fds[i].Fd).readable {
			fds[i].Revents, found = unix.POLLIN, true
		}
	}
	return found
}

// FD returns the descriptor.
func (f *file) FD() int { return f.number }

// Ring makes it readable.
func (f *file) Ring() {
	if !f.readable {
		f.readable = true
		f.waiting.wake(f.process.scheduler)
	}
}

// Drain makes it unreadable.
func (f *file) Drain() { f.readable = false }

// Close closes it.
func (f *file) Close() error {
	if f.closed {
		f.process.scheduler.fail("%s closes descriptor %d twice", f.process.name, f.number)
	}
	f.closed = true
	return nil
}
