package target

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/viablk/viablk/internal/stranger"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/regcache"
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
	Heartbeat      time.Duration // between heartbeats of an idle connection; 1 s
	Spin           time.Duration // a worker looks for work before it sleeps; 200 µs, < 0 none
	Log            *slog.Logger  // nil discards

	// CopyMode says how Reads of mapped files move; "" is auto.
	CopyMode regcache.CopyMode

	// RegisterMax limits what the server registers of mapped files at a time, for all
	// connections together, in bytes, 2 MiB at least; 256 MiB.
	RegisterMax int64
}

// Defaults and limits of Config.
const (
	defaultDepth     = 128
	defaultInline    = 4096
	defaultMaxIO     = 1 << 20
	defaultPool      = 8 << 20
	defaultConns     = 512
	defaultHeartbeat = time.Second
	defaultSpin      = 200 * time.Microsecond

	loginPatience = 5 * time.Second // for a connection to log in
	missedBeats   = 5               // heartbeats without a word until a peer is dead
	maxOpens      = 4096            // opens of a session in its life
)

func (c Config) withDefaults() Config {
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
	if c.CopyMode == "" {
		c.CopyMode = regcache.CopyAuto
	}
	if c.RegisterMax == 0 {
		c.RegisterMax = windowBudget
	}
	if c.Heartbeat == 0 {
		c.Heartbeat = defaultHeartbeat
	}
	if c.Spin == 0 {
		c.Spin = defaultSpin
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
	check(c.Heartbeat >= 10*time.Millisecond, "heartbeat %v is less than 10 ms", c.Heartbeat)
	_, err := regcache.ParseCopyMode(string(c.CopyMode))
	check(err == nil, "%w", err)
	check(c.RegisterMax >= regcache.HugeGranule, "at most %d bytes registered of mapped files, 2 MiB is the least", c.RegisterMax)
	return errors.Join(errs...)
}

// Server exports disks over VIA. Its methods are safe for concurrent use.
type Server struct {
	cfg      Config
	id       [16]byte // of the target; here of its process
	exports  *exportTable
	sessions sessionTable
	cost     regcache.Calibration // of the NIC, if a disk is mapped
	mappings mappings
	refusals stranger.Log // about who is not logged in

	mu       sync.Mutex
	conns    map[*conn]struct{}
	draining bool
	started  uint64 // connections ever
	refused  uint64
	past     ConnStats     // of connections that ended
	idle     chan struct{} // closed when conns is empty; nil unless draining
}

// New checks the configuration and returns a server.
func New(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure target: %w", err)
	}
	exports, err := newExportTable(cfg.Exports)
	if err != nil {
		return nil, fmt.Errorf("configure target: %w", err)
	}
	s := &Server{cfg: cfg, exports: exports, conns: make(map[*conn]struct{})}
	s.mappings.cfg = &s.cfg
	s.sessions.byID = make(map[[16]byte]*session)
	_, _ = rand.Read(s.id[:]) // never fails
	if err := s.calibrate(); err != nil {
		return nil, fmt.Errorf("configure target: %w", err)
	}
	return s, nil
}

// Listen listens at a host address of the NIC. Initiators may connect from now on
// and are served by Serve.
func (s *Server) Listen(host string) (*via.Listener, error) {
	return s.cfg.NIC.Listen(via.Address{Host: host, Discriminator: Discriminator})
}

// Serve accepts connections from a listener until ctx ends, then closes it, ends
// the connections and returns when all have ended. Several listeners may be
// served at a time.
func (s *Server) Serve(ctx context.Context, l *via.Listener) (err error) {
	s.mappings.enter()
	defer func() { err = errors.Join(err, s.mappings.leave()) }()
	var workers sync.WaitGroup
	defer workers.Wait()
	defer s.stopAll(stopNow, &workers)
	for {
		r, err := l.Wait(ctx)
		if err != nil {
			closeErr := l.Close()
			if ctx.Err() != nil {
				return closeErr
			}
			return errors.Join(err, closeErr)
		}
		s.admit(ctx, r, &workers)
	}
}

// admit starts a worker for a connection request, or rejects it.
func (s *Server) admit(ctx context.Context, r *via.ConnRequest, workers *sync.WaitGroup) {
	s.mu.Lock()
	full := len(s.conns) >= s.cfg.MaxConnections || s.draining
	if full {
		s.refused++
		s.mu.Unlock()
		_ = r.Reject() // the requester may be gone
		s.refusals.Warn(s.cfg.Log, "connection refused", "peer", r.RemoteHost(), "limit", s.cfg.MaxConnections)
		return
	}
	c := newConn(s, workers, r.RemoteHost())
	s.conns[c] = struct{}{}
	s.started++
	workers.Add(1)
	s.mu.Unlock()
	go c.routineServe(ctx, r)
}

// gone forgets a connection that ended.
func (s *Server) gone(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	stats, _ := c.published.read()
	s.past.add(stats)
	if len(s.conns) == 0 && s.draining {
		close(s.idle)
	}
	s.mu.Unlock()
	c.workers.Done()
}

// stopAll tells the workers of a Serve to stop, or with nil all.
func (s *Server) stopAll(how int32, workers *sync.WaitGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if workers == nil || c.workers == workers {
			c.stop(how)
		}
	}
}

// Drain refuses new connections and new commands, lets the workers finish what
// is under way and end, and returns when all ended or ctx ends.
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	s.draining = true
	if s.idle == nil {
		s.idle = make(chan struct{})
		if len(s.conns) == 0 {
			close(s.idle)
		}
	}
	idle := s.idle
	s.mu.Unlock()
	s.stopAll(stopDrain, nil)
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("drain target: %w", context.Cause(ctx))
	}
}
