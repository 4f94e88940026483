package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/nbd"
)

// healthReport is what "viablk health" prints.
type healthReport struct {
	Schema    string          `json:"schema"` // viablk.health/v1
	Processes []processHealth `json:"processes"`
}

// processHealth is whether a process is alive, or ready.
type processHealth struct {
	PID    int         `json:"pid"` // 0: unknown, it does not answer
	Socket string      `json:"socket"`
	State  string      `json:"state"` // healthy, unhealthy, ready, unready or draining
	Error  string      `json:"error,omitempty"`
	Checks []readCheck `json:"checks,omitempty"` // of readiness

	well bool // what was asked for is true
}

func (a *app) healthCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Check whether running processes are alive, or ready",
		Long: `Check the running viablk processes of this user, or the one behind --admin, for a
monitor. A process is healthy if it tells its state within a second, as /healthz. With
--ready it is ready if clients can use its disks, as /readyz: it has started, is not
draining, its last reload succeeded, and no disk has failed or waits for longer than
metrics.ready_away. A process that drains is healthy and not ready; STATE is draining.

The exit code is 0 if all are, 2 if one is not or does not answer, and 75 if no process
is there.`,
		Example: `  viablk health --admin /run/viablk-target/status.sock
  viablk health --ready -o json`,
	}
	options := addOptions(cmd, adminOption)
	ready := cmd.Flags().Bool("ready", false, "ask whether clients can use the disks")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		e, err := a.load(options.file, options.given())
		if err != nil {
			return err
		}
		report, err := findHealth(cmd.Context(), e.Config, *ready)
		if err != nil {
			return err
		}
		return a.printHealth(report)
	}
	return cmd
}

// findHealth asks the process behind the status socket of the configuration, or
// all.
func findHealth(ctx context.Context, c config.Config, ready bool) (r healthReport, err error) {
	r.Schema = "viablk.health/v1"
	ask := func(socket string) error {
		p, err := askHealth(ctx, socket, ready)
		if err == nil {
			r.Processes = append(r.Processes, p)
		}
		if errors.Is(err, syscall.EACCES) && c.Admin == "" {
			return nil // of another user
		}
		return err
	}
	switch c.Admin {
	case adminNone:
		return r, errNoAdmin()
	case "":
		err = visitAdmins(ask)
	default:
		err = ask(c.Admin)
	}
	if err != nil {
		return r, unreachable(err)
	}
	if len(r.Processes) == 0 {
		return r, errNoneRuns()
	}
	return r, nil
}

// askHealth asks a process. The error is that there is none.
func askHealth(ctx context.Context, socket string, ready bool) (p processHealth, err error) {
	p = processHealth{Socket: socket}
	var answer struct {
		readiness
		adminError
	}
	// The process answers with the checks, or else that it does not get at its
	// state.
	err = askAdmin(ctx, socket, adminCall{
		method: http.MethodGet, route: "/readyz", or: http.StatusServiceUnavailable,
		read: func(c net.Conn, body *json.Decoder) error {
			p.PID = nbd.ListenerPID(c)
			return body.Decode(&answer)
		},
	})
	switch {
	case err == nil:
		p.Error = answer.Error.Message
		p.setState(&answer.readiness, ready)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.EACCES):
		return p, fmt.Errorf("ask %q: %w", socket, err)
	default:
		p.State, p.Error = "unhealthy", err.Error()
	}
	return p, nil
}

// setState sets the state of health, or that of readiness with its checks.
func (p *processHealth) setState(r *readiness, ready bool) {
	if ready {
		p.Checks = r.Checks
	}
	switch {
	case r.draining():
		p.State, p.well = "draining", !ready
	case len(r.Checks) == 0 && !ready:
		p.State = "unhealthy"
	case !ready:
		p.State, p.well = "healthy", true
	case r.Ready:
		p.State, p.well = "ready", true
	default:
		p.State = "unready"
	}
}

// printHealth prints the report. The exit code says whether all is well.
func (a *app) printHealth(r healthReport) error {
	rows := [][]string{{"PID", "STATE", "WHY"}}
	well := true
	for _, p := range r.Processes {
		why := []string{}
		if p.Error != "" {
			why = append(why, p.Error)
		}
		for _, c := range p.Checks {
			if !c.Passed {
				why = append(why, strings.TrimSuffix(c.Name+": "+c.Text, ": "))
			}
		}
		well = well && p.well
		rows = append(rows, []string{strconv.Itoa(p.PID), p.State, strings.Join(why, "; ")})
	}
	var err error
	if a.output == "json" {
		err = a.printJSON(r)
	} else {
		err = a.printTable(rows)
	}
	if err == nil && !well {
		err = &exit{code: exitFalse}
	}
	return err
}
