package simulation

import (
	"context"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/viablk/viablk/internal/takeover"
)

// description is an open file description of a medium, whose lock lasts as long
// as a descriptor of it.
type description struct {
	medium      *medium
	descriptors int
}

// descriptors are those that a process has.
type descriptors struct {
	open map[int]*description
	last int
}

// newDescriptors returns the descriptors of a process. They end with it.
func newDescriptors(p *Process) *descriptors {
	t := &descriptors{open: make(map[int]*description)}
	p.onKill = append(p.onKill, t.closeAll)
	return t
}

// lock opens a medium.
func (t *descriptors) lock(m *medium) (int, error) {
	if m.lockedBy != nil {
		return -1, fmt.Errorf("another process has the disk: %w", syscall.EAGAIN)
	}
	m.lockedBy = &description{medium: m}
	return t.add(m.lockedBy), nil
}

// add adds a descriptor.
func (t *descriptors) add(d *description) int {
	d.descriptors++
	t.last++
	t.open[t.last] = d
	return t.last
}

// close closes a descriptor.
func (t *descriptors) close(fd int) {
	t.open[fd].release()
	delete(t.open, fd)
}

func (d *description) release() {
	if d.descriptors--; d.descriptors == 0 {
		d.medium.lockedBy = nil
	}
}

func (t *descriptors) closeAll() {
	for _, d := range t.open { // in any order: they are dropped all
		d.release()
	}
	clear(t.open)
}

// pipe is an end of the channel between two targets.
type pipe struct {
	process *Process
	files   *descriptors
	peer    *pipe
	inbox   []parcel
	arrived waiters
	until   time.Duration // 0: no limit
	closed  bool
}

// parcel is a message on its way, and what its descriptor is of.
type parcel struct {
	message takeover.Message
	file    *description // nil: it has none
}

var _ takeover.Channel = (*pipe)(nil)

// newPipe returns a channel between two processes. An end ends with its
// process.
func newPipe(a, b *targetProcess) (x, y *pipe) {
	x, y = &pipe{process: a.process, files: a.files}, &pipe{process: b.process, files: b.files}
	x.peer, y.peer = y, x
	for _, end := range []*pipe{x, y} {
		end.process.onKill = append(end.process.onKill, func() { _ = end.Close() })
	}
	return x, y
}

// Send implements [takeover.Channel], as do the other methods with capitals.
func (e *pipe) Send(m takeover.Message) error {
	if e.closed || e.peer.closed {
		return syscall.EPIPE
	}
	p := parcel{message: m}
	if m.FD >= 0 {
		p.file = e.files.open[m.FD]
		p.file.descriptors++
	}
	e.peer.inbox = append(e.peer.inbox, p)
	e.peer.arrived.wake(e.process.scheduler)
	e.process.spins()
	return nil
}

// Receive receives a message.
func (e *pipe) Receive() (takeover.Message, error) {
	s := e.process.scheduler
	for len(e.inbox) == 0 {
		left := time.Duration(-1)
		if e.until > 0 {
			left = e.until - s.now
		}
		switch {
		case e.closed:
			return takeover.Message{FD: -1}, os.ErrClosed
		case e.peer.closed:
			return takeover.Message{FD: -1}, io.EOF
		case e.until > 0 && left <= 0:
			return takeover.Message{FD: -1}, os.ErrDeadlineExceeded
		}
		s.block(left, &e.arrived)
	}
	p := e.inbox[0]
	e.inbox = e.inbox[1:]
	if p.file != nil {
		p.message.FD = e.files.add(p.file)
		p.file.descriptors-- // that of the parcel
	}
	return p.message, nil
}

// SetTimeout bounds what follows.
func (e *pipe) SetTimeout(d time.Duration) error {
	if e.until = 0; d > 0 {
		e.until = e.process.scheduler.now + d
	}
	return nil
}

// Discard closes a descriptor.
func (e *pipe) Discard(fd int) { e.files.close(fd) }

// Close closes the end.
func (e *pipe) Close() error {
	if e.closed {
		return nil
	}
	e.closed = true
	for _, p := range e.inbox {
		if p.file != nil {
			p.file.release()
		}
	}
	e.inbox = nil
	e.peer.arrived.wake(e.process.scheduler)
	return nil
}

// successor is the process of a successor, as its predecessor has it.
type successor struct{ by, process *Process }

// Ended implements [takeover.Process], as do the other methods.
func (x successor) Ended(d time.Duration) bool {
	for until := x.by.Now().Add(d); !x.process.dead && x.by.Now().Before(until); {
		x.by.Wait(context.Background(), time.Millisecond)
	}
	return x.process.dead
}

// Kill kills the process, also if it is stopped.
func (x successor) Kill() {
	x.process.resume()
	x.process.kill()
}

// Close does nothing.
func (x successor) Close() {}
