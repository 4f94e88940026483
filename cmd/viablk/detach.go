package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/nbdkernel"
)

// detachTimeout is how long the process that serves a disk may take to end.
const detachTimeout = 30 * time.Second

func (a *app) detachCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "detach DEVICE|SOCKET",
		Short: "Detach a disk",
		Long: `Take away the kernel's block device that "viablk attach --device" made, /dev/nbdN, or
end the "viablk attach" that serves NBD at a unix socket or has it as its status
socket. The kernel writes its cache of the device first. The exit code is 75 if the
device is in use, 2 if it is not attached.`,
		Example: `  viablk detach /dev/nbd0
  viablk detach /run/disk0.sock`,
	}
	force := cmd.Flags().Bool("force", false, "also if the device is in use: what uses it gets I/O errors")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), detachTimeout)
		defer cancel()
		if isDevicePath(args[0]) {
			n, err := nbdkernel.ParseNode(args[0])
			if err != nil {
				return usage("%w", err)
			}
			return detachDevice(ctx, n, *force)
		}
		p, err := findAttach(ctx, args[0])
		if err != nil {
			return err
		}
		if p.Device != nil {
			n, err := nbdkernel.ParseNode(p.Device.Path)
			if err != nil {
				return err
			}
			return detachDevice(ctx, n, *force)
		}
		if err := endProcess(ctx, p.PID); err != nil {
			return err
		}
		for _, socket := range p.sockets() {
			forgetLife(socket)
		}
		return nil
	}
	return cmd
}

// isDevicePath reports whether an argument is meant to be a device: /dev/X or
// nbdN.
func isDevicePath(s string) bool {
	number, ok := strings.CutPrefix(s, "nbd")
	return strings.HasPrefix(s, "/dev/") || ok && number != "" && strings.Trim(number, "0123456789") == ""
}

// detachDevice takes a device away.
func detachDevice(ctx context.Context, n nbdkernel.Node, force bool) error {
	driver, err := nbdkernel.OpenDriver()
	if err != nil {
		return err
	}
	defer driver.Close()
	state, err := n.State()
	switch {
	case err != nil:
		return err
	case !state.Attached:
		return fmt.Errorf("%s: %w", n, nbdkernel.ErrNotAttached)
	case !attachedByViablk(state.Backend) && !force:
		return fmt.Errorf("%s was attached by another program: detach it with that, or with --force", n)
	}
	err = driver.Detach(ctx, n, force)
	if errors.Is(err, context.DeadlineExceeded) {
		return &exit{exitTryAgain, err}
	}
	return err
}

// attachedByViablk reports whether the backend of a device is the URI of a
// disk, which attach tells the kernel.
func attachedByViablk(backend string) bool {
	_, err := config.ParseURI(backend)
	return err == nil
}

// findAttach returns the running "viablk attach" that serves NBD at a unix
// socket, or has it as its status socket.
func findAttach(ctx context.Context, socket string) (processStatus, error) {
	path, err := filepath.Abs(socket)
	if err != nil {
		return processStatus{}, err
	}
	if _, err := os.Stat(path); err != nil {
		return processStatus{}, unreachable(fmt.Errorf("no process serves at %s: %w", path, errors.Unwrap(err)))
	}
	all, err := findStatus(ctx, config.Default())
	if err != nil && exitCode(err) != exitTryAgain {
		return processStatus{}, err
	}
	i := slices.IndexFunc(all, func(p processStatus) bool { return p.servesAt(path) })
	var p processStatus
	if i >= 0 {
		p = all[i]
	} else if p, err = askStatus(ctx, path); err != nil {
		return p, &exit{exitTryAgain, fmt.Errorf("no viablk process serves at %q, or has it as its status socket", socket)}
	}
	if p.Command != "attach" {
		return p, usage("%q is served by viablk %s, process %d, which attaches nothing: end it with SIGTERM", socket, p.Command, p.PID)
	}
	return p, nil
}

// servesAt reports whether a process serves NBD at the unix socket of a path.
func (p *processStatus) servesAt(path string) bool { return slices.Contains(p.sockets(), path) }

// sockets returns the unix sockets where a process serves NBD.
func (p *processStatus) sockets() (list []string) {
	for _, e := range p.Exports {
		for _, text := range e.URIs {
			if u, err := config.ParseURI(text); err == nil && u.Socket != "" {
				list = append(list, u.Socket)
			}
		}
	}
	return list
}

// endProcess ends a process in peace, and waits for it.
func endProcess(ctx context.Context, pid int) error {
	if pid <= 0 {
		return errors.New("the process that serves there is not known, or in another namespace")
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("end process %d: %w", pid, err)
	}
	for signal := syscall.Signal(syscall.SIGTERM); ; signal = 0 {
		err := process.Signal(signal)
		if errors.Is(err, os.ErrProcessDone) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("end process %d: %w", pid, err)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return &exit{exitTryAgain, fmt.Errorf("process %d has not ended yet: its clients have requests in flight", pid)}
		}
	}
}
