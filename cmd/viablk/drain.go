package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/config"
)

// An administrator drains a target before its end, to see that no client is
// left:
//
//  1. The target refuses new clients, and changes of its exports.
//  2. It answers what is in flight, and tells initiators to leave, as at
//     SIGTERM. NBD and each VIA provider do so at the same time.
//  3. It stays, with its disks open, for the status socket and for metrics. A
//     signal ends it.
//
// A drain cuts nothing off. The time of a call bounds the wait of its client.

// maximumDrainCalls is how many clients wait for the end of a drain at a time.
const maximumDrainCalls = 16

// drainCall is the body of a request to drain.
type drainCall struct {
	Timeout string `json:"timeout"` // how long to wait for the end of the drain
}

// Why a drain does not begin.
var (
	errNoDrain = errors.New("only a target without --stdio drains and stays: SIGTERM ends this process")
	errStarts  = errors.New("the process starts: try again")
)

// unfinishedDrain is that a drain goes on after the time of a call.
type unfinishedDrain struct {
	clients, requests int
	exports           []string // with a request in the disk
}

func (e *unfinishedDrain) Error() string {
	text := fmt.Sprintf("the target still drains: %d clients are left, with %d requests in flight", e.clients, e.requests)
	if len(e.exports) > 0 {
		text += fmt.Sprintf(", in the disk of %q", e.exports)
	}
	return text
}

// beginDrain begins a drain, once.
func (s *service) beginDrain() error {
	switch {
	case !s.mayDrain:
		return errNoDrain
	case !s.ready.Load():
		return errStarts
	}
	err := s.phases.begin(phaseDraining, func() {
		s.stopChanges()
		s.running.Go(s.routineDrain)
	})
	switch {
	case err == nil:
		s.log.Info("draining for an administrator: requests in flight finish, and the process stays",
			"event", "draining", "requests", s.inFlight())
	case errors.Is(err, errDraining):
		err = nil
	}
	return err
}

// routineDrain ends what clients are connected to, until nothing is left of it
// or the process ends.
func (s *service) routineDrain() {
	var all sync.WaitGroup
	for _, p := range slices.Concat(s.parts...) {
		if p.drain == nil || p.stays {
			continue
		}
		// An error is the end of the process, which tells it.
		all.Go(func() { _ = p.drain(s.ctx) })
	}
	all.Wait()
	if s.ctx.Err() == nil {
		s.log.Info("drained: no client is left, and a signal ends the process", "event", "drained")
		close(s.drained)
	}
}

// awaitDrain waits until no client is left.
func (s *service) awaitDrain(ctx context.Context) error {
	select {
	case <-s.drained:
		return nil
	default:
	}
	select {
	case <-s.drained:
		return nil
	case <-s.ctx.Done():
		return errEnding
	case <-ctx.Done():
	}
	left := &unfinishedDrain{clients: len(s.report().Sessions), requests: s.inFlight()}
	if s.busy != nil {
		left.exports = s.busy()
	}
	return left
}

// handleDrain adds the route of a drain.
func (s *service) handleDrain(mux *http.ServeMux) {
	waiting := make(chan struct{}, maximumDrainCalls)
	mux.HandleFunc("POST /v1/drain", func(w http.ResponseWriter, r *http.Request) {
		document, ok := readDocument(w, r, maximumDocument)
		if !ok {
			return
		}
		timeout, err := drainTimeout(document, s.timeout)
		if err != nil {
			answerError(w, http.StatusBadRequest, err)
			return
		}
		select {
		case waiting <- struct{}{}:
			defer func() { <-waiting }()
		default:
			answerError(w, http.StatusServiceUnavailable, fmt.Errorf("%d clients wait for the drain: try again", maximumDrainCalls))
			return
		}
		extendDeadline(w, timeout)
		ctx, done := context.WithTimeout(r.Context(), timeout)
		defer done()
		if err = s.beginDrain(); err == nil {
			err = s.awaitDrain(ctx)
		}
		var left *unfinishedDrain
		switch {
		case err == nil:
			w.WriteHeader(http.StatusNoContent)
		case errors.Is(err, errStarts), errors.As(err, &left):
			answerError(w, http.StatusServiceUnavailable, err)
		default:
			answerError(w, http.StatusConflict, err)
		}
	})
}

// drainTimeout reads the body of a request to drain, which may be empty.
func drainTimeout(document []byte, usual time.Duration) (time.Duration, error) {
	var c drainCall
	d := json.NewDecoder(bytes.NewReader(document))
	d.DisallowUnknownFields()
	err := d.Decode(&c)
	if errors.Is(err, io.EOF) {
		return usual, nil
	}
	if err == nil && d.More() {
		err = errors.New("more follows it")
	}
	if err != nil {
		return 0, fmt.Errorf(`the document is not such as {"timeout": "30s"}: %w`, err)
	}
	if c.Timeout == "" {
		return usual, nil
	}
	timeout, err := time.ParseDuration(c.Timeout)
	if err != nil || timeout < 0 || timeout > maximumDrain {
		return 0, fmt.Errorf("timeout: %q is not a duration up to %v, such as 30s", c.Timeout, maximumDrain)
	}
	return timeout, nil
}

func (a *app) drainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Have a target finish its requests, refuse clients and stay",
		Long: `Drain the running target of this user, or the one behind --admin: it takes no new
clients, answers what is in flight, and tells initiators to leave, as at SIGTERM. Their
requests wait for --ctrl-loss-tmo for the next target. The target then stays, with its
disks open, for status and metrics: "viablk status" and "health" show it as draining.
SIGTERM ends it. There is no way back.

The command waits until no client is left. Nothing is cut off: if requests are in flight
after --timeout, the exit code is 75, and the target goes on to drain. To drain again is
no error.`,
		Example: `  viablk drain --admin /run/viablk-target/status.sock --timeout 2m && systemctl stop viablk-target`,
	}
	options := addOptions(cmd, adminOption)
	timeout := cmd.Flags().Duration("timeout", config.Default().DrainTimeout, "`TIME` to wait until no client is left")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *timeout < 0 || *timeout > maximumDrain {
			return usage("--timeout: %v is not in 0…%v", *timeout, maximumDrain)
		}
		processes, err := a.runningProcesses(cmd.Context(), options)
		if err != nil {
			return err
		}
		p, err := oneTarget(processes)
		if err != nil {
			return err
		}
		body, err := json.Marshal(drainCall{timeout.String()})
		if err != nil {
			return fmt.Errorf("encode a call: %w", err)
		}
		if err := askAdmin(cmd.Context(), p.socket, adminCall{method: http.MethodPost, route: "/v1/drain", body: body, timeout: *timeout}); err != nil {
			return fmt.Errorf("pid %d: %w", p.PID, err)
		}
		return nil
	}
	return cmd
}

// oneTarget returns the only process, or the only target among several.
func oneTarget(processes []processStatus) (*processStatus, error) {
	if len(processes) == 1 {
		return &processes[0], nil
	}
	var found *processStatus
	for i := range processes {
		switch {
		case processes[i].Command != "target":
		case found != nil:
			return nil, usage("several targets run: name the socket of one with --admin PATH")
		default:
			found = &processes[i]
		}
	}
	if found == nil {
		return nil, &exit{exitTryAgain, errors.New("no target is there; name its socket with --admin PATH")}
	}
	return found, nil
}
