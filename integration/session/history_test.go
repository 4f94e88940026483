package session

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/history"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/block"
)

// historyLoad is enough for requests to overlap on each block at any time.
var historyLoad = history.Load{Blocks: 32, Longest: 4, Requests: 500, Clients: 4, Seed: 1}

// historyConnections is how many connections share a disk.
const historyConnections = 4

// historyLimit bounds the check of a history, which takes a second or so.
const historyLimit = time.Minute

// dialHistory opens connections to an export at a socket; they end with the
// test.
func dialHistory(t testing.TB, socket, export string) []history.Disk {
	t.Helper()
	var all []history.Disk
	for range historyConnections {
		c, err := history.Dial(t.Context(), "unix", socket, export)
		testbed.Must(t, err)
		t.Cleanup(func() { testbed.Must(t, c.Close()) })
		all = append(all, c)
	}
	return all
}

// checkHistory fails the test if the history is not linearizable, and keeps it,
// and what can be seen of it, in a folder.
func checkHistory(t testing.TB, h *history.History) {
	t.Helper()
	began := time.Now()
	err := h.Check(historyLimit)
	t.Logf("%d operations, checked in %v", len(h.Operations()), time.Since(began))
	if err == nil {
		return
	}
	folder, failure := os.MkdirTemp("", "viablk-history-")
	testbed.Must(t, failure)
	testbed.Must(t, h.Save(filepath.Join(folder, "history.json")))
	var v *history.Violation
	if errors.As(err, &v) {
		testbed.Must(t, v.Visualize(filepath.Join(folder, "violation.html")))
	}
	t.Errorf("%v: see %s", err, folder)
}

// TestHistoryIsLinearizable has many clients read and write few blocks, over
// several connections to one disk.
func TestHistoryIsLinearizable(t *testing.T) {
	for _, w := range []testbed.Way{testbed.Ways[0], testbed.ChainWay} {
		for name, d := range map[string]func(testing.TB) testbed.Disk{"memory": testbed.MemoryDisk("1MiB"), "file": testbed.FileDisk(1 << 20)} {
			t.Run(w.Name+" "+name, func(t *testing.T) {
				t.Parallel()
				disk := d(t)
				_, socket := testbed.AddressOf(t, w.Serve(t, testbed.Program(t), disk).URI)
				h := history.New()
				testbed.Must(t, historyLoad.Run(h, 0, dialHistory(t, socket, disk.Name)...))
				checkHistory(t, h)
			})
		}
	}
}

// staleBackend is a disk with a bug: now and then it reads what was there
// before the last write.
type staleBackend struct {
	mu          sync.Mutex
	now, before []byte
	reads       int
}

// staleInterval is how many reads are right for one that is not.
const staleInterval = 100

func (b *staleBackend) ReadAt(p []byte, at int64) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reads++; b.reads%staleInterval == 0 {
		return copy(p, b.before[at:]), nil
	}
	return copy(p, b.now[at:]), nil
}

func (b *staleBackend) WriteAt(p []byte, at int64) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	copy(b.before[at:][:len(p)], b.now[at:])
	return copy(b.now[at:], p), nil
}

func (b *staleBackend) Size() (int64, error) { return int64(len(b.now)), nil }
func (b *staleBackend) Sync() error          { return nil }

// A history that is saved shows the bug of a disk when it is replayed.
func TestStaleReadsAreNotLinearizable(t *testing.T) {
	const size = 1 << 20
	d, err := block.FromBackend(&staleBackend{now: make([]byte, size), before: make([]byte, size)}, block.BackendOptions{})
	testbed.Must(t, err)
	t.Cleanup(func() { testbed.Must(t, d.Close()) })
	h := history.New()
	testbed.Must(t, historyLoad.Run(h, 0, dialHistory(t, serveNBD(t, d), "")...))
	path := filepath.Join(t.TempDir(), "history.json")
	testbed.Must(t, h.Save(path))
	again, err := history.Replay(path)
	testbed.Must(t, err)
	for name, h := range map[string]*history.History{"history": h, "replay": again} {
		var v *history.Violation
		if err := h.Check(historyLimit); !errors.As(err, &v) {
			t.Errorf("the check of the %s says %v", name, err)
			continue
		}
		page := filepath.Join(t.TempDir(), name+".html")
		testbed.Must(t, v.Visualize(page))
		if s, err := os.Stat(page); err != nil || s.Size() == 0 {
			t.Errorf("no page of the %s: %v", name, err)
		}
		t.Logf("%s: %v", name, v)
	}
}
