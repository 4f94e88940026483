package transfer

import (
	"context"
	"fmt"
	"hash"
	"sync"
	"sync/atomic"

	"github.com/viablk/viablk/internal/block"
)

// Mode is what a transfer does.
type Mode uint8

// The modes.
const (
	Copy    Mode = iota // the destination gets the content of the source
	Resume              // the same, but only what differs is written
	Compare             // nothing is written
)

// Side is one of the two disks of a transfer.
type Side struct {
	Name   string // in errors
	Device block.Device
}

// Config describes a transfer. The devices stay the caller's.
type Config struct {
	Mode                Mode
	Source, Destination Side

	// Connections is the number of workers, each with a queue of either disk.
	Connections int

	// Depth is how many pieces a worker has in flight.
	Depth int

	// Length is how long a read or write is at most, in bytes: a power of two,
	// from 4096 on. Disks that take less get less.
	Length int64

	// Allocate writes zeroes where the source has holes, and has the
	// destination keep them allocated.
	Allocate bool

	// Digest, if not nil, gets the content of the source in order. Connections
	// is then 1.
	Digest hash.Hash
}

// Result is what a transfer did, in bytes.
type Result struct {
	Copied    int64 // data written
	Zeroed    int64 // zeroes written
	Same      int64 // compared, or known to be zeroes on both sides
	Differing int64 // of Compare
	First     int64 // offset of the first difference; -1 without any
}

// Transfer is a transfer of one disk.
type Transfer struct {
	config Config
	size   int64
	block  int64  // pieces are multiples of it, in bytes
	length int64  // of a read or write
	zero   int64  // of a piece without data
	zeroes []byte // what is written in place of a write zeroes; never written
	wake   int    // eventfd: the transfer is cancelled

	counts    counts
	writeBack *writeBack

	mu sync.Mutex
	// +checklocks:mu
	first int64
}

// counts are the bytes that are finished, by what became of them.
type counts struct {
	copied, zeroed, same, differing atomic.Int64
}

// Bounds of pieces, in bytes.
const (
	longestZero   = 32 << 20
	longestHashed = 4 << 20 // of zeroes with a digest, which a worker computes
)

// New returns a transfer, or an error that says why the disks do not fit. It
// asks neither disk for anything.
func New(c Config) (*Transfer, error) {
	s, d := c.Source.Device.Info(), c.Destination.Device.Info()
	t := &Transfer{
		config: c, size: s.Size, block: int64(max(s.MinimumBlock, d.MinimumBlock, 1)),
		length: min(c.Length, int64(s.MaximumPayload), int64(d.MaximumPayload)), zero: longestZero, first: -1,
	}
	t.length &^= t.block - 1
	switch {
	case c.Mode != Compare && d.Features&block.ReadOnly != 0:
		return nil, fmt.Errorf("%s is read-only", c.Destination.Name)
	case s.Size > d.Size:
		return nil, fmt.Errorf("%s has %d bytes, and %s only %d: nothing was written", c.Source.Name, s.Size, c.Destination.Name, d.Size)
	case s.Size%t.block != 0:
		return nil, fmt.Errorf("%s has %d bytes, which are not whole blocks of %d of %s: nothing was written", c.Source.Name, s.Size, t.block, c.Destination.Name)
	case t.length == 0:
		return nil, fmt.Errorf("%s and %s take no request of %d bytes", c.Source.Name, c.Destination.Name, c.Length)
	}
	if c.Digest != nil {
		t.zero = longestHashed
	}
	if c.Mode != Compare && d.Features&block.CanWriteZeroes == 0 {
		t.zero, t.zeroes = t.length, make([]byte, t.length)
	}
	return t, nil
}

// Size returns how many bytes the transfer is about.
func (t *Transfer) Size() int64 { return t.size }

// Done returns how many of them are finished. It is safe for concurrent use.
func (t *Transfer) Done() int64 {
	return t.counts.copied.Load() + t.counts.zeroed.Load() + t.counts.same.Load() + t.counts.differing.Load()
}

// Run transfers. All writes are durable when it returns nil. An error is
// an [Error], or the cause of the end of ctx; then queues are closed, and no
// request is in flight any more. Run is called once.
func (t *Transfer) Run(ctx context.Context) (Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w, err := newWaker(ctx)
	if err != nil {
		return Result{}, err
	}
	t.wake = w.fd
	if t.config.Mode != Compare {
		t.writeBack = startWriteBack(t.config.Destination.Device)
	}
	runs := make(chan piece, 2*t.config.Connections)
	var all sync.WaitGroup
	for _, f := range t.routines(runs) {
		all.Go(func() {
			if err := f(ctx); err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	t.writeBack.stop()
	err = context.Cause(ctx)
	if closed := w.close(); err == nil {
		err = closed
	}
	return t.result(), err
}

// routines returns the goroutines of a run.
func (t *Transfer) routines(runs chan piece) []func(context.Context) error {
	list := []func(context.Context) error{func(ctx context.Context) error {
		defer close(runs)
		return t.plan(ctx, runs)
	}}
	for range t.config.Connections {
		list = append(list, func(ctx context.Context) error { return t.work(ctx, runs) })
	}
	return list
}

// result returns what was done so far.
func (t *Transfer) result() Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Result{
		Copied: t.counts.copied.Load(), Zeroed: t.counts.zeroed.Load(), Same: t.counts.same.Load(), Differing: t.counts.differing.Load(), First: t.first,
	}
}

// differ notes a difference. count is how many bytes differ of length.
func (t *Transfer) differ(off, count, length int64) {
	t.counts.differing.Add(count)
	t.counts.same.Add(length - count)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.first < 0 || off < t.first {
		t.first = off
	}
}
