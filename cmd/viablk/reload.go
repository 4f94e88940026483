package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// reloadTimeout is how long a reload may take: it opens disks.
const reloadTimeout = time.Minute

var (
	errNothingToReload = errors.New("the process has nothing to read again: it was started without certificates")
	errEnding          = errors.New("the process ends")
)

// reloadNow reads the configuration again, and tells the service manager when
// it begins and ends.
func (s *service) reloadNow() error {
	if s.reload == nil {
		return errNothingToReload
	}
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	if err == nil {
		err = notify(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", stateReloads, now.Nano()/int64(time.Microsecond)))
	}
	result := s.reload()
	if err = errors.Join(err, notify(stateReady)); err != nil {
		s.log.Warn("the service manager does not know of the reload", "event", "notify_failed", "error", err)
	}
	return result
}

// askReload has the goroutine of wait reload, and returns its result.
func (s *service) askReload(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case s.asked <- answer:
	case <-s.ending:
		return errEnding
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return <-answer
}

// handleReload adds the route of reload.
func (s *service) handleReload(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/reload", func(w http.ResponseWriter, r *http.Request) {
		extendDeadline(w, reloadTimeout)
		ctx, cancel := context.WithTimeout(r.Context(), reloadTimeout)
		defer cancel()
		switch err := s.askReload(ctx); {
		case err == nil:
			w.WriteHeader(http.StatusNoContent)
		case errors.Is(err, errEnding) || errors.Is(err, errNothingToReload):
			answerError(w, http.StatusConflict, err)
		default:
			answerProblems(w, err)
		}
	})
}

func (a *app) reloadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Have running processes read their configuration again",
		Long: `Have the running viablk processes of this user, or the one behind --admin, read
certificates and the exports of their configuration file again, as SIGHUP does, and
wait for the result. A file with a mistake changes nothing: the exit code is 78.`,
		Example: `  viablk reload --admin /run/viablk-target/status.sock`,
	}
	options := addOptions(cmd, adminOption)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		e, err := a.load(options.file, options.given())
		if err != nil {
			return err
		}
		processes, err := findStatus(cmd.Context(), e.Config)
		if err != nil {
			return err
		}
		var errs []error
		for i := range processes {
			err := callAdmin(cmd.Context(), processes[i].socket, adminCall{method: http.MethodPost, route: "/v1/reload", timeout: reloadTimeout})
			if err != nil {
				errs = append(errs, fmt.Errorf("pid %d: %w", processes[i].PID, err))
			}
		}
		return errors.Join(errs...)
	}
	return cmd
}
