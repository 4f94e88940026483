// Command viablk exports disks and attaches remote ones over user-level RDMA.
//
// Each command is one file; this one is what they share: the root command, the
// process's settings, and the way from an error to a line and an exit code. The
// packages below never see flags, the environment or the configuration file:
// a command translates [config.Config] into their options.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/cmd/viablk/internal/events"
	"github.com/viablk/viablk/config"
)

// minimumProcs is the least number of Ps that a process runs with. The loops of
// the data path are locked to their threads and sleep in epoll_wait(2). A
// thread that sleeps in a system call keeps its P until the runtime's monitor
// takes it back after 20 µs to 10 ms, and until then a machine with two
// processors has one P less for the loop that was just woken. Spare Ps cost
// some kilobytes and no time.
const minimumProcs = 16

// commandGC is the growth of the heap, in percent, after which memory is
// collected, so that a command that ends soon does not begin with collections:
// of less than 16 MB there is none. A service sets its own.
const commandGC = 400

func main() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(runtime.NumCPU(), minimumProcs))
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(commandGC)
	}
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// moreOutputs is the annotation of a command that names the formats that it has
// beside table and json.
const moreOutputs = "outputs"

// outputs lists the formats that a command has.
func outputs(cmd *cobra.Command) []string {
	return append([]string{"table", "json"}, strings.Fields(cmd.Annotations[moreOutputs])...)
}

// app is one run of the program.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer

	args    []string
	output  string // table, json, or what moreOutputs says
	entered bool   // the command line was understood
	warned  bool   // of variables

	monitorListener net.Listener // that the process was started with; may be nil
	events          *events.Ring // the last lines of the log of a serving command
}

// run executes the command line and returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, args: args, output: "table"}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteC()
	if err == nil {
		return exitOK
	}
	if !a.entered {
		err = usage("%v; see %s --help", err, cmd.CommandPath())
	}
	return a.report(err)
}

// root builds the command tree.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "viablk",
		Short: "Export disks and attach remote ones over user-level RDMA",
		Long: `viablk exports disks and attaches remote ones over user-level RDMA.

A target exports disks; attach makes a remote one a local NBD device.
"viablk up" does both in one process, to try it out.

Settings come from flags, then VIABLK_… environment variables, then the file
named by --config or VIABLK_CONFIG, then defaults; "viablk config show" prints
where each value comes from.

` + exitHelp,
		SilenceErrors:     true,
		SilenceUsage:      true,
		DisableAutoGenTag: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if formats := outputs(cmd); !slices.Contains(formats, a.output) {
				return fmt.Errorf("--output is %s, not %q", strings.Join(formats, " or "), a.output)
			}
			a.entered = true
			return nil
		},
	}
	root.Version = version().Version
	root.SetVersionTemplate(versionLine())
	root.SetFlagErrorFunc(unknownFlag)
	root.SetHelpCommand(a.helpCommand())
	root.PersistentFlags().StringVarP(&a.output, "output", "o", "table", "print as `FORMAT`: table or json")
	root.AddCommand(
		a.targetCommand(), a.attachCommand(), a.detachCommand(), a.upCommand(),
		a.copyCommand(), a.verifyCommand(),
		a.listCommand(), a.infoCommand(), a.statusCommand(), a.topCommand(), a.eventsCommand(), a.sessionCommand(), a.devicesCommand(), a.identityCommand(), a.snapshotCommand(), a.exportCommand(), a.scrubCommand(), a.reloadCommand(), a.logLevelCommand(), a.drainCommand(), a.upgradeCommand(), a.healthCommand(), a.pathCommand(),
		a.configCommand(), a.pkiCommand(), a.benchCommand(), a.versionCommand(),
		a.manualCommand(),
	)
	a.describeOutputs(root)
	checkArguments(root)
	complete(root)
	return root
}

// describeOutputs gives each command with more formats than others a flag that
// names them.
func (a *app) describeOutputs(cmd *cobra.Command) {
	if formats := outputs(cmd); cmd.Annotations[moreOutputs] != "" {
		last := len(formats) - 1
		cmd.Flags().StringVarP(&a.output, "output", "o", "table", "print as `FORMAT`: "+strings.Join(formats[:last], ", ")+" or "+formats[last])
	}
	for _, child := range cmd.Commands() {
		a.describeOutputs(child)
	}
}

// load returns the configuration of a serving command.
func (a *app) load(file string, flags config.Flags) (config.Effective, error) {
	source := ""
	if file == "" {
		file, source = os.Getenv("VIABLK_CONFIG"), "VIABLK_CONFIG: "
	}
	if !a.warned {
		a.warned = true
		for _, warning := range misspeltVariables(os.Environ()) {
			fmt.Fprintf(a.stderr, "viablk: warning: %s\n", warning)
		}
	}
	e, err := config.Load(file, flags, checkBackend)
	if errors.Is(err, fs.ErrNotExist) {
		err = &exit{exitConfiguration, fmt.Errorf("%s%w", source, err)}
	}
	return e, err
}
