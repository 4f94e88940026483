package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/viablk/viablk/cmd/viablk/internal/events"
	"github.com/viablk/viablk/config"
)

// part is something that serves until it is told to end.
type part struct {
	name string

	// serve returns the cause when ctx ends, nil after drain, and an error when
	// it cannot go on. It may be nil for what only has an end.
	serve func(ctx context.Context) error

	// drain lets requests in flight finish. It may be nil for a part that
	// another part's drain ends too.
	drain func(ctx context.Context) error

	stays bool // it serves those who look after the process, after a drain too
}

// service runs parts until a signal or an error ends it. The first signal
// drains them, those that were started last first, so that what feeds others
// ends before them, and those that were started together at the same time; the
// second one cuts everything off.
type service struct {
	log       *slog.Logger
	level     *slog.LevelVar               // of the log
	events    *events.Ring                 // its last lines
	timeout   time.Duration                // for draining
	signals   chan os.Signal               // that end the process
	hangups   chan os.Signal               // SIGHUP
	reload    func(context.Context) error  // on SIGHUP; logs its error; nil: SIGHUP ends the process
	reloads   reloadCounter                // of the configuration
	again     atomic.Pointer[certificates] // that it reads again; nil if it has none
	admin     string                       // path of the status socket, in full; empty if there is none
	calls     callListeners
	upgrade   upgrade // of a target
	asked     chan reloadRequest
	inquiries chan os.Signal // SIGUSR1
	ending    chan struct{}  // closed when no change begins any more
	stopping  sync.Once      // of changes
	hourly    func()         // may be nil
	ticker    *time.Ticker   // for hours
	hours     <-chan time.Time
	clock     func() time.Time

	ctx    context.Context // ends when the parts are to end at once
	cancel context.CancelCauseFunc

	// mayHandOver returns why another process cannot take over, nil is of a
	// command without takeovers. flush shortens the flush at the end of a drain.
	// keep copies what the process serves for the successor, which is set when
	// wait returns. giveUnfinished gives it that before abandon.
	mayHandOver    func(claim) error
	flush          func(context.Context, time.Duration) error
	keep           func(claim) error
	giveUnfinished func(*successor)
	busy           func() []string // the exports with a request in the disk; may be nil
	successors     chan successor
	successor      *successor

	phases   phases
	mayDrain bool                 // an administrator may drain the process, which stays
	drained  chan struct{}        // closed when no client is left then
	ready    atomic.Bool          // clients can connect
	draining atomic.Bool          // clients are to leave
	report   func() processStatus // the state of the process; set by startAdmin

	parts   [][]part // in the order of their start
	running sync.WaitGroup
	failed  chan error // the first failure of a part

	drainBegan time.Time // zero: no drain ended what was served

	// abandon ends the process. It is called when parts do not end: a request
	// in a disk that hangs cannot be cut off.
	abandon func(error)
	folder  string // that abandon removes; empty for none
}

// How long parts have to end once they were cut off: at once, unless no request
// can be in their way.
const (
	endTimeout     = time.Second
	releaseTimeout = 10 * time.Second
)

// threadsBesides is how many threads the process may have besides those of its
// connections: the default of the Go runtime.
const threadsBesides = 10_000

// Causes of an end.
var (
	errSecondSignal = errors.New("stopped at once by a second signal")
	errDrainTimeout = errors.New("requests were cut off: they did not finish within drain_timeout")
	errReleased     = errors.New("the process ends")
)

