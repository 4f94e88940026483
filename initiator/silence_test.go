package initiator_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
)

// TestSilentTarget: the initiator declares a silent target dead in bounded
// time, on the control connection and on one with a request in flight, and
// sends one keepalive.
func TestSilentTarget(t *testing.T) {
	var silent atomic.Bool
	var control, io atomic.Int32
	s := newStage(t, play{
		millis: 100,
		keepalive: func(e *end) bool {
			switch {
			case !silent.Load():
				e.acknowledge()
			case e.role == wire.RoleIO:
				io.Add(1)
			default:
				control.Add(1)
			}
			return true
		},
		command: func(*end, *wire.Command, []byte) bool { return true },
	})
	d := s.dial(t)
	q := open(t, d, 4)
	silent.Store(true)
	submit(t, q, request(block.Read, 0, 512), request(block.Write, 0, 64<<10))
	wantAll(t, q, 2, syscall.EIO)
	if err := q.Err(); err == nil || !strings.Contains(err.Error(), "silent") {
		t.Errorf("the queue says %v", err)
	}
	select {
	case <-d.Done():
	case <-time.After(testTimeout):
		t.Fatal("the session does not end")
	}
	if err := d.Err(); err == nil || !strings.Contains(err.Error(), "silent") {
		t.Errorf("the session says %v", err)
	}
	if control.Load() != 1 || io.Load() != 1 {
		t.Errorf("asked %d times on the control connection, %d times on that of the queue; once each is enough",
			control.Load(), io.Load())
	}
	if _, err := d.NewQueue(1); err == nil {
		t.Error("a queue opens although the session has ended")
	}
	if _, err := d.ReadAt(make([]byte, 512), 0); err == nil {
		t.Error("ReadAt works although the session has ended")
	}
}

// TestSlowTarget: a target that answers keepalives has no time limit for a
// request.
func TestSlowTarget(t *testing.T) {
	var keepalives atomic.Int32
	var mu sync.Mutex
	var waiting *wire.Command
	s := newStage(t, play{
		millis: 250,
		keepalive: func(e *end) bool {
			e.acknowledge()
			if e.role != wire.RoleIO {
				return true
			}
			mu.Lock()
			defer mu.Unlock()
			if keepalives.Add(1) > 6 && waiting != nil { // much longer than a silence may be
				e.answer(waiting)
				waiting = nil
			}
			return true
		},
		command: func(_ *end, cmd *wire.Command, _ []byte) bool {
			mu.Lock()
			defer mu.Unlock()
			waiting = cmd
			return true
		},
	})
	q := open(t, s.dial(t), 4)
	submit(t, q, request(block.Read, 0, 512))
	wantAll(t, q, 1, 0)
}

// TestKeepAliveOfTheTarget: the initiator answers a keepalive of the target.
func TestKeepAliveOfTheTarget(t *testing.T) {
	s := newStage(t, play{
		command: func(e *end, cmd *wire.Command, _ []byte) bool {
			e.p.command = func(e *end, cmd *wire.Command, _ []byte) bool { e.answer(cmd); return true }
			e.p.keepalive = func(e *end) bool { e.answer(cmd); return true } // the answer to the keepalive
			e.immediate(wire.MakeImmediate(wire.ImmKeepAlive, 1, 0, 0))
			return true
		},
	})
	q := open(t, s.dial(t), 4)
	submit(t, q, request(block.Flush, 0, 0))
	wantAll(t, q, 1, 0)
}

