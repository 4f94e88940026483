package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/config"
)

// An upgrade is a takeover that the running target begins:
//
//  1. It starts its program anew, which may be of another version by now, with
//     its own arguments and --takeover.
//  2. That process takes over, as any other one may.
//  3. The service manager hears that the new process is the main one.

// upgrade is the process that a target has started to take its place.
type upgrade struct {
	command func(socket string) (*exec.Cmd, error) // for the target with a status socket

	mu sync.Mutex
	// +checklocks:mu
	process *os.Process // nil: none, or it has ended
	// +checklocks:mu
	refused error // why it was not let take over
}

// Why an upgrade does not begin.
var errUpgrading = errors.New("an upgrade is in progress")

// pid returns the process, 0 if there is none.
func (u *upgrade) pid() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.process == nil {
		return 0
	}
	return u.process.Pid
}

// refuse notes why a process that asked was not let take over.
func (u *upgrade) refuse(why error) {
	u.mu.Lock()
	u.refused = why
	u.mu.Unlock()
}

// start starts the process. ended is closed when it has ended, and why is then
// the reason.
func (u *upgrade) start(socket string) (pid int, ended chan struct{}, why func() error, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.process != nil {
		return 0, nil, nil, errUpgrading
	}
	c, err := u.command(socket)
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		return 0, nil, nil, fmt.Errorf("start the new process: %w", err)
	}
	u.process, u.refused, ended = c.Process, nil, make(chan struct{})
	var failure error
	go func() { // ends with the process, or with this one
		failure = c.Wait()
		u.mu.Lock()
		if u.refused != nil {
			failure = u.refused
		}
		u.process = nil
		u.mu.Unlock()
		close(ended)
	}()
	return c.Process.Pid, ended, func() error { return failure }, nil
}

// successorCommand returns what starts this program anew, to take over from the
// target with a status socket.
func (a *app) successorCommand(socket string) (*exec.Cmd, error) {
	program, err := exec.LookPath(os.Args[0])
	if err != nil {
		return nil, err
	}
	c := exec.Command(program, successorArguments(a.args, socket)...)
	c.Args[0] = os.Args[0]
	c.Stdout, c.Stderr = a.stdout, a.stderr
	// Those are of one process alone. Sockets move with the takeover.
	c.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == "WATCHDOG_PID" || strings.HasPrefix(name, "LISTEN_")
	})
	return c, nil
}

// successorArguments returns arguments of a target with those for a takeover.
func successorArguments(arguments []string, socket string) []string {
	var kept []string
	for i := 0; i < len(arguments); i++ {
		switch {
		case arguments[i] == "--takeover":
			i++
		case strings.HasPrefix(arguments[i], "--takeover="):
		default:
			kept = append(kept, arguments[i])
		}
	}
	return append(kept, "--takeover="+socket)
}

// upgradeAnswer is the answer of POST /v1/upgrade.
type upgradeAnswer struct {
	PID int `json:"pid"` // of the process that takes over
}

// handleUpgrade adds the route of an upgrade. It answers when the new process
// takes over, or has ended.
func (s *service) handleUpgrade(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/upgrade", func(w http.ResponseWriter, r *http.Request) {
		switch {
		case s.mayHandOver == nil || s.admin == "":
			answerError(w, http.StatusConflict, errors.New("only a target without --stdio is upgraded"))
			return
		case s.draining.Load():
			answerError(w, http.StatusConflict, errDraining)
			return
		}
		extendDeadline(w, upgradeTime)
		pid, ended, why, err := s.upgrade.start(s.admin)
		if err != nil {
			answerError(w, http.StatusConflict, err)
			return
		}
		s.log.Info("a new process of the program is to take over", "event", "upgrade_begun", "pid", pid)
		select {
		case <-ended:
			err := fmt.Errorf("process %d did not take over: %w", pid, why())
			s.log.Error("upgrade failed: this target serves on", "event", "upgrade_failed", "error", err)
			answerError(w, http.StatusInternalServerError, err)
		case <-s.ending:
			w.WriteHeader(http.StatusAccepted)
			_ = json.NewEncoder(w).Encode(upgradeAnswer{pid}) // a client that left does not matter
		case <-r.Context().Done():
		}
	})
}

// upgradeTime is how long a new process may take until it takes over: it may
// have to wait for a flush of every disk.
const upgradeTime = 2 * time.Minute

func (a *app) upgradeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "upgrade",
		Short: "Have a target start its program anew, which takes over",
		Long: `Have the running target of this user, or the one behind --admin, start its program
anew, with the arguments that it has itself: the file of the program may be of another
version by now. The new process reads the configuration and takes over as with --takeover
of "viablk target": clients notice a pause. Under systemd it becomes the main process of
the unit.

The command waits until the new process serves. If that cannot take over, the running
target serves on.`,
		Example: `  viablk upgrade --admin /run/viablk-target/status.sock`,
	}
	options := addOptions(cmd, adminOption)
	timeout := cmd.Flags().Duration("timeout", config.Default().DrainTimeout+upgradeTime, "`TIME` to wait until the new process serves")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *timeout <= 0 || *timeout > maximumDrain {
			return usage("--timeout: %v is not in 1ns…%v", *timeout, maximumDrain)
		}
		p, err := a.runningTarget(cmd.Context(), options)
		if err != nil {
			return err
		}
		ctx, done := context.WithTimeout(cmd.Context(), *timeout)
		defer done()
		var started upgradeAnswer
		err = askAdmin(ctx, p.socket, adminCall{method: http.MethodPost, route: "/v1/upgrade", timeout: *timeout, read: func(_ net.Conn, body *json.Decoder) error {
			return body.Decode(&started)
		}})
		if err == nil {
			err = awaitUpgrade(ctx, p.socket, started.PID)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
			err = &exit{exitTryAgain, fmt.Errorf("no process has taken over within %v", *timeout)}
		}
		if err != nil {
			return fmt.Errorf("pid %d: %w", p.PID, err)
		}
		if _, err := fmt.Fprintf(a.stdout, "process %d has taken over from process %d\n", started.PID, p.PID); err != nil {
			return fmt.Errorf("print: %w", err)
		}
		return nil
	}
	return cmd
}

// awaitUpgrade waits until a process serves the status socket of the one before
// or, if that had the usual name, its own.
func awaitUpgrade(ctx context.Context, socket string, pid int) error {
	usual := filepath.Join(filepath.Dir(socket), strconv.Itoa(pid)+".sock")
	for {
		for _, path := range []string{socket, usual} {
			if s, err := askStatus(ctx, path); err == nil && s.PID == pid {
				return nil
			}
		}
		if unix.Kill(pid, 0) == unix.ESRCH {
			return fmt.Errorf("process %d ended before it had taken over: see the log", pid)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
