package backend

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/viablk/viablk/internal/block"
)

var (
	historySeed  = flag.Uint64("identity.seed", 0, "the history of this seed alone")
	historyCount = flag.Uint64("identity.histories", 1000, "random histories of a disk, its target and its clients")
)

// TestHistories: whatever happens to a disk while its client is away, the
// client is accepted if the disk is the same, no other client wrote and no
// write that it was answered is lost; otherwise it is refused. A flush is never
// answered OK after a lost write.
func TestHistories(t *testing.T) {
	first, count := uint64(1), *historyCount
	if testing.Short() {
		count /= 20
	}
	if *historySeed != 0 {
		first, count = *historySeed, 1
	}
	if failed := histories(t, sound, first, count); failed != nil {
		t.Errorf("%v", failed)
	}
}

// TestHistoriesFindBugs: the histories find every planted bug.
func TestHistoriesFindBugs(t *testing.T) {
	const most = 1000
	plants := []plant{nameAsUUID, noGeneration, lossNotCounted, lossCountedLate, failureForgotten, notMarkedUnclean, noLossCounter}
	if testing.Short() {
		plants = plants[:1]
	}
	for _, p := range plants {
		t.Run(string(p), func(t *testing.T) {
			failed := histories(t, p, 1, most)
			if failed == nil {
				t.Fatalf("%d histories do not find it", most)
			}
			t.Logf("seed %d: %s", failed.seed, failed.failure)
		})
	}
}

// historyWorkers run histories at the same time: most of the time of each goes
// by in waits.
const historyWorkers = 8

// histories runs histories until one fails, which it returns.
func histories(t *testing.T, p plant, first, count uint64) *history {
	var next atomic.Uint64
	var failed atomic.Pointer[history]
	var workers sync.WaitGroup
	folder := memoryFolder(t)
	for i := range min(historyWorkers, count) {
		workers.Go(func() {
			one, two, three := newPort(t), newPort(t), newPort(t)
			defer func() {
				for _, port := range []*port{one, two, three} {
					port.close(t)
				}
			}()
			for failed.Load() == nil {
				n := next.Add(1)
				if n > count {
					return
				}
				h := newHistory(t, p, first+n-1, filepath.Join(folder, fmt.Sprint(i)))
				h.one, h.two, h.three = one, two, three
				if h.run(); h.failure != "" {
					failed.CompareAndSwap(nil, h)
				}
			}
		})
	}
	workers.Wait()
	return failed.Load()
}

// history is a random history of a disk, its machine and its clients.
type history struct {
	*machine
	three   *port // of b
	seed    uint64
	random  *rand.Rand
	events  []string
	failure string

	a, b    *client // b is never there when a is
	value   uint64  // written last, or begun
	files   int
	latched bool
	backup  *medium // a copy from earlier, with its attributes; nil: none
}

func newHistory(t *testing.T, p plant, seed uint64, prefix string) *history {
	return &history{
		machine: &machine{t: t, plant: p, path: prefix}, seed: seed, random: rand.New(rand.NewPCG(seed, 0)),
	}
}

// Error is the history, for people.
func (h *history) Error() string {
	return fmt.Sprintf("seed %d: %s; replay with -args -identity.seed %d\n\t%s", h.seed, h.failure, h.seed, strings.Join(h.events, "\n\t"))
}

func (h *history) note(format string, args ...any) {
	h.events = append(h.events, fmt.Sprintf(format, args...))
}

// fail notes the first failure; the history ends.
func (h *history) fail(format string, args ...any) {
	if h.failure == "" {
		h.failure = fmt.Sprintf(format, args...)
	}
}

// coin is true once in n times.
func (h *history) coin(n int) bool { return h.random.IntN(n) == 0 }

// file returns a new path.
func (h *history) file() string {
	h.files++
	return fmt.Sprintf("%s-%d-%d", h.path, h.seed, h.files)
}

const historyEvents = 10

func (h *history) run() {
	h.reboot()
	h.medium = newMedium(h.t, h.file())
	h.path = h.medium.path
	h.start()
	if h.coin(3) {
		h.nbd()
	}
	h.serve(h.limits())
	h.a = h.attach("a", h.one, false)
	for range historyEvents {
		if h.failure != "" {
			break
		}
		h.event()
	}
	for _, c := range []*client{h.a, h.b} {
		if c != nil {
			c.close(h.t)
		}
	}
	h.kill()
	h.three.stop(h.t)
}

// limits are those of a target's configuration, which may change.
func (h *history) limits() limits {
	return limits{[]int{512, 4096}[h.random.IntN(2)], []int{64 << 10, 256 << 10}[h.random.IntN(2)]}
}

// event is what happens next. The client a is attached before and after it.
func (h *history) event() {
	n := h.random.IntN(16)
	if n < 10 {
		h.counted()
	}
	switch {
	case n < 3:
		h.ask(0, false)
	case n == 3:
		h.ask(block.FUA, h.coin(3))
	case n < 6:
		h.medium.failing = h.coin(4)
		h.flush(h.a)
		h.medium.failing = false
	case n == 6:
		h.a.close(h.t)
		h.a = h.attach("a", h.one, false)
	case n == 7:
		h.note("the file is copied")
		h.backup = h.medium.copyTo(h.t, h.file())
	case n == 8:
		h.preempt()
	case n == 9:
		h.cut()
	case n < 13:
		h.restart(true)
	default:
		h.restart(false)
	}
}

// ask has a write.
func (h *history) ask(flags block.Flags, failing bool) {
	h.medium.failing = failing
	r := h.write(flags)
	h.wrote(h.a, r, h.a.do(r))
	h.medium.failing = false
}

// start starts a process.
func (h *history) start() {
	h.open()
	h.latched, h.medium.unclean, h.medium.boot = h.medium.failed, true, h.boots
}

// pending begins a write of the client that is away.
func (h *history) pending() *block.Request {
	if !h.coin(2) {
		return nil
	}
	h.note("a begins a write")
	r := h.write(0)
	h.a.begin(r)
	return r
}

// lossesOf returns how many sessions a client has lost.
func lossesOf(c *client) uint64 { return c.device.Status().SessionLosses }

// returned is the return of a, which attaches anew if it was refused.
func (h *history) returned(losses uint64, pending *block.Request) {
	if !h.back(h.a, losses, pending) && h.failure == "" {
		h.a.close(h.t)
		h.a = h.attach("a", h.one, false)
	}
}
