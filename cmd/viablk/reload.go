package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

var errNothingToReload = errors.New("the process has nothing to read again: it was started without certificates")

// routineReload reloads at SIGHUP, at the call of an administrator and each
// hour, until the process ends.
func (s *service) routineReload() {
	hangups := s.hangups
	if s.reload == nil {
		hangups = nil // they end the process
	}
	for {
		select {
		case <-hangups:
			ctx, done := context.WithTimeout(s.ctx, changeTime)
			_ = s.reloadNow(ctx) // it logs
			done()
		case q := <-s.asked:
			q.result <- s.reloadNow(q.ctx)
		case <-s.hours:
			if s.hourly != nil {
				s.hourly()
			}
		case <-s.ending:
			return
		}
	}
}

// failedReload says what the last reload could not read again, and is empty if
// it could.
func (s *service) failedReload() string {
	complaints := []string{s.reloads.complaint("configuration")}
	if c := s.again.Load(); c != nil {
		complaints = append(complaints, c.reloads.complaint("certificates"))
	}
	return strings.Join(slices.DeleteFunc(complaints, func(text string) bool { return text == "" }), "; ")
}

// reloadRequest is a call of an administrator, who waits until ctx ends.
type reloadRequest struct {
	ctx    context.Context
	result chan error // has a place for the result
}

// reloadNow reads the configuration again, and tells the service manager when
// it begins and ends.
func (s *service) reloadNow(ctx context.Context) error {
	if s.reload == nil {
		return errNothingToReload
	}
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	if err == nil {
		err = notify(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", stateReloads, now.Nano()/int64(time.Microsecond)))
	}
	result := s.reload(ctx)
	if err = errors.Join(err, notify(stateReady)); err != nil {
		s.log.Warn("the service manager does not know of the reload", "event", "notify_failed", "error", err)
	}
	return result
}

// askReload has routineReload reload, and returns the result. It waits for the
// process to have started. When ctx ends before, the reload may come all the
// same.
func (s *service) askReload(ctx context.Context) error {
	q := reloadRequest{ctx, make(chan error, 1)}
	select {
	case s.asked <- q:
	case <-s.ending:
		return errDraining
	case <-ctx.Done():
		return errChanging
	}
	select {
	case err := <-q.result:
		return err
	case <-ctx.Done():
		return errChanging
	}
}

// handleReload adds the route of reload.
func (s *service) handleReload(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/reload", func(w http.ResponseWriter, r *http.Request) {
		ctx, done := changeContext(w, r)
		defer done()
		if err := s.askReload(ctx); err != nil {
			answerChange(w, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
}

func (a *app) reloadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Have running processes read their configuration again",
		Long: `Have the running viablk processes of this user, or the one behind --admin, read
certificates and the exports of their configuration file again, as SIGHUP does, and
wait for the result. With a mistake in either nothing changes: the exit code is 78.`,
		Example: `  viablk reload --admin /run/viablk-target/status.sock`,
	}
	options := addOptions(cmd, adminOption)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		processes, err := a.runningProcesses(cmd.Context(), options)
		if err != nil {
			return err
		}
		var errs []error
		for i := range processes {
			err := askAdmin(cmd.Context(), processes[i].socket, adminCall{method: http.MethodPost, route: "/v1/reload", timeout: changeTime})
			if err != nil {
				errs = append(errs, fmt.Errorf("pid %d: %w", processes[i].PID, err))
			}
		}
		return errors.Join(errs...)
	}
	return cmd
}
