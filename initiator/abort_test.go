package initiator_test

import (
	"errors"
	"sync"
	"syscall"
	"testing"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
)

// logouts is a target that answers no command before the logout of its I/O
// connection.
type logouts struct {
	// first means that the answer to the logout comes before those to the
	// commands, as that of an earlier build.
	first bool

	mu       sync.Mutex
	commands []wire.Command
	seen     int // commands at the logout
}

func (l *logouts) play() play {
	return play{
		command: func(_ *end, cmd *wire.Command, _ []byte) bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.commands = append(l.commands, *cmd)
			return true
		},
		control: func(e *end, op wire.Opcode, msg []byte) bool {
			h, err := wire.PeekControl(msg)
			if err != nil {
				return false
			}
			if op != wire.OpLogout || e.role != wire.RoleIO {
				return e.obey(op, h, msg)
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.seen = len(l.commands)
			if l.first {
				e.sendControl(&wire.LogoutResponse{ID: h.ID, PathEpoch: 1})
			}
			for i := range l.commands {
				cmd := &l.commands[i]
				if i == 0 {
					e.answer(cmd)
					continue
				}
				e.reply(wire.Reply{Slot: cmd.Slot, Seq: cmd.Seq, PathEpoch: 1, Status: wire.StatusAborted}, 0)
			}
			if !l.first {
				e.sendControl(&wire.LogoutResponse{ID: h.ID, PathEpoch: 1})
			}
			return true
		},
	}
}

// TestCloseLogsOutAtOnce: a queue with commands in flight logs out and waits
// for their answers; it never sends what it had not sent.
func TestCloseLogsOutAtOnce(t *testing.T) {
	for _, first := range []bool{false, true} {
		l := &logouts{first: first}
		d := newStage(t, l.play()).dial(t)
		q, err := d.NewQueue(8)
		must(t, err)
		for range 8 {
			submit(t, q, request(block.Write, 0, 512))
		}
		must(t, q.Close())
		if err := q.(*initiator.Queue).Err(); err != nil {
			t.Errorf("closed: %v", err)
		}
		l.mu.Lock()
		if l.seen == 0 || l.seen != len(l.commands) {
			t.Errorf("%d commands before the logout, %d in all", l.seen, len(l.commands))
		}
		l.mu.Unlock()
	}
}

// TestAbortAnswersEverything: each request of an aborted queue comes back, as
// the target says or dropped, and the queue is not lost.
func TestAbortAnswersEverything(t *testing.T) {
	for _, first := range []bool{false, true} {
		l := &logouts{first: first}
		q := open(t, newStage(t, l.play()).dial(t), 8)
		submit(t, q, request(block.Flush, 0, 0)) // the one that the target executes
		for i := range int64(7) {
			submit(t, q, request(block.Write, i*4096, 4096))
		}
		q.Abort()
		rs, err := reap(q, 8)
		must(t, err)
		done := 0
		for _, r := range rs {
			switch {
			case r.Err == nil:
				done++
			case !errors.Is(r.Err, syscall.ECANCELED):
				t.Errorf("a request ends with %v", r.Err)
			}
		}
		if done != 1 {
			t.Errorf("%d requests succeed, and the target executed one", done)
		}
		if err := q.Err(); err != nil {
			t.Errorf("aborted: %v", err)
		}
		if n := q.Reap(make([]*block.Request, 1)); n != 0 {
			t.Errorf("%d more", n)
		}
	}
}
