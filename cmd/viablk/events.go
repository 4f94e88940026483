package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/cmd/viablk/internal/events"
)

// eventReport is what "viablk events -o json" prints.
type eventReport struct {
	Schema string            `json:"schema"` // viablk.events/v1
	PID    int               `json:"pid"`
	Lost   uint64            `json:"lost"`   // events that came too fast
	Events []json.RawMessage `json:"events"` // as --log-format json has them
}

// eventRecord is a line of the log, as JSON, or how many are missing.
type eventRecord struct {
	Time  time.Time `json:"time"`
	Level string    `json:"level"`
	Text  string    `json:"msg"`
	Event string    `json:"event"`
	Lost  uint64    `json:"lost"`
}

// eventTime is how long a process may take to send the events that it has.
const eventTime = 30 * time.Second

func (a *app) eventsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show the last events of a running process, or follow them",
		Long: `Show the last 1,000 lines of the log of the running viablk process of this user, or
of the one behind --admin: the time, level and event of each, its text, and what it says
besides. Durations are in nanoseconds. With -o jsonl each event is the document of
--log-format json. With --follow, events that come are shown until the process ends; if
they come too fast a line says how many are missing.`,
		Example: `  viablk events --admin /run/viablk-target/status.sock --follow
  viablk events -o jsonl | jq 'select(.event == "session_ended")'`,
		Annotations: map[string]string{moreOutputs: "jsonl"},
	}
	options := addOptions(cmd, adminOption)
	follow := cmd.Flags().Bool("follow", false, "go on with events that come")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *follow && a.output == "json" {
			return usage("a document of events that come has no end: give -o jsonl")
		}
		processes, err := a.runningProcesses(cmd.Context(), options)
		if err != nil {
			return err
		}
		if len(processes) > 1 {
			return usage("several processes run: name the socket of one with --admin PATH")
		}
		return a.printEvents(cmd.Context(), &processes[0], *follow)
	}
	return cmd
}

// printEvents prints the events of a process.
func (a *app) printEvents(ctx context.Context, p *processStatus, follow bool) error {
	if !follow {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, eventTime)
		defer cancel()
	}
	c, answer, err := openAdmin(ctx, p.socket, adminCall{method: http.MethodGet, route: "/v1/events?follow=" + strconv.FormatBool(follow)})
	if err != nil {
		return fmt.Errorf("ask %q: %w", p.socket, err)
	}
	defer c.Close()
	defer answer.Close()
	report := eventReport{Schema: "viablk.events/v1", PID: p.PID, Events: []json.RawMessage{}}
	err = eachEvent(answer, func(document []byte, x *eventRecord) error {
		var err error
		switch {
		case a.output == "json" && x.Event == "" && x.Lost > 0:
			report.Lost += x.Lost
		case a.output == "json":
			report.Events = append(report.Events, bytes.Clone(document))
		case a.output == "jsonl":
			_, err = fmt.Fprintf(a.stdout, "%s\n", document)
		default:
			_, err = fmt.Fprintln(a.stdout, x.line(document))
		}
		if err != nil {
			return fmt.Errorf("print: %w", err)
		}
		return nil
	})
	switch {
	case errors.Is(err, syscall.EPIPE), follow && errors.Is(err, io.ErrUnexpectedEOF):
		return nil // the reader has seen enough, or the process was killed
	case err != nil:
		return fmt.Errorf("events of pid %d: %w", p.PID, err)
	case a.output == "json":
		return a.printJSON(report)
	}
	return nil
}

// eachEvent calls f with each event of a stream, until it ends or f fails.
func eachEvent(r io.Reader, f func(document []byte, x *eventRecord) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 2*events.MaximumRecord)
	for lines.Scan() {
		document, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue // an ID or a name, which the record has too
		}
		var x eventRecord
		if err := json.Unmarshal(document, &x); err != nil {
			return err
		}
		if err := f(document, &x); err != nil {
			return err
		}
	}
	return lines.Err()
}

// line formats an event for people.
func (x *eventRecord) line(document []byte) string {
	if x.Event == "" && x.Lost > 0 {
		return fmt.Sprintf("%d events are missing: they came too fast", x.Lost)
	}
	line := fmt.Sprintf("%s  %-5s  %-20s  %s", x.Time.Format("2006-01-02 15:04:05.000"), visible(x.Level), visible(x.Event), visible(x.Text))
	var more map[string]json.RawMessage
	if json.Unmarshal(document, &more) != nil {
		return line
	}
	for _, known := range []string{"time", "level", "msg", "event"} {
		delete(more, known)
	}
	for _, key := range slices.Sorted(maps.Keys(more)) {
		value := string(more[key])
		var text string
		if value[0] == '"' && json.Unmarshal(more[key], &text) == nil {
			if value = text; text == "" || strings.ContainsFunc(text, func(c rune) bool { return unicode.IsSpace(c) || !unicode.IsPrint(c) || c == '"' }) {
				value = strconv.Quote(text)
			}
		}
		line += " " + visible(key) + "=" + visible(value)
	}
	return line
}
