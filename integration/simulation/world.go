package simulation

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime/pprof"
	"time"
)

// World is a run: everything that a plan makes.
type World struct {
	plan      Plan
	scheduler *Scheduler
	network   *network
	medium    *medium
	referee   *Referee
	ids       io.Reader
	target    targetSide
	clients   []*client
	begun     int       // requests
	faults    []Fault   // that have not happened
	pending   int       // calls of after
	output    io.Writer // of the logs; nil: none
	counts    Counts
}

// Result is what a run was.
type Result struct {
	Requests int
	Steps    uint64
	Time     time.Duration // virtual
	Trace    Trace
	Counts   Counts
	Err      error
}

// random is a source of identities.
type random struct{ *rand.Rand }

func (r random) Read(b []byte) (int, error) {
	for at := 0; at < len(b); at += 8 {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], r.Uint64())
		copy(b[at:], word[:])
	}
	return len(b), nil
}

// runLimit is when a run has to have ended, and endLimit how long its end may
// take.
const (
	runLimit = 10 * time.Minute
	endLimit = time.Minute
)

// Run carries out a plan. Logs of the product go to output, if that is not nil.
func (r *Runner) Run(p Plan, output io.Writer) Result {
	defer r.accesses.reset()
	s := newScheduler(r, p.Seed)
	w := &World{
		plan: p, scheduler: s, medium: newMedium(p.Blocks, p.Seed, p.Speed),
		referee: newReferee(s, p.Blocks), faults: p.Faults, ids: random{rand.New(rand.NewPCG(p.Seed, 5))}, output: output,
	}
	w.network = newNetwork(s, p.Fabric, p.Seed, &w.counts)
	w.medium.slow, w.medium.volatile = p.Slow, p.Volatile
	w.referee.drained = onlyDrains(&p)
	w.medium.applied, w.medium.flushing = w.referee.applied, w.referee.flushing
	w.referee.samples = p.Seed%sampleSeeds == 0
	w.referee.disturbed, w.referee.flips = p.Fabric.Flips > 0, p.Fabric.Flips > 0
	w.target.world = w
	if output != nil {
		w.referee.note = w.log(s.newProcess("referee")).Info
	}
	w.target.start()
	for i, c := range p.Clients {
		w.clients = append(w.clients, newClient(w, i, c))
	}
	w.clients[0].start()
	w.toTheEnd()
	for _, c := range w.clients {
		if c.process != nil {
			c.process.kill()
		}
	}
	w.target.kill()
	return Result{Requests: w.referee.requests, Steps: s.steps, Time: s.now, Trace: s.trace, Counts: w.counts, Err: s.failure}
}

// toTheEnd runs until every client has made its requests, and then ends what is
// left in order.
func (w *World) toTheEnd() {
	s := w.scheduler
	served := func() bool {
		for _, c := range w.clients {
			if c.left > 0 || c.process == nil || c.process.alive() > 0 {
				return false
			}
		}
		return w.pending == 0 && w.target.steady()
	}
	if !s.run(runLimit, served) {
		if s.failure == nil {
			s.fail("the run does not end: %w", w.unfinished())
		}
		return
	}
	w.referee.finish(w.medium)
	w.target.drain(time.Hour)
	if !s.run(s.now+endLimit, w.target.gone) {
		if s.failure == nil {
			w.dump()
			s.fail("the target does not end")
		}
		return
	}
	if n := w.network; s.failure == nil && n.links+n.regions+n.arenas+n.copies > 0 {
		s.fail("%d links, %d regions, %d arenas and %d copies are left", n.links, n.regions, n.arenas, n.copies)
	}
}

// dump logs where the tasks are.
func (w *World) dump() {
	if w.output != nil {
		_ = pprof.Lookup("goroutine").WriteTo(w.output, 1)
	}
}

// unfinished says what keeps a run from its end.
func (w *World) unfinished() error {
	var errs []error
	w.dump()
	for _, c := range w.clients {
		if c.process == nil {
			errs = append(errs, fmt.Errorf("client %d has %d requests left and no process", c.number, c.left))
		} else if c.left > 0 || c.process.alive() > 0 {
			errs = append(errs, fmt.Errorf("client %d has %d requests left and %d tasks, dead %v, stopped %v",
				c.number, c.left, c.process.alive(), c.process.dead, c.process.stopped))
		}
	}
	return errors.Join(errs...)
}

// logOf returns the log of a process, which is not nil.
func (w *World) logOf(p *Process) *slog.Logger {
	if l := w.log(p); l != nil {
		return l
	}
	return slog.New(slog.DiscardHandler)
}

// log returns the log of a process, or nil.
func (w *World) log(p *Process) *slog.Logger {
	if w.output == nil {
		return nil
	}
	h := slog.NewTextHandler(w.output, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Duration("at", w.scheduler.now)
		}
		return a
	}})
	return slog.New(h).With("process", p.name)
}
