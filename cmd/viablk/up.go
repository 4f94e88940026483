package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/config"
)

func (a *app) upCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run a target and an initiator in one process, to try it out",
		Long: `Run a target and an initiator in one process, joined by VIA over shared memory,
and serve the remote disk over NBD until SIGTERM. Without --export the disk is
1 GiB of memory; without --nbd the NBD socket is in a private folder; without
--log-level the log begins at warn.

With --run the process serves as long as a command runs, which sh -c gets with
uri, socket and export in its environment, and exits with its exit code.`,
		Example: `  viablk up
  viablk up --export disk0=file:./disk0.img --nbd nbd://localhost/disk0
  viablk up --run 'nbdinfo "$uri" && nbdcopy "$uri" null:'`,
	}
	options := addOptions(cmd, exportOptions, attachOptions, commonOptions)
	stdio := addStdio(cmd)
	run := cmd.Flags().String("run", "", "serve as long as `COMMAND` runs")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		flags := options.given()
		if cmd.Flags().Changed("run") && *run == "" {
			return usage("--run needs a command")
		}
		e, err := a.load(options.file, flags)
		if err != nil {
			return err
		}
		if len(e.Config.Target.Exports) == 0 {
			e.Config.Target.Exports = []config.Export{{Name: "disk0", Backend: "memory:1GiB"}}
		}
		if e.Origin("log.level") == config.FromDefault {
			e.Config.Log.Level = "warn" // both ends are this process
		}
		if e.Origin("target.keepalive") == config.FromDefault {
			e.Config.Target.KeepAlive = localKeepAlive
		}
		in, err := a.inherit(*stdio)
		if err != nil {
			return err
		}
		return a.up(cmd.Context(), e, in, *run)
	}
	return cmd
}

// up serves the disks through the whole chain, until it is told to end or the
// command has ended. It takes the entrance that it was started with, which may
// be nil.
func (a *app) up(ctx context.Context, e config.Effective, in *nbdListeners, command string) (err error) {
	defer in.close()
	c := e.Config
	if in != nil && command != "" {
		return usage("--run has the only client, and the process was started for another: leave it out")
	}
	if err := checkOpenFiles(); err != nil {
		return err
	}
	log, level := a.serviceLog(c.Log)
	svc := a.newService(c, log, level)
	defer svc.release()
	folder, err := os.MkdirTemp("", "viablk-")
	if err != nil {
		return fmt.Errorf("make a private folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	svc.folder = folder
	local, err := upLocal(c, in, folder)
	if err != nil {
		return err
	}

	disks, err := openDisks(e, nil, 0, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeDisks(disks)) }()
	between := config.URI{Provider: "shm", Socket: filepath.Join(folder, "via.sock")}
	// The lists of clients are for those of this process: see config.Attach.Over.
	private := slices.Clone(disks)
	for i := range private {
		private[i].Clients, private[i].ClientsReadOnly = nil, nil
	}
	again := &certificates{log: log}
	servers, err := openTarget(c, []config.URI{between}, private, nil, again, log, newTracer(c.Log, a.stderr))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.close()) }()
	defer svc.release() // before the device closes
	svc.start(servers.parts()...)

	remotes, err := attachDisks(ctx, c, between, local, disks, log, newTracer(c.Log, a.stderr))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAttached(remotes)) }()
	g := &gateway{in: in, monitor: a.monitorListener, disks: remotes, targets: servers, behind: disks, again: again}
	if err := g.start(ctx, c, svc, "up", local, log); err != nil {
		return err
	}
	if command != "" {
		return a.runChild(svc, command, g.first())
	}
	if err := a.printReady(g.ready, g.in); err != nil {
		return err
	}
	if a.output == "table" && in == nil {
		fmt.Fprintf(a.stdout, tryLines, connectable(g.first().String()))
	}
	return svc.wait(g.in.left)
}

// upFiles is how many open files both ends of one disk may need, with a client.
const upFiles = 96

// checkOpenFiles returns an error if the limit of open files is below upFiles:
// one end would only see that the other one, which has none left, does not
// answer.
func checkOpenFiles() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur >= upFiles {
		return err
	}
	return fmt.Errorf("both ends of a disk need %d files: %w", upFiles, unix.EMFILE)
}

// localKeepAlive is the interval of keepalives between the ends of one process.
// A process that gets no processor for a second is not to take itself for dead.
const localKeepAlive = time.Minute

// tryLines shows what can be done with the disk.
const tryLines = `
try:
  nbdinfo '%[1]s'
  nbdcopy --progress '%[1]s' null:
  fio --name=try --ioengine=nbd --uri='%[1]s' --rw=randread --bs=4k --iodepth=32 --time_based --runtime=5

Ctrl-C stops it.
`

// attachDisks attaches every disk of the target in this process.
func attachDisks(ctx context.Context, c config.Config, between config.URI, local []config.URI, disks []disk, log *slog.Logger, trace *tracer) ([]attached, error) {
	var remotes []attached
	for _, d := range disks {
		between.Export = d.Name
		options := c.Attach
		options.ReadOnly = options.ReadOnly || d.isReadOnly()
		options.CtrlLossTimeout = 0 // the target is not away while there is this process
		remote, err := dialVIA(ctx, between, options, nil, log, trace)
		if err != nil {
			return nil, errors.Join(err, closeAttached(remotes))
		}
		x := c.Attach.Over(d.Export)
		x.ReadOnly = options.ReadOnly
		if len(local) > 0 && local[0].Export != "" {
			x.Name = local[0].Export
		}
		served, err := serveRemote(x, remote)
		if err != nil {
			return nil, errors.Join(err, remote.close(), closeAttached(remotes))
		}
		remotes = append(remotes, served)
	}
	return remotes, nil
}

// upLocal returns the URI of the NBD server, unless it was started with its
// entrance.
func upLocal(c config.Config, in *nbdListeners, folder string) ([]config.URI, error) {
	local, err := attachLocal(c.Attach)
	if err == nil {
		err = in.refuseURIs("--nbd or attach.nbd", local)
	}
	switch {
	case err != nil:
		return nil, err
	case len(local) == 0 && in == nil:
		return []config.URI{{Socket: filepath.Join(folder, "nbd.sock")}}, nil
	case len(local) > 0 && local[0].Export != "" && len(c.Target.Exports) > 1:
		return nil, usage("--nbd names one export and there are %d: name none, each keeps its own", len(c.Target.Exports))
	}
	return local, nil
}
