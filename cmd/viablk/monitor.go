package main

import (
	"context"
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
	"github.com/viablk/viablk/internal/nbdkernel"
	"github.com/viablk/viablk/internal/pki"
)

// Limits of the listener for metrics and health. A flood of connections costs
// what one connection in each interval does, below a millisecond of a processor
// here; others wait in the kernel. A thousand scrapes at once are answered
// within the 10 s that Prometheus waits.
const (
	monitorConnections  = 64
	monitorInterval     = 10 * time.Millisecond
	monitorBurst        = 32 // connections without an interval
	pacedBatch          = 10 // here and at the status socket
	monitorReadTimeout  = 5 * time.Second
	monitorWriteTimeout = 10 * time.Second
	monitorHeader       = 16 << 10
)

// scrapeWait is how long a process that ends waits for those who scrape it: the
// clients of its disks may wait too.
const scrapeWait = 20 * time.Millisecond

// monitor serves the metrics, health and state of a process, to read only.
type monitor struct {
	cache   *statusCache
	scrapes scrapes // of the cache
	health  health
	page    *metrics.Page
	people  statuspage.Page
	server  http.Server
}

// startMonitor starts to listen where the configuration asks for it, or at the
// socket that the process was started with, as the second part: it answers
// while those that clients use drain. It returns the URL, or nothing.
func (s *service) startMonitor(ctx context.Context, c config.Config, inherited net.Listener, from handover, again *certificates) (string, error) {
	l, err := listenMonitor(ctx, c, inherited, from, s.log)
	if l == nil || err != nil {
		return "", err
	}
	if inherited == nil {
		s.calls.monitor, s.calls.monitorAt = l, c.Metrics.Listen
	}
	scheme := "http"
	cache := &statusCache{compute: s.report, translate: func(p *processStatus) *metrics.Snapshot {
		devices, _ := nbdkernel.Devices() // those that it may see
		return newSnapshot(p, devices, again, s.reloads.read(), s.draining.Load())
	}}
	m := &monitor{cache: cache, scrapes: scrapes{cache: cache}, health: health{s, cache, c.Metrics.ReadyAway}}
	m.page = metrics.NewPage(func(ctx context.Context) (*metrics.Snapshot, error) {
		d, err := m.scrapes.read(ctx)
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
		again.use(usedCertificates{folder: folder, read: used.PrepareReload})
		again.attach(s)
		scheme = "https"
	}
	p := m.part(newPacedListener(l, monitorConnections, pace{interval: monitorInterval, burst: monitorBurst, batch: pacedBatch}))
	serve := p.serve
	p.serve = func(ctx context.Context) error {
		s.calls.await(ctx)
		return serve(ctx)
	}
	s.start(p)
	return scheme + "://" + l.Addr().String(), nil
}

// listenMonitor opens the listener, or takes that of the process before, or the
// one that the process was started with; nil is none. Other hosts reach it only
// with certificates, or if that is accepted.
func listenMonitor(ctx context.Context, c config.Config, inherited net.Listener, from handover, log *slog.Logger) (net.Listener, error) {
	l := inherited
	if l == nil && c.Metrics.Listen != "" {
		var err error
		if l, err = from.listener(itemMetrics + c.Metrics.Listen); err != nil {
			return nil, fmt.Errorf("metrics.listen: %w", err)
		}
	}
	switch {
	case inherited != nil && c.Metrics.Listen != "":
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
func (m *monitor) part(l *pacedListener) part {
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
			return l.ended(ctx, err)
		},
		drain: func(ctx context.Context) error {
			ctx, done := context.WithTimeout(ctx, scrapeWait)
			defer done()
			_ = l.drain(ctx) // there will be other scrapes
			return m.server.Close()
		},
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
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, r *http.Request) {
		d, err := m.scrapes.read(r.Context())
		m.cache.answer(w, d, err)
	})
	return mux
}
