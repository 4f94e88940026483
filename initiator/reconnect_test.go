package initiator_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/target"
)

// lasting is a device whose requests wait for a lost target.
func lasting(wait time.Duration) func(*initiator.Config) {
	return func(c *initiator.Config) { c.LossTimeout, c.ReconnectDelay = wait, 50*time.Millisecond }
}

// sealedMode is a way to move payload that no copy mode has: sealed.
const sealedMode regcache.CopyMode = "sealed"

// TestTheTargetComesBack: requests of every kind and size, in flight while the
// target restarts repeatedly, succeed, and the data is right.
func TestTheTargetComesBack(t *testing.T) {
	const zone, workers, restarts = 8 << 20, 4, 8
	for _, mode := range []regcache.CopyMode{regcache.CopyBounce, regcache.CopyZero, sealedMode} {
		t.Run(string(mode), func(t *testing.T) {
			serve := newRemote
			if mode == sealedMode {
				serve = newSealedRemote
			}
			r := serve(t, target.Config{}, fileSpec(t, zone*workers))
			d := r.dial(t, "a", func(c *initiator.Config) {
				lasting(initiator.Forever)(c)
				if mode != sealedMode {
					c.CopyMode = mode
				}
			})
			var stop atomic.Bool
			var wg sync.WaitGroup
			defer wg.Wait()
			defer stop.Store(true)
			for i := range workers {
				q := open(t, d, 4)
				wg.Go(func() {
					l := loadWorker{q: q, d: d, base: int64(i) * zone, size: zone, random: rand.New(rand.NewPCG(7, uint64(i)))}
					if err := l.run(&stop); err != nil {
						t.Errorf("worker %d: %v", i, err)
					}
				})
			}
			for i := range restarts {
				before := d.Status().Stats.Reconnects
				waitFor(t, "work", func() bool { return d.Status().Stats.Writes > 50*uint64(i) })
				r.stop()
				if i%2 == 1 { // requests come while it is away, too
					time.Sleep(30 * time.Millisecond)
				}
				r.start(t)
				waitFor(t, "connections", func() bool { return d.Status().Stats.Reconnects >= before+workers })
			}
			if err := d.Err(); err != nil {
				t.Error(err)
			}
		})
	}
}

// loadWorker writes and reads its zone of a disk through a queue, and knows
// what is in it.
type loadWorker struct {
	q          *initiator.Queue
	d          *initiator.Device
	base, size int64
	random     *rand.Rand
}

// run writes, flushes, zeroes and reads until it is told to stop.
func (l *loadWorker) run(stop *atomic.Bool) error {
	model := make([]byte, l.size)
	unregistered := make([]byte, 3<<20)
	registered, err := l.d.Alloc(1 << 20)
	if err != nil {
		return err
	}
	defer l.d.Free(registered)
	for round := 0; !stop.Load(); round++ {
		n := []int64{512, 4096, 64 << 10, 1 << 20, 3 << 20}[l.random.IntN(5)]
		off := l.random.Int64N((l.size-n)/512) * 512
		w := &block.Request{Op: block.Write, Offset: l.base + off, Length: n}
		switch {
		case l.random.IntN(2) == 0:
			if !l.q.Reserve(w) {
				return fmt.Errorf("round %d: nothing reserved", round)
			}
		case n <= 1<<20:
			w.Data = registered[:n]
		default:
			w.Data = unregistered[:n]
		}
		pattern(w.Data, byte(round))
		copy(model[off:], w.Data)
		if err := l.do(w, request(block.Flush, 0, 0)); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		if round%5 == 0 {
			clear(model[off : off+n/2])
			if err := l.do(request(block.WriteZeroes, l.base+off, n/2), request(block.Status, l.base, 4096)); err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
		}
		if err := l.check(model); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
	}
	return nil
}

