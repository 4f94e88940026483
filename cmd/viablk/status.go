package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/config"
)

// statusReport is what "viablk status" prints.
type statusReport struct {
	Schema    string          `json:"schema"` // viablk.status/v1
	Processes []processStatus `json:"processes"`
}

func (a *app) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the counters of the running viablk processes",
		Long: `Show the counters of the running viablk processes of this user, or of the one
behind --admin. The exit code is 75 if there is none.`,
		Args: cobra.NoArgs,
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
		if a.output == "json" {
			return a.printJSON(statusReport{Schema: "viablk.status/v1", Processes: processes})
		}
		return a.printTable(statusRows(processes))
	}
	return cmd
}

// findStatus asks one process, or all. A socket that nobody serves belongs to a
// process that is gone.
func findStatus(ctx context.Context, c config.Config) ([]processStatus, error) {
	if c.Admin == adminNone {
		return nil, usage("the admin setting is %q: name the socket with --admin PATH", adminNone)
	}
	if c.Admin != "" {
		status, err := askStatus(ctx, c.Admin)
		if err != nil {
			return nil, unreachable(err)
		}
		return []processStatus{status}, nil
	}
	paths, err := adminSockets()
	if err != nil {
		return nil, err
	}
	var processes []processStatus
	for _, path := range paths {
		status, err := askStatus(ctx, path)
		if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT) {
			continue
		}
		if err != nil {
			return nil, unreachable(err)
		}
		processes = append(processes, status)
	}
	if len(processes) == 0 {
		return nil, &exit{exitTryAgain, fmt.Errorf("no viablk process has a status socket in %s; name another with --admin PATH", runtimeFolder())}
	}
	return processes, nil
}

// statusRows returns the table: one row for each export of each process.
func statusRows(processes []processStatus) [][]string {
	rows := [][]string{{"PID", "COMMAND", "EXPORT", "SIZE", "CONNECTIONS", "READS", "WRITES", "READ", "WRITTEN", "ERRORS", "URI"}}
	for _, p := range processes {
		for _, e := range p.Exports {
			row := []string{
				strconv.Itoa(p.PID), p.Command, e.Name, config.Size(e.Size).String(),
				"0", "0", "0", "0", "0", "0", strings.Join(e.URIs, " "),
			}
			if p.NBD != nil {
				for _, x := range p.NBD.Exports {
					if x.Name == e.Name {
						for i, n := range []uint64{uint64(x.Connections), x.Reads, x.Writes, x.BytesRead, x.BytesWritten, x.Errors} {
							row[4+i] = strconv.FormatUint(n, 10)
						}
					}
				}
			}
			rows = append(rows, row)
		}
	}
	return rows
}
