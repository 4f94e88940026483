package attack

import (
	"bytes"
	"errors"
	"log/slog"
	"math/bits"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/via"
)

// flipper flips a bit of payload that is in flight: not in the memory that it
// comes from.
type flipper struct {
	mu      sync.Mutex
	channel channel
	at      int // byte of the payload
	left    int // payloads to change
	done    int
}

// arm has the next n payloads of a channel changed.
func (f *flipper) arm(c channel, at, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.channel, f.at, f.left, f.done = c, at, n, 0
}

// flips ends that, and returns how many were changed.
func (f *flipper) flips() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left = 0
	return f.done
}

// flip is what the fabric does to a work. The payload of a message lies behind
// its header, in a segment of its own.
func (f *flipper) flip(c channel, w *via.Work) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c != f.channel || f.left == 0 || c == messages && len(w.Segments) < 2 {
		return
	}
	s := &w.Segments[len(w.Segments)-1]
	if c != pulled { // whose memory is that of the receiver
		s.Bytes = bytes.Clone(s.Bytes)
	}
	s.Bytes[f.at%len(s.Bytes)] ^= 2
	f.left--
	f.done++
}

// way is how payload moves.
type way struct {
	channel channel
	op      block.Op
	n       int // bytes
}

// ways are all of them, each with one command and with several.
var ways = map[string]way{
	"inline write":      {messages, block.Write, 4096},
	"inline read":       {messages, block.Read, 4096},
	"write":             {pulled, block.Write, 128 << 10},
	"read":              {placed, block.Read, 128 << 10},
	"write of commands": {pulled, block.Write, 3 << 20},
	"read of commands":  {placed, block.Read, 3 << 20},
	"extents":           {messages, block.Status, 1 << 20},
}

// specs are disks whose payload moves through a pool, directly, and out of a
// mapping.
var specs = map[string]func(testing.TB) string{
	"file":   func(t testing.TB) string { return "file:" + testbed.SparseFile(t, diskSize) },
	"memory": func(testing.TB) string { return "memory:16MiB" },
	"mmap":   func(t testing.TB) string { return "mmap:" + testbed.SparseFile(t, diskSize) },
}

// digested are a target and an initiator over a flipper.
type digested struct {
	*scene
	*flipper
	disk *disk
	log  *lines
}

func newDigested(t testing.TB, fabric testbed.Fabric, spec string, digest bool, change func(*initiator.Config)) *digested {
	t.Helper()
	x := &digested{flipper: &flipper{}, log: new(lines)}
	a := newAttacker(func(channel, []byte) {})
	a.change = x.flip
	x.scene = newSceneOf(t, fabric, a, false, seal.Limits{}, spec)
	x.stop()
	x.cfg.Log, x.cfg.RequireDigest = slog.New(slog.NewTextHandler(x.log, nil)), digest
	x.cfg.KeepAlive = time.Minute // or a busy machine loses sessions
	x.start(t)
	d := x.dialAs(t, func(c *initiator.Config) {
		c.Digest = digest
		change(c)
	})
	t.Cleanup(func() { testbed.Must(t, d.Close()) })
	x.disk = &disk{d, make([]byte, diskSize)}
	x.disk.write(t, testbed.RandomBytes(8<<20), 0)
	return x
}

// found waits until the initiator has counted so many more digests that do not
// fit than before, and returns what it counts. A queue shows that later.
func (x *digested) found(t testing.TB, before *initiator.Status, n uint64) initiator.Status {
	t.Helper()
	var st initiator.Status
	waitFor(t, "digest that does not fit", func() bool {
		x.disk.verify(t, 512, 0)
		st = x.disk.Status()
		return st.Stats.DigestErrors-before.Stats.DigestErrors >= n
	})
	return st
}

// begin is where the disk is used: for extents, it is a page that the disk has.
const begin = 1 << 20

// move moves payload, and returns what the disk or the client has got, and what
// it should have.
func (x *digested) move(t testing.TB, w way) (got, want []byte, err error) {
	t.Helper()
	got, want = make([]byte, w.n), x.disk.model[begin:][:w.n]
	switch w.op {
	case block.Write:
		want = testbed.RandomBytes(w.n)
		_, err = x.disk.WriteAt(want, begin)
		x.flips()
		if _, err := x.disk.ReadAt(got, begin); err != nil {
			t.Fatal(err)
		}
	case block.Read:
		_, err = x.disk.ReadAt(got, begin)
	case block.Status:
		got = nil
		err = x.disk.Extents(begin, int64(w.n), func(off int64, e block.Extent) error {
			got = append(got, bytes.Repeat([]byte{byte(e.Flags)}, int(e.Length))...)
			return nil
		})
		want = make([]byte, w.n)
	}
	return got, want, err
}

