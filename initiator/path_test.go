package initiator_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/via"
)

// second serves the target at one more host until the returned function ends
// that, with the connections there.
func (r *remote) second(t testing.TB, host string) (stop func()) {
	t.Helper()
	l, err := r.server.Listen(host)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(ctx, l) }()
	return func() {
		cancel()
		must(t, <-served)
	}
}

// twoPaths is a device of a target with two hosts.
func twoPaths(t *testing.T, serve func(testing.TB, target.Config, ...string) *remote, p initiator.PathPolicy) (r *remote, d *initiator.Device, host string) {
	t.Helper()
	r = serve(t, target.Config{}, "memory:8MiB")
	host = filepath.Join(t.TempDir(), "second.sock")
	d = r.dial(t, "a", func(c *initiator.Config) {
		lasting(time.Minute)(c)
		c.OtherHosts, c.PathPolicy = []string{host}, p
	})
	return r, d, host
}

// use writes and reads back at a place of a queue.
func use(t *testing.T, q *initiator.Queue, off int64, seed byte) {
	t.Helper()
	w, r := request(block.Write, off, 64<<10), request(block.Read, off, 64<<10)
	pattern(w.Data, seed)
	l := loadWorker{q: q}
	for _, one := range []*block.Request{w, r} {
		must(t, l.do(one))
	}
	if !bytes.Equal(w.Data, r.Data) {
		t.Error("other data was read")
	}
}

// states returns the states of the paths.
func states(d *initiator.Device) (s [2]initiator.PathState) {
	for i, p := range d.Status().Paths {
		s[i] = p.State
	}
	return s
}

// TestPathsComeAndGo: a session goes on over either of two paths, in clear and
// sealed, and a path that is there again is used again.
func TestPathsComeAndGo(t *testing.T) {
	for name, serve := range map[string]func(testing.TB, target.Config, ...string) *remote{"clear": newRemote, "sealed": newSealedRemote} {
		t.Run(name, func(t *testing.T) {
			r, d, host := twoPaths(t, serve, initiator.PathRoundRobin)
			up, down := initiator.PathUp, initiator.PathDown
			if s := states(d); s != [2]initiator.PathState{up, down} {
				t.Fatalf("states %v before the second host is there", s)
			}
			var queues []*initiator.Queue // both over the first path; closed below
			for range 2 {
				q, err := d.NewQueue(4)
				must(t, err)
				queues = append(queues, q.(*initiator.Queue))
			}
			session, began := d.Status().Session, time.Now()
			for round := range byte(2) {
				stop := r.second(t, host)
				waitFor(t, "the second path, with a queue", func() bool {
					for i, q := range queues { // an owner drives a move
						use(t, q, int64(i)<<20, round)
					}
					return states(d) == [2]initiator.PathState{up, up} && d.Status().Paths[1].Queues == 1
				})
				stop()
				for i, q := range queues {
					use(t, q, int64(i)<<20, 100+round)
				}
				if st := d.Status(); st.SessionLosses != 0 || st.Session != session || st.Stats.Errors != 0 || st.Paths[0].Queues != 2 {
					t.Fatalf("after the loss of a path: %+v", st)
				}
			}
			paths, total := d.Status().Paths, uint64(0)
			if p := paths[1]; p.Losses != 2 || p.LastLoss.Before(began) || !paths[0].LastLoss.IsZero() {
				t.Errorf("%d losses of the path, 2 were, the last at %v; %+v", p.Losses, p.LastLoss, paths[0])
			}
			for _, q := range queues {
				must(t, q.Close())
			}
			for i, p := range d.Status().Paths {
				if total += p.Requests; p.Requests == 0 {
					t.Errorf("path %d has no requests", i)
				}
			}
			stats := d.Status().Stats
			if n := stats.Counts.Requests(); total != n {
				t.Errorf("the paths have %d requests of %d", total, n)
			}
		})
	}
}

