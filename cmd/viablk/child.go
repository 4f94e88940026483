package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/viablk/viablk/config"
)

// childTimeout is how long a command has to end after SIGTERM.
const childTimeout = 5 * time.Second

// runChild runs a command with sh -c until it ends, or until the service does;
// then the command gets SIGTERM. The result is silent and has the exit code of
// the command, 128 plus the signal that killed it, or is the failure of the
// service.
func (a *app) runChild(svc *service, command string, u config.URI) error {
	cmd := exec.Command("sh", "-c", command)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.stdin, a.stdout, a.stderr
	cmd.Env = append(os.Environ(), "uri="+u.String(), "socket="+u.Socket, "export="+u.Export)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run the command: %w", err)
	}
	ended := make(chan struct{})
	var failure error
	go func() {
		failure = cmd.Wait()
		close(ended)
	}()
	served := svc.wait(ended)
	if err := endChild(cmd, ended); err != nil {
		return errors.Join(served, err)
	}
	if served != nil {
		return served
	}
	return childExit(failure)
}

// endChild ends the command if it still runs.
func endChild(cmd *exec.Cmd, ended <-chan struct{}) error {
	select {
	case <-ended:
		return nil
	default:
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("end the command: %w", err)
		}
		select {
		case <-ended:
			return nil
		case <-time.After(childTimeout):
		}
	}
	return fmt.Errorf("the command, process %d, does not end", cmd.Process.Pid)
}

// childExit turns the end of a command into ours.
func childExit(failure error) error {
	var ended *exec.ExitError
	if !errors.As(failure, &ended) {
		return failure
	}
	if status, ok := ended.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return &exit{code: 128 + int(status.Signal())}
	}
	return &exit{code: ended.ExitCode()}
}