// TestWithoutImmediates: where the target grants none, answers are replies and
// keepalives are messages, in both directions; an immediate is an error.
func TestWithoutImmediates(t *testing.T) {
	for _, immediate := range []bool{false, true} {
		var keepalives atomic.Int32
		s := newStage(t, play{
			millis: 100,
			login: func(e *end, _ *wire.LoginRequest, a *wire.LoginResponse) bool {
				a.Features = 0
				e.sendControl(a)
				return true
			},
			keepalive: func(e *end) bool {
				if e.role == wire.RoleIO {
					keepalives.Add(1)
				}
				e.sendControl(&wire.KeepAlive{PathEpoch: 1, Ack: true})
				return true
			},
			control: func(e *end, op wire.Opcode, msg []byte) bool {
				h, _ := wire.PeekControl(msg)
				if op == wire.OpKeepAliveAck {
					keepalives.Add(100)
					return true
				}
				return e.obey(op, h, msg)
			},
			command: func(e *end, cmd *wire.Command, _ []byte) bool {
				if immediate {
					e.immediate(immediateOf(wire.ImmOK, cmd))
					return true
				}
				e.sendControl(&wire.KeepAlive{PathEpoch: 1})
				if cmd.Mode == wire.ModePlace {
					e.write(cmd)
				}
				r := replyOf(cmd)
				e.reply(r, int(r.InlineLength))
				return true
			},
		})
		q := open(t, s.dial(t), 4)
		if immediate {
			submit(t, q, request(block.Flush, 0, 0))
			wantAll(t, q, 1, syscall.EIO)
			if err := q.Err(); err == nil || !strings.Contains(err.Error(), "immediate") {
				t.Errorf("the queue says %v", err)
			}
			continue
		}
		for _, x := range []*block.Request{request(block.Read, 0, 512), request(block.Read, 0, 64<<10), request(block.Write, 0, 512), request(block.Write, 0, 64<<10), request(block.Flush, 0, 0)} {
			submit(t, q, x)
			wantAll(t, q, 1, 0)
		}
		rs := make([]*block.Request, 1)
		waitFor(t, "keepalives", func() bool { q.Reap(rs); n := keepalives.Load(); return n >= 500 && n%100 > 5 })
		if err := q.Err(); err != nil {
			t.Error(err)
		}
	}
}

// TestEventsAreAcknowledged: the initiator acknowledges one event of every
// kind.
func TestEventsAreAcknowledged(t *testing.T) {
	acks := make(chan wire.EventKind, 16)
	s := newStage(t, play{control: func(e *end, op wire.Opcode, msg []byte) bool {
		h, _ := wire.PeekControl(msg)
		if op == wire.OpEventAck {
			var a wire.EventAck
			if a.Decode(msg) != nil {
				return false
			}
			acks <- a.Kind
			return true
		}
		if op == wire.OpOpen {
			for kind := wire.EventResize; kind <= wire.EventVerifier; kind++ {
				e.sendControl(&wire.Event{ID: uint32(kind), PathEpoch: 1, Kind: kind})
			}
		}
		return e.obey(op, h, msg)
	}})
	d := s.dial(t)
	for kind := wire.EventResize; kind <= wire.EventVerifier; kind++ {
		if got := <-acks; got != kind {
			t.Errorf("event %d is acknowledged as %d", kind, got)
		}
	}
	if err := d.Err(); err != nil {
		t.Error(err)
	}
}

// book keeps what is logged.
type book struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *book) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *book) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// TestLog: the loss of a connection is an error in the log if a request is in
// flight. It is not logged if no request is, or if the end was announced.
func TestLog(t *testing.T) {
	run := func(t *testing.T, use func(*initiator.Device, block.Queue)) string {
		s := newStage(t, play{command: func(e *end, cmd *wire.Command, _ []byte) bool {
			if cmd.Opcode == wire.OpFlush {
				return false
			}
			e.answer(cmd)
			return cmd.Opcode != wire.OpTrim // closed, with the answer
		}})
		var log book
		cfg := s.config()
		cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		d, err := initiator.Dial(context.Background(), cfg)
		must(t, err)
		q, err := d.NewQueue(4)
		must(t, err)
		use(d, q)
		must(t, q.Close())
		must(t, d.Close())
		return log.String()
	}
	if text := run(t, func(_ *initiator.Device, q block.Queue) {
		submit(t, q, request(block.Read, 0, 512))
		wantAll(t, q, 1, 0)
	}); text != "" {
		t.Errorf("an orderly end is in the log:\n%s", text)
	}
	if text := run(t, func(_ *initiator.Device, q block.Queue) {
		submit(t, q, request(block.Flush, 0, 0))
		wantAll(t, q, 1, syscall.EIO)
	}); !strings.Contains(text, "level=ERROR msg=\"connection lost\"") || strings.Count(text, "\n") != 1 {
		t.Errorf("the loss of a connection with a request in flight is logged as:\n%s", text)
	}
	if text := run(t, func(_ *initiator.Device, q block.Queue) {
		submit(t, q, request(block.Trim, 0, 4096)) // the target answers and closes
		rs, err := reap(q, 1)
		must(t, err)
		waitFor(t, "the end", func() bool { q.Reap(rs); return q.(*initiator.Queue).Err() != nil })
	}); strings.Contains(text, "connection lost") {
		t.Errorf("the loss of an idle connection is in the log:\n%s", text)
	}
}

// waitFor waits for a condition that no event announces.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !ok(); time.Sleep(200 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", testTimeout, what)
		}
	}
}
