package initiator_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/target"
)

// TestSecurityRefusals: ends that do not both want security, or of which one is
// not who it has to be, have no session, and the error is a SecurityError that
// tells what to do.
func TestSecurityRefusals(t *testing.T) {
	r := newSealedRemote(t, target.Config{}, "memory:16MiB")
	plain := newRemote(t, target.Config{}, "memory:16MiB")
	others := certificates(t, "alice")
	for name, c := range map[string]struct {
		to       *remote
		security func() (handshake.Config, error)
		text     string
	}{
		"initiator in clear":  {r, nil, "--certificates"},
		"target in clear":     {plain, initiatorSecurity(r.folder, "alice", targetName), "leave out the certificates"},
		"other name":          {r, initiatorSecurity(r.folder, "alice", "other.example"), "other.example"},
		"other authority":     {r, initiatorSecurity(others, "alice", targetName), "unknown authority"},
		"no such certificate": {r, initiatorSecurity(r.folder, "unknown", targetName), "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := initiator.Config{NIC: c.to.nic, Host: c.to.host, Export: "a", Security: c.security, Log: slog.New(slog.DiscardHandler)}
			_, err := initiator.Dial(context.Background(), cfg)
			_, list := initiator.Discover(context.Background(), cfg)
			for what, err := range map[string]error{"dial": err, "discover": list} {
				var refused *initiator.SecurityError
				if !errors.As(err, &refused) || !strings.Contains(err.Error(), c.text) {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
	for _, server := range []*remote{r, plain} {
		if st := server.server.Status(); st.Sessions != 0 || st.Stats.Reads != 0 {
			t.Errorf("status %+v", st)
		}
	}
}

// TestSealedCopyMode: nothing moves without a copy in a sealed session, at
// neither end, so both refuse to be told so.
func TestSealedCopyMode(t *testing.T) {
	r := newSealedRemote(t, target.Config{}, "memory:16MiB")
	cfg := initiator.Config{NIC: r.nic, Host: r.host, Security: initiatorSecurity(r.folder, "alice", targetName), CopyMode: regcache.CopyZero}
	if _, err := initiator.Dial(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), "zerocopy") {
		t.Errorf("dial: %v", err)
	}
	served := r.cfg
	served.CopyMode = regcache.CopyZero
	if _, err := target.New(served); err == nil || !strings.Contains(err.Error(), "zerocopy") {
		t.Errorf("serve: %v", err)
	}
	d := r.dial(t, "a", nil)
	if _, err := d.Alloc(1 << 60); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("a buffer of 1 EiB: %v", err)
	}
	if st := d.Status(); st.Copy.Mode != regcache.CopyBounce || st.Copy.Off == "" || st.Copy.Cache != nil {
		t.Errorf("copy status %+v", st.Copy)
	}
}

// TestSealedStatus: both ends tell who the peer is and what protects the
// session, and the list of disks comes over a sealed connection.
func TestSealedStatus(t *testing.T) {
	r := newSealedRemote(t, target.Config{}, "memory:16MiB", "memory:1MiB")
	d := r.dial(t, "a", nil)
	ours, theirs := d.Status().Security, r.server.Status().Security
	if ours == nil || ours.Cipher != "AES-256-GCM" || !slices.Contains(ours.Peer, targetName) || ours.Serial == "" ||
		time.Until(ours.Expires) <= 0 || ours.Generation != 1 || !strings.Contains(ours.Agreement, "X25519") {
		t.Errorf("initiator: %+v", ours)
	}
	if theirs == nil || theirs.Cipher != ours.Cipher || len(theirs.Sessions) != 1 {
		t.Fatalf("target: %+v", theirs)
	}
	if s := theirs.Sessions[0]; s.Session != d.Status().Session || !slices.Contains(s.Peer, "alice") || s.Serial == "" ||
		time.Until(s.Expires) <= 0 || s.Generation != 1 {
		t.Errorf("session %+v", s)
	}
	list, err := initiator.Discover(context.Background(), initiator.Config{
		NIC: r.nic, Host: r.host, Security: initiatorSecurity(r.folder, "mallory", targetName),
	})
	if err != nil || len(list) != 2 || list[1].Name != "b" {
		t.Errorf("list %+v, %v", list, err)
	}
	must(t, d.Close())
	waitFor(t, "the end of the session", func() bool { return len(r.server.Status().Security.Sessions) == 0 })
}

// TestExposedMemory: memory that the target can reach holds no plaintext in a
// sealed session, after requests of all lengths in memory of the caller's and
// in reserved memory. In clear it does, or this test would prove nothing.
func TestExposedMemory(t *testing.T) {
	marker := []byte("a secret of sixteen bytes or more")
	for name, serve := range serves {
		t.Run(name, func(t *testing.T) {
			r := serve(t, target.Config{}, fileSpec(t, 16<<20))
			d := r.dial(t, "a", func(c *initiator.Config) { c.PoolBytes, c.CopyMode = 4<<20, regcache.CopyBounce })
			q := open(t, d, 4)
			for _, n := range []int64{512, 4096, 8192, 128 << 10, 300 << 10, 2 << 20} {
				data := bytes.Repeat(marker, int(n)/len(marker)+1)[:n]
				for _, op := range []block.Op{block.Write, block.Read} {
					for _, reserve := range []bool{true, false} {
						x := &block.Request{Op: op, Length: n}
						if !reserve {
							x.Data = bytes.Clone(data)
						} else if !q.Reserve(x) {
							t.Fatal("nothing is reserved")
						}
						if op == block.Write {
							copy(x.Data, data)
						}
						submit(t, q, x)
						wantAll(t, q, 1, 0)
						if !bytes.Equal(x.Data, data) {
							t.Fatal("other data than was written")
						}
						q.Release(x)
					}
				}
			}
			if found := bytes.Contains(q.Exposed(), marker); found != (name != "sealed") {
				t.Errorf("plaintext in exposed memory: %v", found)
			}
			clear(q.Exposed())
		})
	}
}

// TestSealedTakeover: another initiator takes the disk, and the first one is
// lost for good.
func TestSealedTakeover(t *testing.T) {
	r := newSealedRemote(t, target.Config{}, "memory:16MiB")
	first := r.dial(t, "a", nil)
	data := bytes.Repeat([]byte("first"), 100_000)
	_, err := first.WriteAt(data, 512)
	must(t, err)
	second := r.dial(t, "a", func(c *initiator.Config) {
		c.Preempt, c.Security = true, initiatorSecurity(r.folder, "mallory", targetName)
	})
	got := make([]byte, len(data))
	if _, err := second.ReadAt(got, 512); err != nil || !bytes.Equal(got, data) {
		t.Errorf("read %v, equal %v", err, bytes.Equal(got, data))
	}
	select {
	case <-first.Done():
	case <-time.After(testTimeout):
		t.Error("the first initiator goes on")
	}
	if _, err := first.WriteAt(data, 0); err == nil {
		t.Error("the first initiator writes")
	}
}

// TestSealedDrain: requests go on behind a target that drains, once another is
// in its place.
func TestSealedDrain(t *testing.T) {
	r := newSealedRemote(t, target.Config{}, fileSpec(t, 16<<20))
	d := r.dial(t, "a", lasting(initiator.Forever))
	q := open(t, d, 4)
	for range 3 {
		w := &block.Request{Op: block.Write, Length: 300 << 10, Data: make([]byte, 300<<10)}
		pattern(w.Data, 3)
		submit(t, q, w)
		wantAll(t, q, 1, 0)
		drained := make(chan error, 1)
		go func() { drained <- r.server.Drain(context.Background()) }()
		must(t, <-drained)
		r.stop()
		x := request(block.Read, 0, 300<<10)
		submit(t, q, x)
		r.start(t)
		wantAll(t, q, 1, 0)
		if !bytes.Equal(x.Data, w.Data) {
			t.Error("other data than was written")
		}
	}
}

// laterClock is the real scheduler with a clock that is ahead.
type laterClock struct {
	sched.Scheduler
	ahead atomic.Int64
}

func (c *laterClock) Now() time.Time {
	return c.Scheduler.Now().Add(time.Duration(c.ahead.Load()))
}

// TestSealedTime: after an hour a connection goes on with new keys, and when
// the certificate of the initiator has expired, the target ends the session.
func TestSealedTime(t *testing.T) {
	clock := &laterClock{Scheduler: sched.Real}
	r := newSealedRemote(t, target.Config{Scheduler: clock, KeepAlive: 300 * time.Millisecond}, fileSpec(t, 16<<20))
	d := r.dial(t, "a", func(c *initiator.Config) {
		lasting(initiator.Forever)(c)
		c.Scheduler = clock
	})
	q := open(t, d, 4)
	move := func() {
		for _, x := range []*block.Request{request(block.Write, 0, 512), request(block.Write, 0, 64<<10), request(block.Read, 0, 64<<10)} {
			submit(t, q, x)
			wantAll(t, q, 1, 0)
		}
	}
	move()
	// Some keepalives between the steps: both ends see each hour pass.
	stepped := time.Now()
	waitFor(t, "another generation of keys", func() bool {
		if time.Since(stepped) > time.Second {
			stepped = time.Now()
			clock.ahead.Add(int64(61 * time.Minute))
		}
		move()
		ours, theirs := d.Status().Security, r.server.Status().Security.Sessions
		return ours.Generation > 1 && len(theirs) == 1 && theirs[0].Generation > 1
	})
	lost := d.Status().SessionLosses
	clock.ahead.Store(int64(validity))
	waitFor(t, "the end of the session", func() bool {
		q.Reap(nil)
		return d.Status().SessionLosses > lost
	})
}

// TestRogueTarget: a target at the same address that shows a certificate of
// another authority, or none, gets nothing, and requests wait for the true one.
func TestRogueTarget(t *testing.T) {
	r := newSealedRemote(t, target.Config{}, fileSpec(t, 16<<20))
	d := r.dial(t, "a", lasting(initiator.Forever))
	q := open(t, d, 4)
	w := &block.Request{Op: block.Write, Length: 64 << 10, Data: bytes.Repeat([]byte("truth"), 16<<10)[:64<<10]}
	submit(t, q, w)
	wantAll(t, q, 1, 0)
	truth := r.cfg.Security
	for _, rogue := range []*handshake.Guard{targetSecurity(t, certificates(t)), nil} {
		r.stop()
		r.cfg.Security = rogue
		r.start(t)
		x := request(block.Read, 0, 64<<10)
		submit(t, q, x)
		waitFor(t, "the refusal", func() bool {
			q.Reap(nil)
			st := d.Status()
			return !st.Connected && st.State == initiator.StateWaiting && st.Error != ""
		})
		if st := r.server.Status(); st.Sessions != 0 || st.Stats.Reads+st.Stats.Writes != 0 {
			t.Errorf("the rogue serves: %+v", st)
		}
		r.stop()
		r.cfg.Security = truth
		r.start(t)
		wantAll(t, q, 1, 0)
		if !bytes.Equal(x.Data, w.Data) {
			t.Error("other data than was written")
		}
	}
}
