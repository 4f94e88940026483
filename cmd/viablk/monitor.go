package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/viablk/viablk/cmd/viablk/internal/statuspage"
	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/metrics"
	"github.com/viablk/viablk/internal/pki"
)

// Limits of the listener for metrics and health. A flood of connections costs
// what one connection in each interval does; others wait in the kernel.
const (
	monitorConnections  = 64
	monitorInterval     = 2 * time.Millisecond
	monitorIntervalTLS  = 10 * time.Millisecond // a handshake costs a millisecond
	monitorBurst        = 32                    // connections without an interval
	monitorReadTimeout  = 5 * time.Second
	monitorWriteTimeout = 10 * time.Second
	monitorHeader       = 16 << 10
)

// monitor serves the metrics, health and state of a process, to read only.
type monitor struct {
	cache  *statusCache
	health health
	page   *metrics.Page
	people statuspage.Page
	server http.Server
}

// startMonitor starts to listen where the configuration asks for it, or at the
// socket that the process was started with, as the second part: it answers
// while those that clients use drain. It returns the URL, or nothing.
func (s *service) startMonitor(ctx context.Context, c config.Config, inherited net.Listener, again *certificates) (string, error) {
	l, err := listenMonitor(ctx, c, inherited, s.log)
	if l == nil || err != nil {
		return "", err
	}
	scheme, interval := "http", monitorInterval
	cache := &statusCache{compute: s.report, translate: func(p *processStatus) *metrics.Snapshot {
		return newSnapshot(p, again, s.draining.Load())
	}}
	m := &monitor{cache: cache, health: health{s, cache, c.Metrics.ReadyAway}}
	m.page = metrics.NewPage(func(ctx context.Context) (*metrics.Snapshot, error) {
		d, err := m.cache.read(ctx)
		if err != nil {
			return nil, err
		}
		return d.metrics, nil
	}, c.Metrics.Exports)
	m.server = http.Server{
		Handler:     m.handler(),
		ReadTimeout: monitorReadTimeout, WriteTimeout: monitorWriteTimeout, MaxHeaderBytes: monitorHeader,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	m.server.SetKeepAlivesEnabled(false)
	if folder := c.Metrics.Certificates; folder != "" {
		used, err := pki.NewServerCertificates(folder, true)
		if err != nil {
			l.Close()
			return "", fmt.Errorf("certificates of metrics.listen: %w", pkiError(err))
		}
		m.server.TLSConfig = used.Config()
		m.server.Protocols = new(http.Protocols)
		m.server.Protocols.SetHTTP1(true)
		again.use(usedCertificates{folder: folder, read: used.Reload})
		again.attach(s)
		scheme, interval = "https", monitorIntervalTLS
	}
	s.start(m.part(newPacedListener(l, monitorConnections, pace{interval: interval, burst: monitorBurst})))
	return scheme + "://" + l.Addr().String(), nil
}

// listenMonitor opens the listener, or takes the one that the process was
// started with; nil is none. Other hosts reach it only with certificates, or if
// that is accepted.
func listenMonitor(ctx context.Context, c config.Config, inherited net.Listener, log *slog.Logger) (net.Listener, error) {
	l := inherited
	switch {
	case l != nil && c.Metrics.Listen != "":
		return nil, usage("the process was started with a socket called %s: leave out metrics.listen, which is %s", monitorSocket, c.Metrics.Listen)
	case l == nil && c.Metrics.Listen == "":
		return nil, nil
	case l == nil:
		u, err := c.Metrics.Address()
		if err != nil {
			return nil, err // the configuration was checked
		}
		address := net.JoinHostPort(u.ListenHost(), strconv.Itoa(int(u.Port)))
		if l, err = new(net.ListenConfig).Listen(ctx, "tcp", address); err != nil {
			return nil, fmt.Errorf("metrics.listen: %w", err)
		}
	}
	switch {
	case (endpoint{listener: l}).local() || c.Metrics.Certificates != "":
	case !c.Insecure:
		l.Close()
		return nil, &exit{exitConfiguration, fmt.Errorf("any host that reaches %s could read who uses the disks: set metrics.certificates, listen at a loopback address, or accept that with --insecure", l.Addr())}
	default:
		log.Warn("any host that reaches this listener can read metrics and who uses the disks", "event", "listener_exposed", "address", l.Addr().String())
	}
	return l, nil
}

// part serves the listener.
func (m *monitor) part(l net.Listener) part {
	return part{
		name: "metrics.listen",
		serve: func(ctx context.Context) error {
			defer m.cache.close()
			sampling, end := context.WithCancel(ctx)
			var sampler sync.WaitGroup
			sampler.Go(func() { m.routineSample(sampling) })
			defer sampler.Wait()
			defer end()
			stop := context.AfterFunc(ctx, func() { m.server.Close() })
			defer stop()
			var err error
			if m.server.TLSConfig != nil {
				err = m.server.ServeTLS(l, "", "")
			} else {
				err = m.server.Serve(l)
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			return err
		},
		// Scrapes are not waited for: there will be others.
		drain: func(context.Context) error { return m.server.Close() },
		stays: true,
	}
}

// routineSample gives the page for people the state of each second, until ctx
// ends. Without a state the second is absent.
func (m *monitor) routineSample(ctx context.Context) {
	ticker := time.NewTicker(statuspage.Interval)
	defer ticker.Stop()
	for {
		if d, err := m.cache.read(ctx); err == nil {
			p := &d.status
			m.people.Add(statuspage.Process{PID: p.PID, Command: p.Command, Version: p.Version, Started: p.Started},
				activityOf(d.made, []processStatus{*p}))
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (m *monitor) handler() http.Handler {
	mux := http.NewServeMux()
	m.people.Register(mux)
	mux.Handle("GET /metrics", m.page)
	m.health.handle(mux)
	mux.HandleFunc("GET /v1/status", m.serveStatus)
	return mux
}

// serveStatus answers with what "viablk status" prints of the process.
func (m *monitor) serveStatus(w http.ResponseWriter, r *http.Request) {
	d, err := m.cache.read(r.Context())
	if err == nil {
		err = d.encode()
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(d.encoded) // an error is a client that went away
}

// statusCache computes the state of the process for many clients: in one
// goroutine at a time, and once in statusFresh.
type statusCache struct {
	compute   func() processStatus
	translate func(*processStatus) *metrics.Snapshot // may be nil

	mu sync.Mutex
	// +checklocks:mu
	latest *statusDocument
	// +checklocks:mu
	running chan struct{} // closed at the end of the computation; nil without
	// +checklocks:mu
	closed bool
}

// statusDocument is the state of the process at one time.
type statusDocument struct {
	status  processStatus
	metrics *metrics.Snapshot
	made    time.Time

	once    sync.Once
	encoded []byte // by encode
	failure error
}

// How long a state is good for, and how long it may take to compute.
const (
	statusFresh   = 100 * time.Millisecond
	statusTimeout = time.Second
)

var (
	errStatusTimeout = fmt.Errorf("the process did not report its state within %v", statusTimeout)
	errStatusClosed  = errors.New("the process ends")
)

// read returns a state that is not older than statusFresh.
func (c *statusCache) read(ctx context.Context) (*statusDocument, error) {
	latest, running, err := c.begin()
	if running == nil {
		return latest, err
	}
	limit := time.NewTimer(statusTimeout)
	defer limit.Stop()
	select {
	case <-running:
	case <-limit.C:
		return nil, errStatusTimeout
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.latest, nil
}

// begin returns a fresh state, or the end of the computation of one.
func (c *statusCache) begin() (*statusDocument, <-chan struct{}, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, errStatusClosed
	}
	if c.running == nil {
		if c.latest != nil && time.Since(c.latest.made) < statusFresh {
			return c.latest, nil, nil
		}
		c.running = make(chan struct{})
		go c.refresh()
	}
	return nil, c.running, nil
}

// refresh computes a state.
func (c *statusCache) refresh() {
	d := &statusDocument{status: c.compute()}
	if c.translate != nil {
		d.metrics = c.translate(&d.status)
	}
	d.made = time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.latest = d
	close(c.running)
	c.running = nil
}

// close waits for the computation that runs. None begins afterwards.
func (c *statusCache) close() {
	c.mu.Lock()
	c.closed = true
	running := c.running
	c.mu.Unlock()
	if running != nil {
		<-running
	}
}

// encode makes encoded, once.
func (d *statusDocument) encode() error {
	d.once.Do(func() { d.encoded, d.failure = json.Marshal(&d.status) })
	return d.failure
}
