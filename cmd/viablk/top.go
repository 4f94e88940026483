package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/viablk/viablk/cmd/viablk/internal/activity"
	"github.com/viablk/viablk/cmd/viablk/internal/top"
	"github.com/viablk/viablk/config"
)

func (a *app) topCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch what happens at exports, and where the time of requests goes",
		Long: `Watch the exports of the running viablk processes of this user, or of the one behind
--admin, twice a second: a line for each export and each way in, those whose requests
are not answered first, then by the 99th percentile of how long requests took. TIME-IN
is where most of that time goes, with its share:

  backend   the disk
  target    the target of an attached disk, and the way to it
  network   packets to its peer are lost, at least 1 %, or take most of the time
  limit     the limits of the export
  queue     the server, where requests wait for memory, a place or a range
  transfer  the rest of the server, and between it and the client
  stuck     in flight, and none was answered for as long
  waiting   the target is away; failed: requests fail

WAIT% is the part of requests that waited in the server, RETRANS packets to the peers of
the export that were retransmitted in a second, MB 10^6 bytes. On narrow terminals less
important columns are absent. STATE is paths 1/2 if one of two paths to the target of an
attached disk is not up. Keys are listed at the bottom; Enter shows the operations, paths
and clients of an export.

When a process ends the view goes on, and shows the next one. Without a terminal a line
for each export and sample is printed, with -o jsonl a document. With --once or -o json
there is one table or document, of two samples.`,
		Annotations: map[string]string{moreOutputs: "jsonl"},
	}
	options := addOptions(cmd, adminOption)
	once := cmd.Flags().Bool("once", false, "print one table of two samples")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		e, err := a.load(options.file, options.given())
		if err != nil {
			return err
		}
		if e.Config.Admin == adminNone {
			return usage("the admin setting is %q: name the socket with --admin PATH", adminNone)
		}
		source := topSource(e.Config)
		switch out, terminal := a.stdout.(*os.File); {
		case *once || a.output == "json":
			return a.topOnce(cmd.Context(), source)
		case a.output == "table" && terminal && term.IsTerminal(int(out.Fd())):
			return top.Run(cmd.Context(), source, tea.WithOutput(out))
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		return a.topLines(ctx, source)
	}
	return cmd
}

// topSource asks the processes that there are.
func topSource(c config.Config) top.Source {
	return func(ctx context.Context) (activity.State, error) {
		processes, err := findStatus(ctx, c)
		if err != nil {
			return activity.State{}, err
		}
		return activityOf(time.Now(), processes), nil
	}
}

// topOnce prints what happens between two samples.
func (a *app) topOnce(ctx context.Context, source top.Source) error {
	var tracker activity.Tracker
	at := time.Now()
	s, err := source(ctx)
	if err != nil {
		return err
	}
	tracker.Add(s)
	if s, err = source.Next(ctx, at.Add(top.Interval)); err != nil {
		return err
	}
	rows := tracker.Add(s)
	top.Sort(rows.Exports)
	switch a.output {
	case "json":
		return a.printJSON(top.NewDocument(&rows, rows.Time, nil))
	case "jsonl":
		return a.printLine(top.NewDocument(&rows, rows.Time, nil))
	}
	return a.printTable(top.Table(rows.Exports))
}

// topLines prints lines for each sample until ctx ends, the first from the
// second one on. A process that is not there any more is waited for, but one
// has to be there at the beginning.
func (a *app) topLines(ctx context.Context, source top.Source) error {
	var tracker activity.Tracker
	var set columns
	for n, at := 0, time.Now(); ; n++ {
		s, err := source.Next(ctx, at)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && n == 0:
			return err
		}
		now := time.Now()
		var rows activity.Rows
		if err == nil {
			rows = tracker.Add(s)
			top.Sort(rows.Exports)
		}
		switch {
		case n == 0:
		case a.output == "jsonl":
			err = a.printLine(top.NewDocument(&rows, now, err))
		case err != nil:
			_, err = fmt.Fprintf(a.stderr, "%s %v\n", now.Format(time.TimeOnly), err)
		default:
			set, err = a.printTimed(now, top.Table(rows.Exports), set)
		}
		if n > 0 && err != nil {
			if errors.Is(err, syscall.EPIPE) {
				return nil // the reader has seen enough
			}
			return fmt.Errorf("print: %w", err)
		}
		if at = at.Add(top.Interval); at.Before(now) {
			at = now
		}
	}
}

// printTimed prints a table with the time before each line, in columns as wide
// as those before at least. Only the first one has its heading printed.
func (a *app) printTimed(at time.Time, rows [][]string, before columns) (columns, error) {
	for i := range rows {
		first := at.Format(time.TimeOnly)
		if i == 0 {
			first = "TIME"
		}
		rows[i] = append([]string{first}, rows[i]...)
	}
	set := newColumns(rows)
	if len(before) == len(set) {
		for i := range set {
			set[i].width, set[i].right = max(set[i].width, before[i].width), set[i].right || before[i].right
		}
		rows = rows[1:]
	}
	var b strings.Builder
	for _, row := range rows {
		b.WriteString(set.line(row))
	}
	_, err := a.stdout.Write([]byte(b.String()))
	return set, err
}

// printLine prints a document on one line.
func (a *app) printLine(document any) error {
	e := json.NewEncoder(a.stdout)
	e.SetEscapeHTML(false)
	return e.Encode(document)
}
