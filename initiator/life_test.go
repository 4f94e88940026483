package initiator_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
)

// lifeBook keeps the lives that a device tells.
type lifeBook struct {
	mu    sync.Mutex
	lives []initiator.Life
}

func (k *lifeBook) keep(l initiator.Life) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lives = append(k.lives, l)
}

func (k *lifeBook) all() []initiator.Life {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]initiator.Life(nil), k.lives...)
}

// live attaches a disk, perhaps writes to it, and ends. It returns its life.
func live(t *testing.T, r *remote, export string, from *initiator.Life, writes bool) (initiator.Life, error) {
	t.Helper()
	var k lifeBook
	d, err := initiator.Dial(context.Background(), initiator.Config{NIC: r.nic, Host: r.host, Export: export, Continues: from, KeepLife: k.keep})
	if err != nil {
		return initiator.Life{}, err
	}
	if writes {
		_, err := d.WriteAt(make([]byte, 4096), 0)
		must(t, err)
	}
	must(t, d.Close())
	return k.all()[0], nil
}

// TestLifeGoesOn: a process continues the life of the one before, unless
// another client wrote meanwhile, or the disk is another.
func TestLifeGoesOn(t *testing.T) {
	r := newRemote(t, target.Config{}, fileSpec(t, 1<<20), fileSpec(t, 1<<20), fileSpec(t, 1<<20))
	for name, c := range map[string]struct {
		writes               bool // of the life
		comes, writesBetween bool // another client
		disk, next           string
		want                 string
	}{
		"alone":                     {true, false, false, "a", "a", ""},
		"a reader, alone":           {false, false, false, "a", "a", ""},
		"after one that only reads": {true, true, false, "a", "a", ""},
		"after a writer":            {true, true, true, "a", "a", "another client wrote to the disk meanwhile"},
		"a reader and a writer":     {false, true, true, "a", "a", "another client wrote to the disk meanwhile"},
		"another disk":              {false, false, false, "b", "c", "serves another disk under this name"},
	} {
		t.Run(name, func(t *testing.T) {
			first, err := live(t, r, c.disk, nil, c.writes)
			must(t, err)
			if c.comes {
				_, err := live(t, r, "a", nil, c.writesBetween)
				must(t, err)
			}
			second, err := live(t, r, c.next, &first, true)
			if c.want != "" {
				if refused := new(initiator.ContinueError); !errors.As(err, &refused) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, not a refusal with %q", err, c.want)
				}
				return
			}
			must(t, err)
			if second.Writer != first.Writer {
				t.Error("the second process is another writer")
			}
			_, err = live(t, r, "a", &second, true)
			must(t, err)
		})
	}
}

// TestLifeAfterALoss: writes that were answered may be lost since the process
// before, whose users would not notice.
func TestLifeAfterALoss(t *testing.T) {
	s := newStage(t, play{open: func(a *wire.OpenResponse) { a.Verifier = 7 }})
	cfg := s.config()
	cfg.Continues = &initiator.Life{Verifier: 6}
	d, err := initiator.Dial(context.Background(), cfg)
	if err == nil {
		must(t, d.Close())
	}
	if refused := new(initiator.ContinueError); !errors.As(err, &refused) || !strings.Contains(err.Error(), "may be lost") {
		t.Errorf("%v", err)
	}
}

// TestLifeHasUnflushedWrites: the writes of the process before are not flushed
// until this one flushes. It tells of a session that changed the life.
func TestLifeHasUnflushedWrites(t *testing.T) {
	for _, flushes := range []bool{false, true} {
		var opens, cut atomic.Int32
		s := newStage(t, play{
			open: func(a *wire.OpenResponse) { a.Verifier = 6 + uint64(opens.Add(1)) },
			command: func(e *end, cmd *wire.Command, _ []byte) bool {
				if cmd.Opcode == wire.OpRead && cut.CompareAndSwap(0, 1) {
					return false
				}
				e.answer(cmd)
				return true
			},
		})
		var k lifeBook
		before := initiator.Life{Writer: [16]byte{1}, Verifier: 7}
		d := s.dialWith(t, func(c *initiator.Config) {
			lasting(initiator.Forever)(c)
			c.Continues, c.KeepLife = &before, k.keep
		})
		q := open(t, d, 4)
		want := syscall.EIO
		if flushes {
			submit(t, q, request(block.Flush, 0, 0))
			wantAll(t, q, 1, 0)
			want = 0
		}
		submit(t, q, request(block.Read, 0, 4096))
		wantAll(t, q, 1, want)
		lives := k.all()
		if lives[0] != before {
			t.Errorf("the life is %+v, not %+v", lives[0], before)
		}
		if last := lives[len(lives)-1]; flushes && (last.Verifier != 8 || last.Writer != before.Writer) || !flushes && len(lives) != 1 {
			t.Errorf("flushes %v: %+v", flushes, lives)
		}
	}
}