// check reads a few places.
func (l *loadWorker) check(model []byte) error {
	var reads []*block.Request
	for _, n := range []int64{4096, 512, 1 << 20} {
		off := l.random.Int64N((l.size-n)/512) * 512
		r := &block.Request{Op: block.Read, Offset: l.base + off, Length: n}
		if !l.q.Reserve(r) {
			return fmt.Errorf("nothing reserved for %d bytes", n)
		}
		reads = append(reads, r)
	}
	if err := l.submit(reads...); err != nil {
		return err
	}
	for _, r := range reads {
		at := r.Offset - l.base
		if !bytes.Equal(r.Data, model[at:at+r.Length]) {
			return fmt.Errorf("other data than written in %d bytes at %d", r.Length, r.Offset)
		}
		l.q.Release(r)
	}
	return nil
}

// do submits requests and releases them when they are answered.
func (l *loadWorker) do(rs ...*block.Request) error {
	err := l.submit(rs...)
	for _, r := range rs {
		l.q.Release(r)
	}
	return err
}

// submit submits requests and waits for their answers.
func (l *loadWorker) submit(rs ...*block.Request) error {
	for _, r := range rs {
		if !l.q.Submit(r) {
			return fmt.Errorf("the queue is full")
		}
	}
	l.q.Kick()
	got, err := reap(l.q, len(rs))
	for _, r := range got {
		if r.Err != nil && err == nil {
			err = fmt.Errorf("%v of %d bytes: %w", r.Op, r.Length, r.Err)
		}
	}
	return err
}

// TestWaitingEnds: after the timeout requests fail, at once when the time is
// over, and are served again when the target is back; also on a new queue.
func TestWaitingEnds(t *testing.T) {
	r := newRemote(t, target.Config{}, fileSpec(t, 16<<20))
	d := r.dial(t, "a", func(c *initiator.Config) {
		lasting(300 * time.Millisecond)(c)
		c.Timeout = time.Second
	})
	q := open(t, d, 4)
	submit(t, q, request(block.Write, 0, 4096))
	wantAll(t, q, 1, 0)
	r.stop()
	for range 3 {
		submit(t, q, request(block.Write, 0, 4096), request(block.Read, 0, 64<<10))
		wantAll(t, q, 2, syscall.EIO)
	}
	if _, err := d.NewQueue(1); err == nil || !strings.Contains(err.Error(), " has been away for ") {
		t.Errorf("a queue without a target: %v", err)
	}
	if st := d.Status(); st.Connected || st.State != initiator.StateFailed || st.DisconnectedSeconds == 0 || st.SessionLosses != 1 {
		t.Errorf("status %+v", st)
	}
	r.start(t)
	waitFor(t, "the connection", func() bool {
		submit(t, q, request(block.Read, 0, 4096))
		rs, err := reap(q, 1)
		must(t, err)
		return rs[0].Err == nil
	})
	other := open(t, d, 1)
	submit(t, other, request(block.Read, 0, 4096))
	wantAll(t, other, 1, 0)
	if st := d.Status(); !st.Connected || st.State != initiator.StateConnected || st.DisconnectedSeconds != 0 || st.Error != "" {
		t.Errorf("status %+v", st)
	}
}

// TestCloseWhileAway: queues and the device close while requests wait.
func TestCloseWhileAway(t *testing.T) {
	r := newRemote(t, target.Config{}, fileSpec(t, 16<<20))
	d := r.dial(t, "a", lasting(initiator.Forever))
	q, err := d.NewQueue(4)
	must(t, err)
	idle, err := d.NewQueue(4)
	must(t, err)
	r.stop()
	submit(t, q, request(block.Write, 0, 4096))
	if q.Reap(make([]*block.Request, 1)) != 0 {
		t.Error("a write without a target is answered")
	}
	must(t, q.Close())
	must(t, idle.Close())
	must(t, d.Close())
	if err := d.Err(); err != nil {
		t.Error(err)
	}
}