// TestLostPathIsHeldDown: a path that was lost is not used at once although its
// host is there again.
func TestLostPathIsHeldDown(t *testing.T) {
	r, d, host := twoPaths(t, newRemote, initiator.PathFailOver)
	q := open(t, d, 1)
	second := func() bool {
		use(t, q, 0, 1)
		return states(d)[1] == initiator.PathUp
	}
	stop := r.second(t, host)
	waitFor(t, "the second path", second)
	began := time.Now()
	stop()
	waitFor(t, "its loss", func() bool { return !second() })
	stop = r.second(t, host)
	waitFor(t, "the second path again", second)
	if away := time.Since(began); away < 500*time.Millisecond { // half of the first hold-down
		t.Errorf("the path is used again after %v", away)
	}
	stop()
}

// TestLoginOverTheSecondHost: a device attaches over whichever host is there.
func TestLoginOverTheSecondHost(t *testing.T) {
	r := newRemote(t, target.Config{}, "memory:8MiB")
	nowhere := filepath.Join(t.TempDir(), "nowhere.sock")
	d := r.dial(t, "a", func(c *initiator.Config) {
		lasting(time.Minute)(c)
		c.Host, c.OtherHosts = nowhere, []string{r.host}
	})
	use(t, open(t, d, 1), 0, 1)
	if s := states(d); s != [2]initiator.PathState{initiator.PathDown, initiator.PathUp} {
		t.Errorf("states %v", s)
	}
}

// TestAnotherTargetIsNoPath: a host where another target listens never becomes
// a path.
func TestAnotherTargetIsNoPath(t *testing.T) {
	r, other := newRemote(t, target.Config{}, "memory:8MiB"), newRemote(t, target.Config{}, "memory:8MiB")
	d := r.dial(t, "a", func(c *initiator.Config) {
		lasting(time.Minute)(c)
		c.OtherHosts = []string{other.host}
	})
	waitFor(t, "a refused path", func() bool { return d.Status().Paths[1].Error != "" })
	if p := d.Status().Paths[1]; p.State != initiator.PathDown {
		t.Errorf("path %+v", p)
	}
	use(t, open(t, d, 1), 0, 1)
	if n := len(other.server.Sessions()); n != 0 {
		t.Errorf("%d sessions at the other target", n)
	}
}

