package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/viablk/viablk/internal/nbdkernel"
)

// plainClient is the kernel's client of an NBD server: what the kernel sends
// goes there unchanged, and so do the answers. A connection that has ended is
// replaced.
type plainClient struct {
	socket, export, device string
	timeout                time.Duration
}

func plainClientFlags(flags *flag.FlagSet) func() error {
	c := &plainClient{}
	flags.StringVar(&c.socket, "socket", "", "where the server listens, a UNIX `SOCKET`")
	flags.StringVar(&c.export, "export", "", "the disk")
	flags.StringVar(&c.device, "device", "/dev/nbd0", "the `DEVICE` that it becomes")
	flags.DurationVar(&c.timeout, "timeout", 2*time.Second, "after which the kernel retransmits")
	return c.run
}

// run serves the device until SIGTERM.
func (c *plainClient) run() (err error) {
	terminated, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	n, err := nbdkernel.ParseNode(c.device)
	if err != nil {
		return err
	}
	probe, size, transmission, err := dialExport(c.socket, c.export)
	if err != nil {
		return err
	}
	if err := probe.Close(); err != nil {
		return err
	}
	kernel, err := nbdkernel.OpenDriver()
	if err != nil {
		return err
	}
	defer kernel.Close()
	reserved, err := nbdkernel.Reserve(int(n), "plain", false)
	if err != nil {
		return err
	}
	a, err := nbdkernel.Attach(context.Background(), nbdkernel.Config{
		Settings: nbdkernel.Settings{
			Size: size, BlockSize: 512, Flags: transmission, IOTimeout: c.timeout, DeadTimeout: time.Hour,
		},
		Driver: kernel, Device: reserved, Connections: 1, Serve: c.relay,
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- a.Serve(context.Background()) }()
	fmt.Println(a.Node())
	select {
	case err := <-served:
		return errors.Join(errors.New("the device is gone"), err)
	case <-terminated.Done():
	}
	return errors.Join(a.End(context.Background()), <-served)
}

// relay moves bytes between the kernel and the server until one of them ends
// the connection.
func (c *plainClient) relay(ctx context.Context, kernel net.Conn, ready func()) error {
	defer kernel.Close()
	server, _, _, err := dialExport(c.socket, c.export)
	if err != nil {
		return err
	}
	defer server.Close()
	ended := make(chan error, 2)
	move := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		if err == nil {
			err = io.EOF
		}
		ended <- err
	}
	go move(server, kernel)
	go move(kernel, server)
	ready()
	select {
	case err = <-ended:
	case <-ctx.Done():
		err = context.Cause(ctx)
		defer func() { <-ended }()
	}
	_, _ = server.Close(), kernel.Close()
	<-ended
	return err
}
