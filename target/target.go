package target

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/internal/contain"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/ratelog"
	"github.com/viablk/viablk/internal/sched"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/target/reserve"
	"github.com/viablk/viablk/via"
)

// Discriminator names the block protocol at a VIA address.
const Discriminator = "viablk/1"

// Config configures a server. Zero fields take the defaults.
type Config struct {
	NIC            *via.NIC
	Exports        []Export
	Depth          int           // commands in flight per connection; 128
	InlineMax      int           // bytes of payload inside a message; 4096
	MaxIO          int           // bytes of one command; 1 MiB
	PoolBytes      int           // bytes of transfer memory per connection, touched as used; 8 MiB
	MaxConnections int           // VIA connections in all; 512
	MaxPerOrigin   int           // VIA connections of one host; half of MaxConnections, 8 at least
	KeepAlive      time.Duration // between keepalives of an idle connection; 250 ms
	BusyPoll       time.Duration // busy-polling before a sleep; 200 µs, < 0 none
	Log            *slog.Logger  // nil discards

	// IOTimeout is how long a request may be in a disk until the disk is
	// overdue: new clients are refused until it has answered. 0 is no limit.
	// It is that of disks without [Export.Reservations], which have their own.
	IOTimeout time.Duration

	// CopyMode says how Reads of mapped files move; "" is auto.
	CopyMode regcache.CopyMode

	// RegisterMax limits what the server registers of mapped files at a time,
	// for all connections together, in bytes, 2 MiB at least; 256 MiB.
	RegisterMax int64

	// Security, if it is set, has every session sealed, and initiators
	// authenticate with certificates. The server takes its TLS and Limits.
	// Payload is sealed in place of a copy: no disk is mapped or registered.
	Security *handshake.Guard

	// Sessions are those of other servers too; nil: of this server alone.
	Sessions *Sessions

	// RequireDigest refuses initiators that offer no data digests, except in
	// sealed sessions. Without it, each session has them if its initiator asks.
	RequireDigest bool

	// Scheduler is the clock, the waits and the goroutines of the server; nil is
	// sched.Real. Another one excludes busy-polling, which reads the clock of
	// the process.
	Scheduler sched.Scheduler
	// Random is the source of the target's identity; nil is crypto/rand.
	Random io.Reader
}

// Defaults and limits of Config.
const (
	defaultDepth     = 128
	defaultInline    = 4096
	defaultMaxIO     = 1 << 20
	defaultPool      = 8 << 20
	defaultConns     = 512
	defaultKeepAlive = 250 * time.Millisecond
	defaultBusyPoll  = 200 * time.Microsecond

	loginTimeout        = 5 * time.Second  // for a connection to log in
	openTimeout         = 30 * time.Second // for a peer of another host to open an export
	maxMissedKeepalives = 3                // silent intervals until a peer is dead
	maxOpens            = 4096             // opens of a session in its life
)

func (c Config) withDefaults() Config {
	if c.Security != nil && c.CopyMode == "" {
		c.CopyMode = regcache.CopyBounce
	}
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	set(&c.Depth, defaultDepth)
	set(&c.InlineMax, defaultInline)
	set(&c.MaxIO, defaultMaxIO)
	set(&c.PoolBytes, max(defaultPool, 2*c.MaxIO))
	set(&c.MaxConnections, defaultConns)
	set(&c.MaxPerOrigin, max(leastShare, c.MaxConnections/2))
	if c.CopyMode == "" {
		c.CopyMode = regcache.CopyAuto
	}
	if c.RegisterMax == 0 {
		c.RegisterMax = mappingBudget
	}
	if c.KeepAlive == 0 {
		c.KeepAlive = defaultKeepAlive
	}
	if c.BusyPoll == 0 {
		c.BusyPoll = defaultBusyPoll
	}
	if c.Scheduler == nil {
		c.Scheduler = sched.Real
	}
	if c.Scheduler != sched.Real {
		c.BusyPoll = -1
	}
	if c.Random == nil {
		c.Random = rand.Reader
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func (c *Config) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.NIC != nil, "no nic")
	check(c.Depth >= 1 && c.Depth <= wire.MaxDepth, "depth %d is not 1 to %d", c.Depth, wire.MaxDepth)
	check(c.InlineMax >= 512 && c.InlineMax <= 64<<10, "inline maximum %d is not 512 to 65536 bytes", c.InlineMax)
	check(c.MaxIO >= 64<<10 && c.MaxIO <= wire.MaxIO, "longest transfer %d is not 64 KiB to 64 MiB", c.MaxIO)
	check(c.PoolBytes >= c.MaxIO, "transfer memory %d is less than the longest transfer %d", c.PoolBytes, c.MaxIO)
	check(c.IOTimeout >= 0, "i/o timeout %v is negative", c.IOTimeout)
	check(c.KeepAlive >= 10*time.Millisecond, "keepalive %v is less than 10 ms", c.KeepAlive)
	_, err := regcache.ParseCopyMode(string(c.CopyMode))
	check(err == nil, "%w", err)
	check(c.Security == nil || c.CopyMode != regcache.CopyZero,
		"copy mode zerocopy in sealed sessions, whose payload is sealed in place of a copy: use auto or bounce")
	check(c.RegisterMax >= regcache.HugeGranule, "at most %d bytes registered of mapped files, 2 MiB is the least", c.RegisterMax)
	return errors.Join(errs...)
}

