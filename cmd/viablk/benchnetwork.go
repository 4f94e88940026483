package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/netns"
)

// network reports whether the ends have a network between them.
func (o *benchOptions) network(args []string) (bool, error) {
	switch {
	case o.veth != 0:
		return true, nil
	case o.listen != "":
		return false, nil // the measuring end chooses the modes
	case len(args) > 0:
		u, err := parseBenchURI(args[0])
		return u.Host != "", err
	}
	u, err := privateURI(o.provider, os.TempDir(), netip.Addr{})
	return u.Host != "", err
}

// networkOf returns the address of a URI's host, and none for a socket.
func networkOf(ctx context.Context, u config.URI) (netip.Addr, error) {
	if u.Host == "" {
		return netip.Addr{}, nil
	}
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Host)
	if err != nil {
		return netip.Addr{}, &exit{exitTryAgain, fmt.Errorf("%s: %w", u, err)}
	}
	return all[0].Unmap(), nil
}

// farFile is the number of the other end's namespace in the measuring process.
const farFile = 3

// benchVeth makes a network, and runs this command again at one end of it.
func (a *app) benchVeth(ctx context.Context, o *benchOptions) (err error) {
	pair, err := netns.NewPair(o.veth)
	if errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("--veth: %w: run it as root", err)
	}
	if err != nil {
		return fmt.Errorf("--veth: %w", err)
	}
	defer func() { err = errors.Join(err, pair.Close()) }()
	path, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.Command(path)
	cmd.Args = append(append([]string{os.Args[0]}, a.args...), "--far", strconv.Itoa(farFile))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.stdin, a.stdout, a.stderr
	cmd.ExtraFiles = []*os.File{pair.Far.File()}
	if err := pair.Near.Start(cmd); err != nil {
		return fmt.Errorf("start the measuring end: %w", err)
	}
	ended := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		select {
		case <-ended:
		default:
			_ = cmd.Process.Signal(syscall.SIGTERM) // it may have had the same signal
		}
	})()
	failure := cmd.Wait()
	close(ended)
	return childExit(failure)
}