// newService catches signals from now on. The caller calls release.
func (a *app) newService(c config.Config, log *slog.Logger, level *slog.LevelVar) *service {
	s := &service{
		log: log, level: level, events: a.events, timeout: c.DrainTimeout,
		signals: make(chan os.Signal, 2), hangups: make(chan os.Signal, 1), inquiries: make(chan os.Signal, 1), failed: make(chan error, 1),
		successors: make(chan successor, 1),
		upgrade:    upgrade{command: a.successorCommand},
		asked:      make(chan reloadRequest), ending: make(chan struct{}), drained: make(chan struct{}), clock: time.Now,
	}
	// A connection that a disk blocks has a thread, and the runtime ends a
	// process that has more threads than this.
	debug.SetMaxThreads(threadsBesides + c.NBD.Connections + c.Target.Connections)
	if os.Getenv("GOGC") == "" {
		// The data path allocates nothing, so the collector is cheap at any
		// setting, and what thousands of connections leave behind is half as
		// much.
		debug.SetGCPercent(50)
	}
	s.ticker = time.NewTicker(time.Hour)
	s.hours = s.ticker.C
	slog.SetDefault(log) // of panics in the requests of a disk, see package contain
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.abandon = func(err error) {
		code := a.report(err)
		if s.folder != "" {
			os.RemoveAll(s.folder)
		}
		os.Exit(code)
	}
	signal.Notify(s.signals, syscall.SIGTERM, syscall.SIGINT)
	signal.Notify(s.hangups, syscall.SIGHUP)
	signal.Notify(s.inquiries, syscall.SIGUSR1)
	// The reader of the output or the log may end: the process serves on, and
	// its lines are lost, the last ones, too. Programs that it starts have the
	// default.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return s
}

// release ends the parts that still serve, waits for them, and gives the
// signals back their usual meaning.
func (s *service) release() {
	s.end(errReleased)
	signal.Stop(s.signals)
	signal.Stop(s.hangups)
	signal.Stop(s.inquiries)
	s.ticker.Stop()
}

// end cuts the parts off and waits for them, but not for ever.
func (s *service) end(cause error) {
	s.cancel(cause)
	timeout := endTimeout
	if cause == errReleased {
		timeout = releaseTimeout
	}
	ended := make(chan struct{})
	go func() {
		s.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(timeout):
		s.giveUp(cause)
	}
}

// giveUp ends the process although something of it has not ended. A successor
// gets what there is.
func (s *service) giveUp(cause error) {
	if s.successor != nil {
		s.giveUnfinished(s.successor)
	}
	s.abandon(cause)
}

// start starts parts of which none feeds another.
func (s *service) start(parts ...part) {
	s.parts = append(s.parts, parts)
	for _, p := range parts {
		if p.serve == nil {
			continue
		}
		s.running.Go(func() {
			err := p.serve(s.ctx)
			if err == nil || s.ctx.Err() != nil {
				return
			}
			select {
			case s.failed <- fmt.Errorf("%s: %w", p.name, err):
			default: // another one failed first
			}
		})
	}
}

// wait serves until a signal, the end of done, or the failure of a part. It
// returns nil if all requests in flight could finish. All parts have returned
// when it does.
func (s *service) wait(done <-chan struct{}) error {
	s.running.Go(s.routineReload)
	s.running.Go(s.routineState)
	s.ready.Store(true)
	got, err := s.untilEnd(done)
	s.phases.end()
	s.stopChanges()
	if got != nil {
		s.log.Info("draining: requests in flight finish, another signal cuts them off",
			"event", "draining", "signal", got.String(), "requests", s.inFlight(), "timeout", s.timeout)
		if err := notify(stateStopping); err != nil {
			s.log.Warn("the service manager does not know that the process ends", "event", "notify_failed", "error", err)
		}
	}
	if err == nil {
		err = s.drain()
	}
	if err != nil {
		s.end(err)
	} else {
		s.end(errReleased)
	}
	return err
}

// stopChanges refuses clients and changes from now on.
func (s *service) stopChanges() {
	s.draining.Store(true)
	s.stopping.Do(func() { close(s.ending) })
}

// inFlight returns how many requests of clients are in flight.
func (s *service) inFlight() int {
	if s.report == nil {
		return 0
	}
	now := s.report()
	n := 0
	if now.NBD != nil {
		n = now.NBD.InFlight
	}
	for _, t := range now.Targets {
		n += t.InFlight
	}
	return n
}

