// Package takeover moves what a process serves to another process, its
// successor: listening sockets and open files, with their locks. One of the two
// serves at any time, and one of them does at the end, whichever dies.
//
//	successor              predecessor
//	    │ ── commit ─────────▶ │ serves until here; then drains and closes
//	    │ ◀──────── items ──── │ descriptors, which the predecessor keeps too
//	    │ ── opened ─────────▶ │ the successor serves nothing yet
//	    │ ◀──────── serve ──── │
//	    │ ── serving ────────▶ │ ends
//
// Until the message serving arrives the predecessor can go on with the
// descriptors that it kept. It does so once the successor has ended, and kills
// a successor that does not answer. The successor understands the end of the
// connection as that of the predecessor, which closes it in no other case, and
// goes on with what it has got.
//
// Both ends belong to the same user.
package takeover

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Item is a descriptor that moves, and what it is.
type Item struct {
	Name string // 4160 bytes at most
	FD   int
}

// maxItems bounds what a successor receives.
const maxItems = 4096

// answerLimit bounds each step of the other process: it opens what it got.
const answerLimit = 10 * time.Second

// Successor is the process that takes over. It has one goroutine.
type Successor struct {
	channel Channel
	process Process
}

// NewSuccessor returns a process that wants to take over at the other end of a
// channel.
func NewSuccessor(c Channel, p Process) *Successor { return &Successor{c, p} }

// Admit returns who wants to take over at a connection, which it takes over if
// there is no error, and the process ID.
func Admit(c *net.UnixConn) (by *Successor, pid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, 0, err
	}
	var peer *unix.Ucred
	var failure error
	err = raw.Control(func(fd uintptr) {
		peer, failure = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, failure); err != nil {
		return nil, 0, fmt.Errorf("user of the successor: %w", err)
	}
	if int(peer.Uid) != os.Geteuid() { // this process could not end one of root
		return nil, 0, fmt.Errorf("user %d may not take over: %w", peer.Uid, unix.EPERM)
	}
	if int(peer.Pid) == os.Getpid() {
		return nil, 0, fmt.Errorf("process %d does not take over from itself: %w", peer.Pid, unix.EINVAL)
	}
	fd, err := unix.PidfdOpen(int(peer.Pid), 0)
	if err != nil {
		return nil, 0, fmt.Errorf("process %d: %w", peer.Pid, err)
	}
	return NewSuccessor(socket{c}, pidfd(fd)), int(peer.Pid), nil
}

// Committed waits until the successor is ready to receive. After an error the
// caller serves on, and the successor has gone.
func (s *Successor) Committed() error {
	_ = s.channel.SetTimeout(answerLimit)
	if err := expect(s.channel, commit); err != nil {
		return s.Expel(err)
	}
	return s.channel.SetTimeout(0)
}

// Waits returns an error if the successor has ended since it committed. The
// caller serves on then.
func (s *Successor) Waits() error {
	if s.process.Ended(0) {
		return s.Expel(io.EOF)
	}
	return nil
}

// Give hands the items over. The caller has ended everything that uses them,
// and keeps descriptors of its own. Without an error the successor serves, and
// the caller ends. After an error the successor has ended, and the caller goes
// on.
func (s *Successor) Give(items []Item) error {
	_ = s.channel.SetTimeout(answerLimit)
	for _, i := range items {
		if err := s.channel.Send(Message{item, i.Name, i.FD}); err != nil {
			return s.Expel(fmt.Errorf("give %s: %w", i.Name, err))
		}
	}
	err := s.channel.Send(Message{kind: last, FD: -1})
	if err == nil {
		err = expect(s.channel, opened)
	}
	if err == nil {
		err = s.channel.Send(Message{kind: serve, FD: -1})
	}
	if err == nil {
		err = expect(s.channel, serving)
	}
	if err != nil {
		return s.Expel(err)
	}
	s.process.Close()
	return s.channel.Close()
}

// unfinishedLimit bounds GiveUnfinished: the caller is about to end.
const unfinishedLimit = time.Second

// GiveUnfinished gives the items to the successor of a process that ends
// without having ended everything that uses them. The successor goes on with
// them once the process has ended.
func (s *Successor) GiveUnfinished(items []Item) error {
	_ = s.channel.SetTimeout(unfinishedLimit)
	for _, i := range items {
		if err := s.channel.Send(Message{item, i.Name, i.FD}); err != nil {
			return fmt.Errorf("give %s: %w", i.Name, err)
		}
	}
	return nil
}

// Expel makes sure that the successor has ended, and returns why it had to.
func (s *Successor) Expel(cause error) error {
	if !errors.Is(cause, errRefused) {
		s.process.Kill()
	}
	for !s.process.Ended(answerLimit) {
		s.process.Kill()
	}
	s.process.Close()
	_ = s.channel.Close()
	if errors.Is(cause, io.EOF) {
		cause = errors.New("the successor ended")
	}
	return cause
}

// Predecessor is the process that serves now. It has one goroutine.
type Predecessor struct {
	channel Channel
	ended   bool
}

// NewPredecessor returns the process at the other end of a connection that it
// has admitted.
func NewPredecessor(c *net.UnixConn) *Predecessor { return NewPredecessorOf(socket{c}) }

// NewPredecessorOf returns the process at the other end of a channel.
func NewPredecessorOf(c Channel) *Predecessor { return &Predecessor{channel: c} }

// Commit has the predecessor stop to serve, and returns what it had. ended
// reports that it ended before it had given everything. The caller owns the
// descriptors.
func (p *Predecessor) Commit() (items []Item, ended bool, err error) {
	if err := p.channel.Send(Message{kind: commit, FD: -1}); err != nil {
		p.ended = true
		return nil, true, nil
	}
	for {
		m, err := p.channel.Receive()
		switch {
		case errors.Is(err, ErrBroken):
			p.release(items)
			return nil, false, err
		case err != nil:
			p.ended = true
			return items, true, nil
		case m.kind == item && len(items) < maxItems:
			items = append(items, Item{m.text, m.FD})
		case m.kind == last:
			return items, false, nil
		default:
			if m.FD >= 0 {
				p.channel.Discard(m.FD)
			}
			p.release(items)
			return nil, false, ErrBroken
		}
	}
}

// release closes what the predecessor gave.
func (p *Predecessor) release(items []Item) {
	for _, i := range items {
		p.channel.Discard(i.FD)
	}
}

// Opened tells the predecessor that everything is open, and waits until the
// caller may serve. It returns no error if the predecessor has ended.
func (p *Predecessor) Opened() error {
	if p.ended {
		return nil
	}
	err := p.channel.Send(Message{kind: opened, FD: -1})
	if err == nil {
		err = expect(p.channel, serve)
	}
	if errors.Is(err, ErrBroken) {
		return err
	}
	p.ended = err != nil
	return nil
}

// Serving tells the predecessor that the caller serves.
func (p *Predecessor) Serving() {
	if !p.ended {
		_ = p.channel.Send(Message{kind: serving, FD: -1}) // it may have ended
	}
	_ = p.channel.Close()
}

// Fail tells the predecessor why the caller cannot serve. The caller has closed
// everything, and ends.
func (p *Predecessor) Fail(cause error) {
	_ = p.channel.Send(Message{failed, cause.Error(), -1}) // it may have ended
	// The end of the process closes the connection.
}