// TestDigestFindsFlips: a flipped bit of payload is found on every way, and the
// request is resent: neither the disk nor the client gets another byte. Without
// digests the same flip goes through, or this test would prove nothing.
func TestDigestFindsFlips(t *testing.T) {
	for name, fabric := range testbed.Fabrics {
		for kind, spec := range specs {
			for _, digest := range []bool{true, false} {
				x := newDigested(t, fabric, spec(t), digest, func(*initiator.Config) {})
				for what, w := range ways {
					what := name + "/" + kind + "/" + what
					before, served := x.disk.Status(), x.server.Status().Stats.DigestErrors
					x.arm(w.channel, 4, 1)
					got, want, err := x.move(t, w)
					if n := x.flips(); err != nil || n != 1 {
						t.Fatalf("%s, digest %v: %v, %d flips", what, digest, err, n)
					}
					if wrong := differing(got, want); digest && wrong != 0 || !digest && wrong == 0 {
						t.Errorf("%s, digest %v: %d bits are wrong", what, digest, wrong)
					}
					losses, writes := uint64(0), uint64(0)
					if digest {
						losses = 1
					}
					if w.op == block.Write {
						writes = losses
					}
					after := x.found(t, &before, losses)
					found := after.Stats.DigestErrors - before.Stats.DigestErrors
					atTarget := x.server.Status().Stats.DigestErrors - served
					if found != losses || atTarget != writes || after.SessionLosses-before.SessionLosses != losses {
						t.Errorf("%s, digest %v: found %d, %d of them at the target, and lost %d sessions",
							what, digest, found, atTarget, after.SessionLosses-before.SessionLosses)
					}
					if w.op == block.Write {
						x.disk.write(t, x.disk.model[begin:][:w.n], begin)
					}
				}
				if logged := x.log.has("event=payload_corrupt"); logged != digest {
					t.Errorf("%s/%s, digest %v: logged %v", name, kind, digest, logged)
				}
			}
		}
	}
}

// differing counts the bits that differ.
func differing(a, b []byte) (n int) {
	if len(a) != len(b) {
		return -1
	}
	for i := range a {
		n += bits.OnesCount8(a[i] ^ b[i])
	}
	return n
}

// mostFlips is more than the payloads of three attempts.
const mostFlips = 300

// TestPayloadCorruptEachTime: a request whose payload never arrives whole fails
// with EIO at the third attempt, or at the first without a loss timeout. The
// disk has not got it, and the next request is served.
func TestPayloadCorruptEachTime(t *testing.T) {
	attempts := map[string]int{"reconnects": 3, "fails": 1}
	for name, fabric := range testbed.Fabrics {
		for policy, n := range attempts {
			x := newDigested(t, fabric, "memory:16MiB", true, func(c *initiator.Config) {
				if policy == "fails" {
					c.LossTimeout = 0
				}
			})
			for what, w := range ways {
				if w.op == block.Status {
					continue
				}
				what := name + "/" + policy + "/" + what
				before := x.disk.Status()
				x.arm(w.channel, 4, mostFlips)
				got, _, err := x.move(t, w)
				x.flips()
				x.disk.verify(t, 4<<20, begin)
				after := x.found(t, &before, uint64(n))
				found, errs := after.Stats.DigestErrors-before.Stats.DigestErrors, after.Stats.Errors-before.Stats.Errors
				if !errors.Is(err, syscall.EIO) || found < uint64(n) || w.n < 1<<20 && found > uint64(n) || errs != 1 || !after.Connected {
					t.Errorf("%s: %v, found %d, %d errors, %s", what, err, found, errs, after.State)
				}
				if losses := after.SessionLosses - before.SessionLosses; losses != uint64(n-1) {
					t.Errorf("%s: lost %d sessions", what, losses)
				}
				if w.op == block.Write && differing(got, x.disk.model[begin:][:w.n]) != 0 {
					t.Errorf("%s: the disk has changed", what)
				}
			}
		}
	}
}