// untilEnd serves until a signal, the end of done, or the failure of a part.
func (s *service) untilEnd(done <-chan struct{}) (os.Signal, error) {
	hangups := s.hangups
	if s.reload != nil {
		hangups = nil // they are for routineReload
	}
	for {
		select {
		case got := <-s.signals:
			return got, nil
		case got := <-hangups:
			return got, nil
		case x := <-s.successors:
			if err := s.keep(x.claim); err != nil {
				s.log.Error("takeover failed: this target serves on", "event", "takeover_failed", "error", x.Expel(err))
				s.phases.resume()
				continue
			}
			s.successor = &x
			s.log.Info("draining for the successor", "event", "takeover_begun", "requests", s.inFlight())
			return nil, nil
		case <-done:
			return nil, nil
		case err := <-s.failed:
			return nil, err
		}
	}
}

// sameSignal is how soon after the first signal another one is the same one:
// timeout(1) signals a process and then its group.
const sameSignal = 100 * time.Millisecond

// drain ends the parts, until the time is over or a second signal comes.
func (s *service) drain() error {
	began := s.clock()
	s.drainBegan = began
	ctx, stop := context.WithTimeoutCause(s.ctx, s.timeout, errDrainTimeout)
	defer stop()
	finished := make(chan error, 1)
	go func() {
		var errs []error
		for _, together := range slices.Backward(s.parts) {
			errs = append(errs, drainTogether(ctx, together))
			if ctx.Err() != nil {
				break // what these feed is still in use: it ends with the process
			}
		}
		finished <- errors.Join(errs...)
	}()
	for {
		select {
		case err := <-finished:
			return err
		case <-s.signals:
			if s.clock().Sub(began) < sameSignal {
				continue
			}
			if n := s.inFlight(); n > 0 {
				return fmt.Errorf("%w: %d requests in flight were cut off", errSecondSignal, n)
			}
			return errSecondSignal
		case <-ctx.Done():
			return s.timedOut()
		}
	}
}

// drainTogether drains parts at the same time.
func drainTogether(ctx context.Context, parts []part) error {
	errs := make([]error, len(parts))
	var all sync.WaitGroup
	for i, p := range parts {
		if p.drain == nil {
			continue
		}
		all.Go(func() {
			if err := p.drain(ctx); err != nil {
				errs[i] = fmt.Errorf("%s: %w", p.name, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// serviceLog returns the log of a serving command, which keeps its last lines,
// and its level.
func (a *app) serviceLog(c config.Log) (*slog.Logger, *slog.LevelVar) {
	a.events = events.NewRing()
	log, level := newLevelLog(c, a.stderr)
	return slog.New(events.NewHandler(log.Handler(), a.events, func(_ []string, x slog.Attr) slog.Attr { return named(x) })), level
}

// newLog returns the log of a command.
func newLog(c config.Log, w io.Writer) *slog.Logger {
	log, _ := newLevelLog(c, w)
	return log
}

// timeOfDay is how people read the time of a line on their terminal.
const timeOfDay = "15:04:05.000"

// newLevelLog returns a log and its level, which may change.
func newLevelLog(c config.Log, w io.Writer) (*slog.Logger, *slog.LevelVar) {
	level := new(slog.LevelVar)
	level.Set(levelOf(c.Level))
	untimed := os.Getenv("JOURNAL_STREAM") != ""
	onTerminal := isTerminal(w)
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		switch {
		case a.Key != slog.TimeKey || len(groups) > 0:
		case untimed:
			return slog.Attr{} // the journal of systemd has its own
		case onTerminal && c.Format != "json":
			return slog.String(slog.TimeKey, a.Value.Time().Local().Format(timeOfDay))
		}
		return named(a)
	}}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options)), level
	}
	return slog.New(slog.NewTextHandler(w, options)), level
}

// named returns an attribute whose value has a name with that in place of a
// number or a struct, which JSON would have.
func named(a slog.Attr) slog.Attr {
	if a.Value.Kind() != slog.KindAny {
		return a
	}
	switch v := a.Value.Any().(type) {
	case error, slog.Level:
	case fmt.Stringer:
		a.Value = slog.StringValue(v.String())
	}
	return a
}