// Server exports disks over VIA. Its methods are safe for concurrent use.
type Server struct {
	cfg         Config
	began       time.Time
	id          [16]byte // of the target; here of its process
	exports     *exportTable
	shared      *Sessions
	sessions    *sessionTable        // of shared
	ended       *endedTable          // of shared
	removed     *endedTable          // of shared: writers of removed disks
	guard       *handshake.Guard     // nil without security
	cost        regcache.Calibration // of the NIC, if a disk is mapped
	mappings    mappings
	refusals    ratelog.Log   // of peers that are not logged in
	caused      ratelog.Peers // by peers that are
	panics      atomic.Uint64 // of workers
	quarantined atomic.Uint64 // connections
	succeeded   atomic.Bool   // another target is ready to serve

	mu sync.Mutex
	// +checklocks:mu
	conns []*conn // in the order of their requests
	// +checklocks:mu
	admission admission
	// +checklocks:mu
	draining bool
	// +checklocks:mu
	started uint64 // connections ever
	// +checklocks:mu
	refused uint64
	// +checklocks:mu
	past ConnStats // of connections that ended
	// +checklocks:mu
	idle *sched.Event // conns is empty; nil unless draining
}

// New checks the configuration and returns a server.
func New(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure target: %w", err)
	}
	shared := cfg.Sessions
	if shared == nil {
		var err error
		if shared, err = NewSessions(cfg.Random); err != nil {
			return nil, fmt.Errorf("configure target: %w", err)
		}
	}
	exports, err := newExportTable(&cfg, shared)
	if err != nil {
		return nil, fmt.Errorf("configure target: %w", err)
	}
	s := &Server{
		cfg: cfg, began: cfg.Scheduler.Now(), id: shared.id, exports: exports, admission: newAdmission(cfg.MaxConnections, cfg.MaxPerOrigin),
		shared: shared, sessions: &shared.table, ended: &shared.ended, removed: &shared.removed,
	}
	s.mappings.cfg = &s.cfg
	s.guard = s.newGuard()
	if err := s.calibrate(); err != nil {
		return nil, fmt.Errorf("configure target: %w", err)
	}
	shared.add(s)
	return s, nil
}

// SetExports replaces the exports, or returns an error and changes nothing.
// Exports with the reservations and the settings of one before go on; sessions
// keep what they have open, and are told what comes and goes. One goroutine at
// a time calls it.
func (s *Server) SetExports(exports []Export) error {
	publish, err := s.PrepareExports(exports)
	if err == nil {
		publish()
	}
	return err
}

// PrepareExports checks exports as SetExports does and changes nothing. The
// function that it returns replaces the exports by them, and cannot fail; it is
// called before exports are prepared or set again, or not at all.
func (s *Server) PrepareExports(exports []Export) (publish func(), err error) {
	l, err := s.exports.prepare(exports)
	if err != nil {
		return nil, err
	}
	return func() {
		s.exports.current.Store(l)
		s.announceExports()
	}, nil
}

// Forget ends what the server keeps of a disk that is not exported any more,
// and that no client has. Then the disk may be closed.
func (s *Server) Forget(disk *reserve.Disk) error { return s.mappings.forget(disk) }