// TestAnotherDisk: if the target comes back with another disk, requests fail
// for good, and Err has the reason.
func TestAnotherDisk(t *testing.T) {
	for name, c := range map[string]struct {
		change func(a *wire.OpenResponse)
		want   string // "" is the same disk
	}{
		"same":      {func(*wire.OpenResponse) {}, ""},
		"larger":    {func(a *wire.OpenResponse) { a.Size += 4096 }, ""},
		"uuid":      {func(a *wire.OpenResponse) { a.ExportUUID[3]++ }, "another disk"},
		"smaller":   {func(a *wire.OpenResponse) { a.Size -= 4096 }, "bytes and had"},
		"blocks":    {func(a *wire.OpenResponse) { a.MinimumBlock = 4096 }, "blocks of"},
		"no flush":  {func(a *wire.OpenResponse) { a.Features &^= uint32(block.CanFlush) }, "can do less"},
		"read-only": {func(a *wire.OpenResponse) { a.Features |= uint32(block.ReadOnly) }, "may be written"},
		"restarted": {func(a *wire.OpenResponse) { a.Verifier++ }, "may be lost"},
	} {
		t.Run(name, func(t *testing.T) {
			var opens, cut atomic.Int32
			s := newStage(t, play{
				open: func(a *wire.OpenResponse) {
					if opens.Add(1) > 1 {
						c.change(a)
					}
				},
				command: func(e *end, cmd *wire.Command, _ []byte) bool {
					if cmd.Opcode == wire.OpFlush && cut.CompareAndSwap(0, 1) {
						return false
					}
					e.answer(cmd)
					return true
				},
			})
			d := s.dialWith(t, lasting(initiator.Forever))
			q := open(t, d, 4)
			submit(t, q, request(block.Write, 0, 4096))
			wantAll(t, q, 1, 0)
			submit(t, q, request(block.Flush, 0, 0), request(block.Write, 8192, 64<<10))
			if c.want == "" {
				wantAll(t, q, 2, 0)
				return
			}
			if n, err := reap(q, 2); err != nil || block.Errno(n[0].Err) != syscall.EIO && block.Errno(n[1].Err) != syscall.EIO {
				t.Errorf("requests to another disk: %v", err)
			}
			waitFor(t, "the reason", func() bool { return d.Err() != nil })
			if err := d.Err(); !strings.Contains(err.Error(), c.want) {
				t.Errorf("the device says: %v", err)
			}
			submit(t, q, request(block.Read, 0, 4096))
			wantAll(t, q, 1, syscall.EIO)
			if _, err := d.NewQueue(1); err == nil {
				t.Error("a new queue of another disk")
			}
		})
	}
}

// TestNothingUnflushed: a machine that was started again has lost nothing that
// was flushed, or written with FUA.
func TestNothingUnflushed(t *testing.T) {
	var opens, cut atomic.Int32
	s := newStage(t, play{
		open: func(a *wire.OpenResponse) { a.Verifier = uint64(opens.Add(1)) },
		command: func(e *end, cmd *wire.Command, _ []byte) bool {
			if cmd.Opcode == wire.OpRead && cut.Add(1) < 3 {
				return false
			}
			e.answer(cmd)
			return true
		},
	})
	d := s.dialWith(t, lasting(initiator.Forever))
	q := open(t, d, 4)
	durable := request(block.Write, 0, 4096)
	durable.Flags = block.FUA
	submit(t, q, durable, request(block.Write, 4096, 64<<10))
	wantAll(t, q, 2, 0)
	submit(t, q, request(block.Flush, 0, 0))
	wantAll(t, q, 1, 0)
	submit(t, q, request(block.Read, 0, 4096))
	wantAll(t, q, 1, 0)
	if n := opens.Load(); n != 3 || d.Err() != nil {
		t.Errorf("opened %d times: %v", n, d.Err())
	}
}

