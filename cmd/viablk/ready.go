package main

import (
	"context"
	"os"
	"time"

	"github.com/viablk/viablk/config"
)

// readyReport is what a serving command prints when clients can connect.
type readyReport struct {
	processStatus
	Admin string `json:"admin"` // path of the status socket; empty if there is none
}

// newStatus returns the status of this process without exports and counters.
func newStatus(command string) processStatus {
	return processStatus{
		Schema: "viablk.process/v1", PID: os.Getpid(), Command: command,
		Version: version().Version, Started: time.Now().Truncate(time.Millisecond),
		Exports: []exportStatus{},
	}
}

// startAdmin opens the status socket and starts to serve it, as the first part: it
// answers while the others drain. fill adds what is known by now to a copy of the
// status.
func (s *service) startAdmin(ctx context.Context, admin string, status processStatus, fill func(*processStatus)) (path string, err error) {
	l, path, reason, err := listenAdmin(ctx, admin)
	if err != nil {
		return "", err
	}
	if l == nil {
		if reason != nil {
			s.log.Warn("no status socket: name another with --admin PATH", "error", reason)
		}
		return "", nil
	}
	s.start(adminPart(l, func() processStatus {
		now := status
		fill(&now)
		return now
	}))
	return path, nil
}

// printReady says that clients can connect, to people and to the service
// manager.
func (a *app) printReady(r readyReport) error {
	if err := notifyReady(); err != nil {
		return err
	}
	if a.output == "json" {
		return a.printJSON(r)
	}
	rows := [][]string{{"EXPORT", "SIZE", "URI"}}
	for _, e := range r.Exports {
		for _, u := range e.URIs {
			rows = append(rows, []string{e.Name, config.Size(e.Size).String(), u})
		}
	}
	return a.printTable(rows)
}
