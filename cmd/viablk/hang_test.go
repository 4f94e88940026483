package main

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/block"
)

// stuckDisk answers no flush, and does not close, before the test ends.
type stuckDisk struct {
	*flushedDisk
	free chan struct{}
	once sync.Once
}

func newStuckDisk(t *testing.T) *stuckDisk {
	d := &stuckDisk{flushedDisk: &flushedDisk{features: block.CanFlush}, free: make(chan struct{})}
	d.Executor = block.NewExecutor(d, 0)
	t.Cleanup(func() {
		close(d.free)
		_ = d.Close()
	})
	return d
}

func (d *stuckDisk) Execute(r *block.Request) error {
	<-d.free
	return d.flushedDisk.Execute(r)
}

func (d *stuckDisk) Close() error {
	<-d.free
	d.once.Do(func() { _ = d.flushedDisk.Close() })
	return nil
}

// closedDisk says when it is closed.
type closedDisk struct {
	*flushedDisk
	closed chan struct{}
}

func (d *closedDisk) Close() error {
	close(d.closed)
	return d.flushedDisk.Close()
}

// wantHanging checks that an error says that a disk hangs, and has its exit
// code.
func wantHanging(t *testing.T, err error, export string) {
	t.Helper()
	var hang *hangingDisks
	if !errors.As(err, &hang) || !slices.Contains(hang.exports, export) || exitCode(err) != exitDisk {
		t.Errorf("got %v with exit code %d", err, exitCode(err))
	}
}

// TestDiskThatDoesNotClose: the end of a target does not wait for a disk for
// ever, and closes the others.
func TestDiskThatDoesNotClose(t *testing.T) {
	good := &closedDisk{newFlushedDisk(block.CanFlush), make(chan struct{})}
	set := newExportSet(slog.New(slog.DiscardHandler), config.Effective{}, []disk{
		{Export: config.Export{Name: "stuck"}, device: newStuckDisk(t)}, {Export: config.Export{Name: "good"}, device: good},
	}, make(chan struct{}))
	wantHanging(t, set.close(time.Millisecond), "stuck")
	<-good.closed
}

// TestDiskThatDoesNotFlush: a takeover does not wait for the flush of a disk
// for ever; until that ends no change begins, which could close the disk.
func TestDiskThatDoesNotFlush(t *testing.T) {
	stuck := newStuckDisk(t)
	set := newExportSet(slog.New(slog.DiscardHandler), config.Effective{}, []disk{{Export: config.Export{Name: "stuck"}, device: stuck}}, make(chan struct{}))
	wantHanging(t, set.flush(t.Context(), time.Millisecond), "stuck")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := set.begin(ctx); !errors.Is(err, errChanging) {
		t.Errorf("a change amid the flush: %v", err)
	}
}

// TestCallsOfManyDisks: a target with many disks makes some calls at the same
// time, and all of them, also behind one that hangs.
func TestCallsOfManyDisks(t *testing.T) {
	var now, made atomic.Int32
	free, gate := make(chan struct{}), make(chan struct{})
	calls := []diskCall{{"stuck", func() error { <-free; return nil }}}
	for range 20 * diskCalls {
		calls = append(calls, diskCall{"good", func() error {
			now.Add(1)
			<-gate
			made.Add(1)
			return nil
		}})
	}
	after, first := make(chan struct{}), make(chan error, 1)
	go func() { first <- doWithin(waitTimeout, "test", calls, func() { close(after) }) }()
	eventually(t, "as many calls as there may be", func() bool { return now.Load() >= diskCalls-1 })
	time.Sleep(20 * time.Millisecond) // long enough to see more at times
	if n := now.Load(); n != diskCalls-1 {
		t.Errorf("%d calls at the same time beside one that hangs", n)
	}
	close(gate)
	eventually(t, "all calls but one", func() bool { return int(made.Load()) == len(calls)-1 })
	select {
	case <-after:
		t.Error("the end came before the last call")
	default:
	}
	close(free)
	<-after
	if err := <-first; err != nil {
		t.Error(err)
	}
}