// TestTheOldSessionEndsFirst: after the loss of one connection the initiator
// ends the session, in order, before the next one begins. It retransmits
// unanswered requests with the same data, and no answered one.
func TestTheOldSessionEndsFirst(t *testing.T) {
	var mu sync.Mutex
	var events []string
	note := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, fmt.Sprintf(format, args...))
	}
	var writes atomic.Int32
	s := newStage(t, play{
		login: func(e *end, q *wire.LoginRequest, a *wire.LoginResponse) bool {
			if q.Role == wire.RoleControl {
				note("login")
			}
			e.sendControl(a)
			return true
		},
		control: func(e *end, op wire.Opcode, msg []byte) bool {
			h, err := wire.PeekControl(msg)
			if err != nil {
				return false
			}
			if op == wire.OpLogout && e.role == wire.RoleControl {
				note("logout")
			}
			return e.obey(op, h, msg)
		},
		command: func(e *end, cmd *wire.Command, payload []byte) bool {
			note("write %d", payload[0])
			if writes.Add(1) == 2 {
				return false
			}
			e.answer(cmd)
			return true
		},
	})
	d := s.dialWith(t, lasting(initiator.Forever))
	q := open(t, d, 4)
	for _, b := range []byte{1, 2, 3} {
		w := request(block.Write, 0, 512)
		w.Data[0] = b
		submit(t, q, w)
		wantAll(t, q, 1, 0)
	}
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"login", "write 1", "write 2", "logout", "login", "write 2", "write 3"}; !slices.Equal(events, want) {
		t.Errorf("the target saw %q, want %q", events, want)
	}
}

// TestAHeldAnswerKeepsItsMemory: what arrived before the connection was lost
// stays as it was while its owner uses it, and the connection returns without
// waiting for that.
func TestAHeldAnswerKeepsItsMemory(t *testing.T) {
	const depth = 4
	for _, when := range []string{"while away", "after the return"} {
		t.Run(when, func(t *testing.T) {
			r := newRemote(t, target.Config{InlineMax: 512}, fileSpec(t, 16<<20))
			d := r.dial(t, "a", lasting(initiator.Forever))
			q := open(t, d, depth)
			w := request(block.Write, 0, 512)
			pattern(w.Data, 9)
			submit(t, q, w)
			wantAll(t, q, 1, 0)
			held := make([]*block.Request, depth-1)
			for round := range 3 {
				for i := range held {
					held[i] = &block.Request{Op: block.Read, Length: 512}
					if !q.Reserve(held[i]) {
						t.Fatal("not reserved")
					}
				}
				submit(t, q, held...)
				wantAll(t, q, len(held), 0)
				release := func() {
					for _, x := range held {
						if !bytes.Equal(x.Data, w.Data) {
							t.Error("the answer is not what it was")
						}
						q.Release(x)
					}
				}
				r.stop()
				other := request(block.Write, 4096, 4096)
				submit(t, q, other)
				if q.Reap(make([]*block.Request, 1)) != 0 {
					t.Fatal("answered without a target")
				}
				if when == "while away" {
					release()
				}
				r.start(t)
				wantAll(t, q, 1, 0)
				if when != "while away" {
					for range 4 * depth { // use up the other receives
						submit(t, q, request(block.Read, 4096, 512))
						wantAll(t, q, 1, 0)
					}
					release()
				}
				if n := d.Status().Stats.Reconnects; n < uint64(round) {
					t.Errorf("%d returns in round %d", n, round)
				}
			}
			for range 3 { // all slots are there again
				for range depth {
					submit(t, q, request(block.Read, 0, 512))
				}
				wantAll(t, q, depth, 0)
			}
		})
	}
}

