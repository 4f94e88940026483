package crashcheck

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var seed = flag.Uint64("log.seed", 0, "seed of the load; 0 is another one each time")

// chosen returns the seed of a test, and logs it.
func chosen(t *testing.T) uint64 {
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("replay with -log.seed %d", s)
	return s
}

// bed is a disk with a volatile cache that stands in for a whole machine.
type bed struct {
	*backend.Volatile
	*block.Disk
}

func newBed(t *testing.T, blocks int) bed {
	t.Helper()
	inner, err := backend.Open(fmt.Sprintf("memory:%d", blocks*Block), backend.Options{})
	if err != nil {
		t.Fatal(err)
	}
	v := backend.NewVolatile(inner)
	d, err := block.NewDisk(v)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return bed{v, d}
}

// cut has the load run until n answers, cuts the power, and checks, through a
// file.
func cut(t *testing.T, l *WriteLog, b bed, d Disk, seed uint64, n int) (Found, error) {
	t.Helper()
	most := l.Counters().Answers() + n
	if err := l.Load(d, Load{Seed: seed, Workers: 4, Stop: func() bool { return l.Counters().Answers() >= most }}); err != nil {
		t.Fatal(err)
	}
	if err := b.Crash(seed); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "log")
	if err := l.Save(path); err != nil {
		t.Fatal(err)
	}
	loaded, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	l.blocks, l.last = loaded.blocks, loaded.last
	return l.Check(d)
}

// A disk that keeps its promises is believed, round after round, and the cuts
// do lose and tear what was not promised.
func TestCorrectDiskPasses(t *testing.T) {
	s := chosen(t)
	b := newBed(t, 256)
	l := New(s, 256)
	var sum Found
	for round := range uint64(20) {
		found, err := cut(t, l, b, b.Disk, s+round, 60)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if n := found.Promised + found.Later + found.Torn; n != 256 {
			t.Fatalf("%d of 256 blocks were looked at", n)
		}
		sum.Promised, sum.Later, sum.Torn = sum.Promised+found.Promised, sum.Later+found.Later, sum.Torn+found.Torn
	}
	t.Logf("%+v, %+v", sum, l.Counters())
	if sum.Later == 0 || sum.Torn == 0 || l.Counters().Durable == 0 || l.Counters().Flushes == 0 {
		t.Errorf("nothing was at stake: %+v, %+v", sum, l.Counters())
	}
}

// liar is a disk with a fault.
type liar struct {
	Disk
	noFlush, noFUA bool

	stale, misplace bool // what comes back after the cut

	mu    sync.Mutex
	first map[int64][]byte // what was written first, by offset
}

func (d *liar) Sync() error {
	if d.noFlush {
		return nil
	}
	return d.Disk.Sync()
}

func (d *liar) WriteAtFUA(p []byte, off int64) (int, error) {
	if d.noFUA {
		return d.Disk.WriteAt(p, off)
	}
	return d.Disk.WriteAtFUA(p, off)
}

func (d *liar) WriteAt(p []byte, off int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for at := 0; at < len(p); at += Block {
		if _, ok := d.first[off+int64(at)]; !ok {
			d.first[off+int64(at)] = append([]byte(nil), p[at:at+Block]...)
		}
	}
	return d.Disk.WriteAt(p, off)
}

func (d *liar) ReadAt(p []byte, off int64) (int, error) {
	n, err := d.Disk.ReadAt(p, off)
	if d.stale {
		for at, old := range d.first {
			if at >= off && at < off+int64(n) {
				copy(p[at-off:], old)
			}
		}
	}
	if d.misplace {
		copy(p[Sector:], p[:Sector])
	}
	return n, err
}

// The log detects each fault of a disk.
func TestFaultyDisksAreDetected(t *testing.T) {
	s := chosen(t)
	for name, c := range map[string]struct {
		disk *liar
		want string
	}{
		"flush":     {&liar{noFlush: true}, "was promised"},
		"FUA":       {&liar{noFUA: true}, "was promised"},
		"stale":     {&liar{stale: true}, "was promised"},
		"misplaced": {&liar{misplace: true}, "holds what was never written there"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, 64)
			d := c.disk
			d.Disk, d.first = b.Disk, make(map[int64][]byte)
			l := New(s, 64)
			for round := range uint64(30) { // a lie of FUA may be made up for by a flush
				if _, err := cut(t, l, b, d, s+round, 40); err != nil {
					if !strings.Contains(err.Error(), c.want) {
						t.Error(err)
					}
					return
				}
			}
			t.Error("a disk that lies is believed")
		})
	}
}

// A flush does not cover an answer that comes behind it.
func TestFlushCoversWhatWasAnsweredBefore(t *testing.T) {
	l := New(1, 4)
	early, _ := l.begin(0, 1)
	late, _ := l.begin(1, 2)
	if _, ok := l.begin(2, 2); ok {
		t.Error("a block is written twice at a time")
	}
	l.end(0, 1, early, false)
	covered := l.beginFlush()
	l.end(1, 2, late, false)
	again, _ := l.begin(0, 1)
	l.end(0, 1, again, false)
	l.endFlush(covered)
	if got := fmt.Sprint(l.blocks); got != fmt.Sprintf("[[%d %d] [0 %d] [0 %d] [0]]", early, again, late, late) {
		t.Errorf("the accounts are %s", got)
	}
	l.endFlush(l.beginFlush())
	if got := fmt.Sprint(l.blocks); got != fmt.Sprintf("[[%d] [%d] [%d] [0]]", again, late, late) {
		t.Errorf("after a second flush the accounts are %s", got)
	}
}
