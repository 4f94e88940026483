package initiator_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target"
)

// gate is a disk of zeroes whose writes wait until they are let pass.
type gate struct {
	*block.Executor
	writer  block.Writer  // a target at a time uses it
	pass    chan struct{} // closed: writes pass
	began   chan int64    // offset of each write
	writes  atomic.Int32
	flushes atomic.Int32
}

func newGate() *gate {
	g := &gate{pass: make(chan struct{}), began: make(chan int64, 64)}
	g.Executor = block.NewExecutor(g, 0)
	return g
}

func (g *gate) Info() block.Info {
	return block.Info{
		Size: 1 << 20, MinimumBlock: 512, PreferredBlock: 4096, MaximumPayload: block.PayloadLimit,
		Features: block.CanFlush | block.CanFUA | block.CanMultiConn,
	}
}

func (g *gate) NewQueue(depth int) (block.Queue, error) {
	return g.Executor.NewQueue(depth, block.PayloadLimit)
}

func (g *gate) Close() error {
	g.Executor.Close()
	return nil
}

// The disk is the same for every target.
func (g *gate) Identity() block.Identity { return g }
func (g *gate) UUID() [16]byte           { return [16]byte{1} }
func (g *gate) Verifier() uint64         { return 1 }
func (g *gate) Persistent() bool         { return true }
func (g *gate) Writer() block.Writer     { return g.writer }
func (g *gate) SetWriter(id [16]byte) (block.Writer, error) {
	g.writer = block.Writer{ID: id, Generation: g.writer.Generation + 1}
	return g.writer, nil
}

func (g *gate) Attempt(*block.Request) bool { return false }

func (g *gate) Execute(r *block.Request) error {
	switch r.Op {
	case block.Write:
		g.writes.Add(1)
		g.began <- r.Offset
		<-g.pass
	case block.Flush:
		g.flushes.Add(1)
	case block.Read:
		clear(r.Data)
	}
	return nil
}

// newGated serves a gate.
func newGated(t testing.TB, g *gate) *remote {
	t.Helper()
	return newRemote(t, target.Config{Exports: []target.Export{{Name: "a", Device: g}}})
}

// TestDrainAnswersRequestsInFlight: a target that goes down answers the writes
// in flight, whatever other queues do meanwhile: the next target executes none
// of them. It executes the requests that the first one refused, once.
func TestDrainAnswersRequestsInFlight(t *testing.T) {
	for _, refused := range []bool{false, true} {
		name := map[bool]string{false: "beside an idle queue", true: "beside a refused request"}[refused]
		t.Run(name, func(t *testing.T) {
			g := newGate()
			r := newGated(t, g)
			d := r.dial(t, "a", lasting(initiator.Forever))
			writer, other := open(t, d, 4), open(t, d, 4)
			submit(t, other, request(block.Read, 0, 4096))
			wantAll(t, other, 1, 0)
			submit(t, writer, request(block.Write, 0, 4096), request(block.Write, 8192, 64<<10))
			for range 2 {
				for len(g.began) == 0 {
					must(t, drive(writer))
				}
				<-g.began
			}
			drained := make(chan error, 1)
			go func() { drained <- r.server.Drain(context.Background()) }()
			waitFor(t, "the drain", func() bool { return r.server.Status().Draining })
			if refused {
				readUntilRefused(t, d, other)
			} else {
				for range 2 { // its connection, if it ended, would be noticed
					must(t, drive(other))
				}
			}
			close(g.pass)
			answered := make(chan error, 1)
			go func() { // the other owner goes on too
				rs, err := reap(writer, 2)
				for _, x := range rs {
					err = errors.Join(err, x.Err)
				}
				answered <- err
			}()
			for ended := false; !ended; {
				select {
				case err := <-answered:
					must(t, err)
					ended = true
				default:
					must(t, drive(other))
				}
			}
			must(t, <-drained)
			r.stop()
			submit(t, writer, request(block.Write, 4096, 4096))
			r.start(t)
			wantAll(t, writer, 1, 0)
			if refused {
				wantAll(t, other, 1, 0)
			}
			if n := g.writes.Load(); n != 3 {
				t.Errorf("the disk executed %d writes, of 3", n)
			}
			if g.flushes.Load() == 0 {
				t.Error("the initiator did not log out: nothing was flushed")
			}
			if n := d.Status().SessionLosses; n != 1 {
				t.Errorf("%d sessions were lost", n)
			}
		})
	}
}

// readUntilRefused reads until a target that goes down refuses a read, which is
// in the queue then.
func readUntilRefused(t *testing.T, d *initiator.Device, q *initiator.Queue) {
	t.Helper()
	for d.Status().SessionLosses == 0 {
		submit(t, q, request(block.Read, 512<<10, 4096)) // no write overlaps it
		for q.Reap(make([]*block.Request, 1)) == 0 && d.Status().SessionLosses == 0 {
			must(t, nap(q))
		}
	}
}

// TestSuccessorIsAskedForOften: the pauses between attempts to reach the
// successor of a target that drained stay short. Without that the last of them
// would come after minutes.
func TestSuccessorIsAskedForOften(t *testing.T) {
	g := newGate()
	r := newGated(t, g)
	attempts := new(attemptLog)
	d := r.dial(t, "a", func(c *initiator.Config) {
		c.LossTimeout, c.ReconnectDelay = initiator.Forever, time.Hour
		c.Log = slog.New(slog.NewTextHandler(attempts, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	q := open(t, d, 4)
	must(t, r.server.Drain(context.Background()))
	r.stop()
	waitFor(t, "attempts", func() bool { return attempts.Load() > 14 })
	submit(t, q, request(block.Read, 0, 4096))
	r.start(t)
	wantAll(t, q, 1, 0)
}

// attemptLog counts the attempts to reach a target that are logged.
type attemptLog struct{ atomic.Int32 }

func (l *attemptLog) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("reconnect failed")) {
		l.Add(1)
	}
	return len(line), nil
}

// drive lets a queue without an answer work for a moment.
func drive(q *initiator.Queue) error {
	var one [1]*block.Request
	if q.Reap(one[:]) != 0 && one[0].Err != nil {
		return one[0].Err
	}
	return nap(q)
}

// TestLeavingAmidADrain: a queue that ends while its requests wait for the next
// target fails them, and leaves nothing behind.
func TestLeavingAmidADrain(t *testing.T) {
	g := newGate()
	r := newGated(t, g)
	d := r.dial(t, "a", lasting(initiator.Forever))
	writer, other := open(t, d, 4), open(t, d, 4)
	submit(t, writer, request(block.Write, 0, 4096))
	for len(g.began) == 0 {
		must(t, drive(writer))
	}
	drained := make(chan error, 1)
	go func() { drained <- r.server.Drain(context.Background()) }()
	waitFor(t, "the drain", func() bool { return r.server.Status().Draining })
	readUntilRefused(t, d, other)
	other.Abort()
	rs, err := reap(other, 1)
	must(t, err)
	if e := block.Errno(rs[0].Err); e != syscall.EIO && e != syscall.ECANCELED {
		t.Errorf("a request that was given up: %v", e)
	}
	close(g.pass)
	wantAll(t, writer, 1, 0)
	must(t, <-drained)
}
