package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/contain"
)

// readyReport is what a serving command prints when clients can connect.
type readyReport struct {
	processStatus
	Admin string `json:"admin"` // path of the status socket; empty if there is none

	// Metrics is the URL of the listener for metrics and health, if there is one.
	Metrics string `json:"metrics,omitempty"`
}

// newStatus returns the status of this process without exports and counters.
func newStatus(command string) processStatus {
	return processStatus{
		Schema: "viablk.process/v1", PID: os.Getpid(), Command: command,
		Version: version().Version, Started: time.Now().Truncate(time.Millisecond),
		Exports: []exportStatus{}, Sessions: []sessionStatus{},
	}
}

// startAdmin opens the status socket and starts to serve it, as the first part:
// it answers while the others drain. If the service manager wants keepalives,
// it gets them from now on. fill adds what is known by now to a copy of the
// status, ender ends clients, and routes are added to the socket.
func (s *service) startAdmin(ctx context.Context, c config.Config, from handover, status processStatus, ender sessionEnder, fill func(*processStatus), routes ...func(*http.ServeMux)) (path string, err error) {
	limit, err := watchdogTime(os.Getenv, os.Getpid())
	if err != nil {
		return "", err
	}
	l, moves, reason, err := listenAdmin(ctx, c.Admin, c.AdminGroup, from)
	if err != nil {
		return "", err
	}
	report := func() processStatus {
		now := status
		now.Panics = contain.Count()
		fill(&now)
		now.Network, now.RDMA = networkReports(), rdmaReports()
		now.Faces, now.Sessions = now.faces(), now.sessions()
		return now
	}
	s.report = report
	if limit > 0 {
		s.start(watchdog(limit, report))
	}
	if l == nil {
		if reason != nil {
			s.log.Warn("no status socket: set XDG_RUNTIME_DIR to a folder of this user, or name another with --admin PATH",
				"event", "admin_unavailable", "error", reason)
		}
		return "", nil
	}
	path = cmp.Or(c.Admin, usualAdmin())
	s.calls.admin, s.calls.moves = l, moves
	if s.admin, err = filepath.Abs(path); err != nil {
		return "", errors.Join(fmt.Errorf("status socket: %w", err), l.Close())
	}
	h := &health{s, &statusCache{compute: report}, c.Metrics.ReadyAway}
	flight := newFlightRecorder()
	paced := newPacedListener(l, adminConnections, pace{interval: adminInterval, burst: adminConnections, batch: pacedBatch})
	admin := adminPart(paced, h.cache, ender, append(routes, s.handleReload, s.handleLogLevel, s.handleTakeover, s.handleDrain, s.handleUpgrade, s.handleEvents, h.handle, flight.handle)...)
	serve, drain := admin.serve, admin.drain
	admin.serve = func(ctx context.Context) error {
		defer h.cache.close()
		defer s.events.Close()
		defer flight.close()
		s.calls.await(ctx)
		return serve(ctx)
	}
	admin.drain = func(ctx context.Context) error {
		s.events.End()
		return drain(ctx)
	}
	s.start(admin)
	return path, nil
}

// connectable returns the URI of a listener as clients in other folders and on
// other hosts write it: with the path of its socket in full, and the name of
// this host for all addresses of it.
func connectable(listener string) string {
	u, err := config.ParseURI(listener)
	if err != nil {
		return listener
	}
	if path, err := filepath.Abs(u.Socket); err == nil && u.Socket != "" {
		u.Socket = path
	}
	if ip, err := netip.ParseAddr(u.Host); err == nil && ip.IsUnspecified() {
		if name, err := os.Hostname(); err == nil {
			u.Host = name
		}
	}
	return u.String()
}

// printReady says that clients can connect: to the service manager, and to
// people unless a client started the process and passed its socket.
func (a *app) printReady(r readyReport, in *nbdListeners) error {
	if err := notify(stateReady); err != nil || in.given {
		return err
	}
	if a.output == "json" {
		return a.printJSON(r)
	}
	rows := [][]string{{"EXPORT", "SIZE", "URI"}}
	for _, e := range r.Exports {
		for _, u := range e.places() {
			rows = append(rows, []string{e.Name, config.Size(e.Size).String(), connectable(u)})
		}
	}
	return a.printTable(rows)
}