// Listen listens at a host address of the NIC. Initiators may connect from now
// on and are served by Serve.
func (s *Server) Listen(host string) (*via.Listener, error) {
	return s.cfg.NIC.Listen(via.Address{Host: host, Discriminator: Discriminator})
}

// Serve accepts connections from a listener until ctx ends, then closes it,
// ends the connections and returns when all have ended. Several listeners may
// be served at a time.
func (s *Server) Serve(ctx context.Context, l *via.Listener) error {
	var closeErr error
	err := s.ServeRequests(ctx, func(ctx context.Context) (*via.ConnRequest, error) {
		r, err := l.Wait(ctx)
		if err != nil {
			closeErr = l.Close()
		}
		return r, err
	})
	return errors.Join(err, closeErr)
}

// ServeRequests serves the connection requests that next returns, until next
// fails or ctx ends. It then ends the connections and returns when all have
// ended. It may run several times at a time.
func (s *Server) ServeRequests(ctx context.Context, next func(context.Context) (*via.ConnRequest, error)) (err error) {
	s.mappings.acquire()
	defer func() { err = errors.Join(err, s.mappings.release()) }()
	workers := &workers{n: 1, ended: s.cfg.Scheduler.NewEvent()}
	defer s.stopWorkers(workers)
	for {
		r, err := next(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		s.admit(ctx, r, workers)
	}
}

// workers are the workers of a ServeRequests.
type workers struct {
	n     int          // of them, and 1 until no more are admitted; guarded by Server.mu
	ended *sched.Event // n is 0
}

// release counts one less.
func (w *workers) release() {
	if w.n--; w.n == 0 {
		w.ended.Set()
	}
}

// stopWorkers stops the workers of a ServeRequests that admits no more, and
// waits for them.
func (s *Server) stopWorkers(w *workers) {
	s.stopAll(stopNow, w)
	s.mu.Lock()
	w.release()
	s.mu.Unlock()
	s.cfg.Scheduler.Wait(context.Background(), -1, w.ended)
}

// admit takes a connection request, or rejects it.
func (s *Server) admit(ctx context.Context, r *via.ConnRequest, workers *workers) {
	s.mu.Lock()
	refusal, reason := "the target is going down", byte(wire.RejectLeaving)
	if !s.draining {
		refusal, reason = s.admission.begin(r.Origin()), wire.RejectFull
	}
	if refusal != "" {
		s.refused++
		s.mu.Unlock()
		s.refusals.Warn(s.cfg.Log, "connection refused", "event", "connection_refused", "peer", r.RemoteHost(), "reason", refusal,
			"limit", s.cfg.MaxConnections, "limit_of_host", s.cfg.MaxPerOrigin)
		_ = r.RejectFor(reason) // the requester may be gone
		return
	}
	c := newConn(s, workers, r.RemoteHost(), r.Origin())
	s.conns = append(s.conns, c)
	s.started++
	workers.n++
	s.mu.Unlock()
	s.cfg.Scheduler.Go(func() { c.routineConfirm(ctx, r) })
}

// removeConn removes a connection that ended.
func (s *Server) removeConn(c *conn) {
	defer contain.Shared()
	s.detachSession(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = slices.DeleteFunc(s.conns, func(other *conn) bool { return other == c })
	s.admission.release(c.counted, c.opened)
	stats, _ := c.published.read()
	s.past.add(stats)
	if len(s.conns) == 0 && s.draining {
		s.idle.Set()
	}
	c.workers.release()
}

// isDraining reports whether Drain was called.
func (s *Server) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// stopAll stops the workers of a ServeRequests, or with nil all.
func (s *Server) stopAll(how int32, workers *workers) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		if workers == nil || c.workers == workers {
			c.signals.stop(how)
		}
	}
}

// Drain refuses new connections and new commands, lets the workers finish the
// requests in flight and end, and returns when all have ended or ctx ends.
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	s.draining = true
	if s.idle == nil {
		s.idle = s.cfg.Scheduler.NewEvent()
		if len(s.conns) == 0 {
			s.idle.Set()
		}
	}
	idle := s.idle
	s.mu.Unlock()
	s.stopAll(stopDrain, nil)
	if s.cfg.Scheduler.Wait(ctx, -1, idle); !idle.IsSet() {
		return fmt.Errorf("drain target: %w", context.Cause(ctx))
	}
	return nil
}