// TestASilentTargetIsLeft: the initiator waits for a target that answers
// nothing, not even the logout, no longer than for its keepalives.
func TestASilentTargetIsLeft(t *testing.T) {
	var silent atomic.Bool
	var sessions atomic.Int32
	s := newStage(t, play{
		millis: 20,
		login: func(e *end, q *wire.LoginRequest, a *wire.LoginResponse) bool {
			if q.Role == wire.RoleControl && sessions.Add(1) > 1 {
				silent.Store(false)
			}
			e.sendControl(a)
			return true
		},
		keepalive: func(*end) bool { return true }, // the connections of a later session are lost too, unless they are busy
		control: func(e *end, op wire.Opcode, msg []byte) bool {
			h, err := wire.PeekControl(msg)
			if silent.Load() || err != nil {
				return err == nil
			}
			return e.obey(op, h, msg)
		},
		command: func(e *end, cmd *wire.Command, _ []byte) bool {
			if sessions.Load() == 1 {
				silent.Store(true)
				return true
			}
			e.answer(cmd)
			return true
		},
	})
	d := s.dialWith(t, func(c *initiator.Config) {
		lasting(initiator.Forever)(c)
		c.Timeout = time.Second
	})
	q := open(t, d, 4)
	submit(t, q, request(block.Write, 0, 4096))
	wantAll(t, q, 1, 0)
	if n := d.Status().SessionLosses; n == 0 {
		t.Error("no session was lost")
	}
}

// dialWith attaches with another configuration; the device is closed with the
// test.
func (s *stage) dialWith(t testing.TB, change func(*initiator.Config)) *initiator.Device {
	t.Helper()
	cfg := s.config()
	change(&cfg)
	d, err := initiator.Dial(context.Background(), cfg)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

// TestInlineSizes: requests of every size pass whatever the target takes inside
// a message, and go on when it comes back and takes less, or more.
func TestInlineSizes(t *testing.T) {
	sizes := []int64{69632, 65536, 16384, 12288, 8192, 5120, 4096, 1024, 512}
	for _, asked := range []int{0, 64 << 10} {
		t.Run(fmt.Sprintf("the initiator asks for %d", asked), func(t *testing.T) {
			r := newRemote(t, target.Config{InlineMax: 64 << 10}, fileSpec(t, 16<<20))
			d := r.dial(t, "a", func(c *initiator.Config) {
				c.InlineMax = asked
				lasting(initiator.Forever)(c)
			})
			q := open(t, d, 2*len(sizes))
			// The first receives of both ends are those of the login.
			first := &block.Request{Op: block.Read, Length: 64 << 10}
			if !q.Reserve(first) {
				t.Fatal("not reserved")
			}
			submit(t, q, first)
			wantAll(t, q, 1, 0)
			q.Release(first)
			submit(t, q, request(block.Write, 0, 64<<10))
			wantAll(t, q, 1, 0)
			for round, inline := range []int{512, 4096, 64 << 10, 16 << 10} {
				writes := make([]*block.Request, len(sizes))
				for i, n := range sizes {
					writes[i] = request(block.Write, int64(i)<<20, n)
					pattern(writes[i].Data, byte(16*round+i))
				}
				submit(t, q, writes...)
				wantAll(t, q, len(writes), 0)

				// Requests that wait for the target are begun with its old limit
				// and ended with its new one.
				r.stop()
				reads := make([]*block.Request, len(sizes))
				for i, n := range sizes {
					reads[i] = &block.Request{Op: block.Read, Offset: int64(i) << 20, Length: n}
					if !q.Reserve(reads[i]) {
						t.Fatal("not reserved")
					}
				}
				again := make([]*block.Request, len(sizes))
				for i, n := range sizes {
					again[i] = request(block.Write, int64(i)<<20, n)
					copy(again[i].Data, writes[i].Data)
				}
				submit(t, q, reads...)
				submit(t, q, again...)
				r.cfg.InlineMax = inline
				r.start(t)
				wantAll(t, q, 2*len(sizes), 0)
				for i, x := range reads {
					if !bytes.Equal(x.Data, writes[i].Data) {
						t.Errorf("inline maximum %d: a read of %d bytes is not what was written", inline, x.Length)
					}
					q.Release(x)
				}
			}
		})
	}
}
