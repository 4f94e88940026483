package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/transfer"
)

// transferReport is what "viablk copy" and "viablk verify" print.
type transferReport struct {
	Schema      string  `json:"schema"` // viablk.transfer/v1
	Source      string  `json:"source"`
	Destination string  `json:"destination"`
	Size        int64   `json:"size"`   // bytes, as are the others
	Copied      int64   `json:"copied"` // data
	Zeroed      int64   `json:"zeroed"` // zeroes that were written
	Same        int64   `json:"same"`   // compared, or zeroes on both sides
	Longer      int64   `json:"longer"` // what the destination has beyond the source
	Seconds     float64 `json:"seconds"`
	SHA256      string  `json:"sha256,omitempty"`

	Differing *int64 `json:"differing,omitempty"` // of verify
	First     *int64 `json:"first_difference,omitempty"`
}

// errInterrupted is the end of a transfer by a signal.
var errInterrupted = errors.New("interrupted")

// interruptible returns a context that ends at the first SIGINT or SIGTERM. The
// second ends the process as if it did not handle them.
func interruptible(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	var wait sync.WaitGroup
	wait.Go(func() {
		select {
		case <-signals:
			cancel(errInterrupted)
			signal.Stop(signals)
		case <-ctx.Done():
		}
	})
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
		wait.Wait()
	}
}

// runTransfer opens both disks and runs a transfer between them.
func (a *app) runTransfer(ctx context.Context, p *placeOptions, c transfer.Config, source, destination string) (r transferReport, err error) {
	open, err := a.places(p)
	if err != nil {
		return r, err
	}
	ctx, stop := interruptible(ctx)
	defer stop()
	from, err := open.open(ctx, source, true, 0)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, from.close()) }()
	size := from.Device.Info().Size
	if c.Mode == transfer.Compare {
		size = 0 // nothing is made
	}
	to, err := open.open(ctx, destination, c.Mode == transfer.Compare, size)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, to.close()) }()
	c.Source, c.Destination = from.Side, to.Side
	c.Connections, c.Depth, c.Length = p.connections, p.depth, int64(p.length)
	if c.Digest != nil {
		c.Connections, c.Depth = 1, p.depth*p.connections
	}
	t, err := transfer.New(c)
	if err != nil {
		return r, &exit{exitUsage, err}
	}
	began := time.Now()
	finish := a.showTransfer(t)
	result, err := t.Run(ctx)
	finish()
	r = transferReport{
		Schema: "viablk.transfer/v1", Source: from.Name, Destination: to.Name, Size: t.Size(),
		Copied: result.Copied, Zeroed: result.Zeroed, Same: result.Same,
		Longer: to.Device.Info().Size - t.Size(), Seconds: time.Since(began).Seconds(),
	}
	if c.Mode == transfer.Compare {
		r.Differing = &result.Differing
		if result.First >= 0 {
			r.First = &result.First
		}
	}
	if err != nil && c.Mode != transfer.Compare {
		err = fmt.Errorf("%w; %v of %v are done, not all of it durable: --resume goes on", err, roundSize(t.Done()), roundSize(t.Size()))
	}
	return r, err
}

// showTransfer shows the progress of a transfer on a terminal, until the
// function that it returns is called.
func (a *app) showTransfer(t *transfer.Transfer) (finish func()) {
	p := a.newProgress()
	if p.w == nil {
		return func() {}
	}
	done := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		tick := time.NewTicker(progressAfter / 4)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				n := t.Done()
				p.show(int(n), int(t.Size()), moved{n, t.Size(), time.Since(p.start)})
			case <-done:
				p.clear()
				return
			}
		}
	})
	return func() {
		close(done)
		wait.Wait()
	}
}

// moved is how far a transfer has got.
type moved struct {
	done, size int64
	elapsed    time.Duration
}

func (m moved) String() string {
	return fmt.Sprintf("%v of %v  %v/s", roundSize(m.done), roundSize(m.size), speed(m.done, m.elapsed))
}

// speed returns bytes per second.
func speed(n int64, d time.Duration) roundSize { return roundSize(float64(n) / max(d.Seconds(), 1e-9)) }

// roundSize is a number of bytes for people, with about three digits.
type roundSize int64

func (s roundSize) String() string {
	unit, n := "B", float64(s)
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"} {
		if n < 1024 {
			break
		}
		unit, n = next, n/1024
	}
	if n >= 100 || unit == "B" || n == float64(int64(n)) {
		return fmt.Sprintf("%.0f%s", n, unit)
	}
	return fmt.Sprintf("%.1f%s", n, unit)
}

// printTransfer prints a report.
func (a *app) printTransfer(r transferReport, rows [][]string) error {
	if a.output == "json" {
		return a.printJSON(r)
	}
	elapsed := time.Duration(r.Seconds * float64(time.Second))
	rows = append(rows,
		[]string{"size", fmt.Sprintf("%d (%v)", r.Size, config.Size(r.Size))},
		[]string{"time", elapsed.Round(time.Millisecond).String()},
		[]string{"rate", speed(r.Size, elapsed).String() + "/s"})
	if r.SHA256 != "" {
		rows = append(rows, []string{"sha256", r.SHA256})
	}
	return a.printTable(rows)
}
