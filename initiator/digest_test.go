package initiator_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
)

// TestDigestOfOneEnd: with an end that has no data digests, or demands none,
// the other decides: a session has them, has none, or is refused with what to
// do. A sealed session has none and needs none.
func TestDigestOfOneEnd(t *testing.T) {
	for name, c := range map[string]struct {
		serve            func(testing.TB, target.Config, ...string) *remote
		require, offer   bool
		refused, digests bool
	}{
		"initiator asks":          {newRemote, false, true, false, true},
		"target demands":          {newRemote, true, false, true, false},
		"both":                    {newRemote, true, true, false, true},
		"neither":                 {newRemote, false, false, false, false},
		"sealed, initiator asks":  {newSealedRemote, false, true, false, false},
		"sealed, target demands":  {newSealedRemote, true, false, false, false},
		"sealed, both ask for it": {newSealedRemote, true, true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := c.serve(t, target.Config{RequireDigest: c.require}, "memory:16MiB")
			if c.refused {
				_, err := initiator.Dial(context.Background(), initiator.Config{NIC: r.nic, Host: r.host, Export: "a", Digest: c.offer})
				if err == nil || !strings.Contains(err.Error(), "attach with --data-digest") || block.Errno(err) != syscall.EPERM {
					t.Errorf("dial: %v", err)
				}
				return
			}
			d := r.dial(t, "a", func(cfg *initiator.Config) { cfg.Digest = c.offer })
			data := bytes.Repeat([]byte("payload"), 20_000)
			_, err := d.WriteAt(data, 512)
			must(t, err)
			got := make([]byte, len(data))
			if _, err := d.ReadAt(got, 512); err != nil || !bytes.Equal(got, data) {
				t.Errorf("read: %v, equal %v", err, bytes.Equal(got, data))
			}
			if st := d.Status(); st.DataDigest != c.digests || st.Stats.DigestErrors != 0 {
				t.Errorf("status %+v", st)
			}
		})
	}
}

// TestTargetWithoutDigests: an initiator that is told to have data digests does
// not go without them at a target that knows none.
func TestTargetWithoutDigests(t *testing.T) {
	cfg := newStage(t, play{}).config()
	cfg.Digest = true
	if _, err := initiator.Dial(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), "leave out --data-digest") {
		t.Errorf("dial: %v", err)
	}
	if _, err := initiator.Discover(context.Background(), cfg); err == nil || strings.Contains(err.Error(), "digest") {
		t.Errorf("discover: %v", err) // this target lists nothing
	}
}

// TestDigestsOfAnswers: an answer has a digest if, and only if, it brings data.
// One that does not fit fails its request alone, in a queue that does not
// reconnect.
func TestDigestsOfAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		asks   []string
		change func(r *wire.Reply)
		lost   bool
	}{
		"right":   {[]string{"small read", "large read", "small write", "flush"}, func(*wire.Reply) {}, false},
		"none":    {[]string{"small read", "large read"}, func(r *wire.Reply) { r.Flags, r.DataCRC = 0, 0 }, true},
		"unasked": {[]string{"small write", "large write", "flush", "trim"}, func(r *wire.Reply) { r.Flags = wire.ReplyDataDigest }, true},
		"wrong":   {[]string{"small read", "large read"}, func(r *wire.Reply) { r.DataCRC ^= 1 }, false},
		"refused": {[]string{"small write", "large write"}, func(r *wire.Reply) { r.Status, r.Length = wire.StatusDigest, 0 }, false},
	} {
		for _, kind := range c.asks {
			t.Run(name+"/"+kind, func(t *testing.T) {
				a := asks[kind]
				s := newStage(t, play{
					login: func(e *end, q *wire.LoginRequest, m *wire.LoginResponse) bool {
						m.Digest = q.Digest
						e.sendControl(m)
						return true
					},
					command: func(e *end, cmd *wire.Command, payload []byte) bool {
						if (cmd.Flags&wire.FlagDataDigest != 0) != (cmd.Mode != wire.ModeNone) || cmd.InlineLength > 0 && cmd.DataCRC != wire.DataCRC(payload) {
							t.Errorf("command %+v", cmd)
						}
						r := replyOf(cmd)
						if cmd.Opcode == wire.OpRead {
							r.Flags, r.DataCRC = wire.ReplyDataDigest, wire.DataCRC(make([]byte, cmd.Length))
						}
						if cmd.Mode == wire.ModePlace {
							e.write(cmd)
						}
						if cmd.Offset == 0 {
							c.change(&r)
						}
						e.reply(r, int(r.InlineLength))
						return true
					},
				})
				cfg := s.config()
				cfg.Digest = true
				d, err := initiator.Dial(context.Background(), cfg)
				must(t, err)
				t.Cleanup(func() { must(t, d.Close()) })
				q := open(t, d, 4)
				submit(t, q, request(a.op, 0, a.n))
				want := syscall.EIO
				if name == "right" {
					want = 0
				}
				wantAll(t, q, 1, want)
				if (q.Err() != nil) != c.lost {
					t.Fatalf("the queue says %v", q.Err())
				}
				if !c.lost {
					submit(t, q, request(block.Read, 1<<20, 64<<10))
					wantAll(t, q, 1, 0)
				}
			})
		}
	}
}

// TestDigestBesideAnotherWriter: another writer of a block gives no false alarm
// to a reader, in a disk of memory, in a mapped one, and in a file.
func TestDigestBesideAnotherWriter(t *testing.T) {
	file := fileSpec(t, 16<<20)
	r := newDigestRemote(t, target.Config{}, "memory:16MiB", file, "mmap:"+strings.TrimPrefix(fileSpec(t, 16<<20), "file:"))
	for _, export := range []string{"a", "b", "c"} {
		writer := r.dial(t, export, nil)
		reader := r.dial(t, export, func(c *initiator.Config) { c.ReadOnly = true })
		var wg sync.WaitGroup
		for i, n := range []int{4096, 64 << 10} {
			begun, ended := make(chan struct{}), make(chan struct{})
			wg.Go(func() {
				defer close(ended)
				data := make([]byte, n)
				for k := range 300 {
					pattern(data, byte(k))
					if _, err := writer.WriteAt(data, int64(i)<<20); err != nil {
						t.Errorf("%s: write: %v", export, err)
						return
					}
					if k == 0 {
						close(begun)
					}
				}
			})
			wg.Go(func() {
				<-begun
				data := make([]byte, n)
				for {
					select {
					case <-ended:
						return
					default:
					}
					if _, err := reader.ReadAt(data, int64(i)<<20); err != nil {
						t.Errorf("%s: read: %v", export, err)
						return
					}
				}
			})
		}
		wg.Wait()
		_, err := reader.ReadAt(make([]byte, 512), 0) // its counters show
		must(t, err)
		if n := writer.Status().Stats.DigestErrors + reader.Status().Stats.DigestErrors; n != 0 {
			t.Errorf("%s: %d digests do not fit", export, n)
		}
	}
}