// TestPathConfig: what cannot be is refused before anything is connected.
func TestPathConfig(t *testing.T) {
	nic := openNIC(t)
	defer func() { must(t, nic.Close()) }()
	for name, change := range map[string]func(*initiator.Config){
		"no loss timeout": func(c *initiator.Config) { c.LossTimeout = 0 },
		"too many":        func(c *initiator.Config) { c.OtherHosts = make([]string, 8) },
		"policy":          func(c *initiator.Config) { c.PathPolicy = "random" },
	} {
		c := initiator.Config{NIC: nic, Host: "h", OtherHosts: []string{"i"}, LossTimeout: time.Second}
		change(&c)
		if d, err := initiator.Dial(t.Context(), c); d != nil || err == nil || errors.Is(err, via.ErrNotReachable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A device that its owner closed has not failed.
func TestClosedDeviceHasNoError(t *testing.T) {
	for name, serve := range serves {
		t.Run(name, func(t *testing.T) {
			d := serve(t, target.Config{}, "memory:1MiB").dial(t, "a", nil)
			if err := d.Err(); err != nil {
				t.Errorf("at work: %v", err)
			}
			must(t, d.Close())
			<-d.Done()
			if err := d.Err(); err != nil {
				t.Errorf("closed: %v", err)
			}
		})
	}
}

// TestHostsComeAndGo: a device gets hosts and loses them under load; what it
// has left it does not use.
func TestHostsComeAndGo(t *testing.T) {
	for name, serve := range map[string]func(testing.TB, target.Config, ...string) *remote{"clear": newRemote, "sealed": newSealedRemote} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, target.Config{}, "memory:8MiB")
			d := r.dial(t, "a", lasting(time.Minute))
			if p := d.Status().Paths; p != nil {
				t.Fatalf("paths of one host: %+v", p)
			}
			second := filepath.Join(t.TempDir(), "second.sock")
			stop := r.second(t, second)
			defer func() { stop() }()
			session := d.Status().Session
			ctx, cancel := context.WithCancel(t.Context())
			var load sync.WaitGroup
			var failures atomic.Int64
			for i := range int64(2) {
				q := open(t, d, 4)
				load.Go(func() {
					l := loadWorker{q: q}
					for n := byte(0); ctx.Err() == nil; n++ {
						w, r := request(block.Write, i<<20, 64<<10), request(block.Read, i<<20, 64<<10)
						pattern(w.Data, n)
						if l.do(w) != nil || l.do(r) != nil || !bytes.Equal(w.Data, r.Data) {
							failures.Add(1)
						}
					}
				})
			}
			hosts := [2]string{r.host, second}
			for round := range 3 {
				old, other := hosts[round%2], hosts[(round+1)%2]
				must(t, d.AddHost(other))
				if err := d.AddHost(other); !errors.Is(err, initiator.ErrHostKnown) {
					t.Errorf("added twice: %v", err)
				}
				waitFor(t, "the other path", func() bool { return states(d) == [2]initiator.PathState{initiator.PathUp, initiator.PathUp} })
				must(t, d.RemoveHost(t.Context(), old))
				if p := d.Status().Paths; p != nil {
					t.Errorf("paths of the other host: %+v", p)
				}
				if err := d.RemoveHost(t.Context(), old); !errors.Is(err, initiator.ErrHostUnknown) {
					t.Errorf("removed twice: %v", err)
				}
				if err := d.RemoveHost(t.Context(), other); !errors.Is(err, initiator.ErrLastPath) {
					t.Errorf("removed the last: %v", err)
				}
				waitFor(t, "one control connection and those of two queues", func() bool {
					s := r.server.Sessions()
					return len(s) == 1 && s[0].Connections == 3
				})
			}
			cancel()
			load.Wait()
			if st := d.Status(); failures.Load() != 0 || st.Session != session || st.SessionLosses != 0 || st.Stats.Errors != 0 {
				t.Errorf("%d failures; status %+v", failures.Load(), st)
			}
		})
	}
}

// TestHostOfTheReturn: a device whose target is away finds it at a host that it
// was told meanwhile, and not at one that it was told to leave.
func TestHostOfTheReturn(t *testing.T) {
	r := newRemote(t, target.Config{}, "memory:8MiB")
	first, second := filepath.Join(t.TempDir(), "first.sock"), filepath.Join(t.TempDir(), "second.sock")
	stop := r.second(t, first)
	d := r.dial(t, "a", func(c *initiator.Config) {
		lasting(time.Minute)(c)
		c.Host = first
	})
	q := open(t, d, 4)
	use(t, q, 0, 1)
	stop()
	waitFor(t, "the loss", func() bool { return d.Status().SessionLosses == 1 })
	must(t, d.AddHost(r.host))
	must(t, d.RemoveHost(t.Context(), first))
	defer r.second(t, second)()
	use(t, q, 0, 2)
	if st := d.Status(); st.Paths != nil {
		t.Errorf("paths %+v", st.Paths)
	}
}

// TestHostsThatCannotChange: mistakes change nothing.
func TestHostsThatCannotChange(t *testing.T) {
	r := newRemote(t, target.Config{}, "memory:8MiB")
	d := r.dial(t, "a", nil) // without a loss timeout
	if err := d.AddHost("h"); !errors.Is(err, initiator.ErrNoPaths) {
		t.Errorf("no loss timeout: %v", err)
	}
	must(t, d.Close())
	d = r.dial(t, "a", lasting(time.Minute))
	for i := range 7 {
		must(t, d.AddHost(filepath.Join(t.TempDir(), strconv.Itoa(i))))
	}
	if err := d.AddHost("h"); !errors.Is(err, initiator.ErrHosts) {
		t.Errorf("a ninth host: %v", err)
	}
	if err := d.RemoveHost(t.Context(), r.host); !errors.Is(err, initiator.ErrLastPath) {
		t.Errorf("the only path that is up: %v", err)
	}
	use(t, open(t, d, 1), 0, 1)
}
