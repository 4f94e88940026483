package target_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/loop"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
)

// visitRecord is a scheduler that notes how much of a disk's data the visits of
// a worker ask for, and can keep workers from their work.
type visitRecord struct {
	sched.Scheduler
	held  atomic.Bool
	bytes atomic.Int64 // of the disk
	ended atomic.Int64 // of these, in visits that have ended
	most  atomic.Int64 // in one visit
}

func (v *visitRecord) Drive(t loop.Task) error {
	return v.Scheduler.Drive(&recordedTask{task: t, record: v})
}

type recordedTask struct {
	task   loop.Task
	record *visitRecord
}

func (r *recordedTask) Visit(round loop.Round) loop.Next {
	if r.record.held.Load() {
		return loop.Next{Wait: time.Millisecond}
	}
	round.Alone = false
	before := r.record.bytes.Load()
	next := r.task.Visit(round)
	if n := r.record.bytes.Load() - before; n > 0 {
		r.record.most.Store(max(r.record.most.Load(), n))
		r.record.ended.Add(n)
	}
	return next
}

// countedDisk adds up what it is asked for.
type countedDisk struct {
	block.Device
	bytes *atomic.Int64
}

func (d countedDisk) NewQueue(depth int) (block.Queue, error) {
	q, err := d.Device.NewQueue(depth)
	return countedQueue{q, d.bytes}, err
}

type countedQueue struct {
	block.Queue
	bytes *atomic.Int64
}

func (q countedQueue) Submit(r *block.Request) bool {
	q.bytes.Add(r.Length)
	return q.Queue.Submit(r)
}

// TestVisitsAreShares: a visit begins a share of the commands that have
// arrived, by their bytes, and is followed by others; all are answered in the
// end.
func TestVisitsAreShares(t *testing.T) {
	const depth, longest, share = 32, 512 << 10, 1 << 20
	record := &visitRecord{Scheduler: sched.Real}
	e := disk(t, "disk")
	e.Device = countedDisk{e.Device, &record.bytes}
	r := newRig(t, target.Config{Depth: depth, MaxIO: longest, PoolBytes: depth * longest, Scheduler: record}, e)
	s := r.attach(t, "disk")
	m, err := s.io.expose(depth*longest, readWrite)
	must(t, err)
	record.held.Store(true)
	for slot := range depth {
		cmd := transfer(wire.OpRead, uint64(slot*longest), m.segment(slot*longest, longest))
		cmd.Slot, cmd.Export = uint16(slot), s.export.Export
		must(t, s.io.command(cmd, nil))
	}
	record.held.Store(false)
	for range depth {
		if status, _, err := s.io.status(); err != nil || status != wire.StatusOK {
			t.Fatalf("answered %v, %v", status, err)
		}
	}
	waitFor(t, "the visits", func() bool { return record.ended.Load() == depth*longest })
	if most := record.most.Load(); most > share+longest {
		t.Errorf("%d bytes in a visit", most)
	}
	must(t, s.close())
}
