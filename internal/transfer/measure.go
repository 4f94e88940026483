package transfer

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/latency"
	"golang.org/x/sys/unix"
)

// Load is random requests of one kind to a disk.
type Load struct {
	Disk        Side
	Write       bool  // otherwise reads
	Length      int64 // bytes of a request, and the unit of its offset
	Depth       int   // requests in flight of a connection
	Connections int
	Time        time.Duration
}

// Measurement is what a load did.
type Measurement struct {
	Requests uint64
	Elapsed  time.Duration
	Latency  latency.Distribution
}

// Measure runs a load. An error is an [Error], or the cause of the end of ctx.
func Measure(ctx context.Context, l Load) (m Measurement, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w, err := newWaker(ctx)
	if err != nil {
		return m, err
	}
	var recorders latency.Set
	var all sync.WaitGroup
	began := time.Now()
	for range l.Connections {
		all.Go(func() {
			r := recorders.Acquire()
			defer recorders.Release(r)
			if err := l.run(ctx, w.fd, r, began); err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	m.Elapsed = time.Since(began)
	err = context.Cause(ctx)
	if closed := w.close(); err == nil {
		err = closed
	}
	op := latency.Read
	if l.Write {
		op = latency.Write
	}
	m.Latency = recorders.Read().Requests[op]
	m.Requests = m.Latency.Count
	return m, err
}

// generator sends the requests of one connection. It is of one goroutine.
type generator struct {
	Load
	queue    block.Queue
	random   *rand.Rand
	blocks   int64
	requests []block.Request
	began    []time.Duration
	recorder *latency.Recorder
	start    time.Time
	left     int // requests in flight
}

// run sends requests over one connection until the time has passed.
func (l Load) run(ctx context.Context, wake int, r *latency.Recorder, start time.Time) (err error) {
	g := &generator{
		Load: l, random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), blocks: l.Disk.Device.Info().Size / l.Length,
		requests: make([]block.Request, l.Depth), began: make([]time.Duration, l.Depth), recorder: r, start: start,
	}
	if g.queue, err = l.Disk.Device.NewQueue(l.Depth); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.queue.Close()) }()
	for i := range g.requests {
		r := &g.requests[i]
		r.Op, r.Length, r.Data, r.User = block.Read, l.Length, make([]byte, l.Length), uint64(i)
		if l.Write {
			r.Op = block.Write
			for k := range r.Data {
				r.Data[k] = byte(g.random.Uint32())
			}
		}
		if err := g.submit(i, time.Since(start)); err != nil {
			return err
		}
	}
	reaped := make([]*block.Request, l.Depth)
	for g.left > 0 {
		g.queue.Kick()
		n := g.queue.Reap(reaped)
		if n == 0 {
			sleep(wake, g.queue)
		} else if err := g.handle(reaped[:n]); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// handle counts finished requests, and submits them anew while there is time.
func (g *generator) handle(finished []*block.Request) error {
	now := time.Since(g.start)
	for _, r := range finished {
		g.left--
		if r.Err != nil {
			return failed(g.Disk, r)
		}
		op := latency.Read
		if g.Write {
			op = latency.Write
		}
		g.recorder.Add(latency.Request, op, now-g.began[r.User])
		if now < g.Time {
			if err := g.submit(int(r.User), now); err != nil {
				return err
			}
		}
	}
	return nil
}

// submit submits a request to a random place.
func (g *generator) submit(i int, now time.Duration) error {
	r := &g.requests[i]
	r.Offset = g.random.Int64N(g.blocks) * g.Length
	g.began[i] = now
	if !g.queue.Submit(r) {
		r.Err = unix.EBUSY
		return failed(g.Disk, r)
	}
	g.left++
	return nil
}
