package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/cmd/viablk/internal/show"
)

func (a *app) sessionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "session",
		Short: "List or end the clients of running processes",
	}
	cmd.AddCommand(a.sessionListCommand(), a.sessionEndCommand())
	return cmd
}

func (a *app) sessionListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the clients of running processes",
		Long: `List the clients of the running viablk processes of this user, or of the one behind
--admin: NBD connections that have an export, and sessions of initiators. IDLE is the
time since the last request. With -o wide there are whole IDs, addresses and exact
counters.`,
		Annotations: map[string]string{moreOutputs: "wide"},
	}
	options := addOptions(cmd, adminOption)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		processes, err := a.runningProcesses(cmd.Context(), options)
		if err != nil {
			return err
		}
		if a.output == "json" {
			reports := []sessionReport{}
			for _, p := range processes {
				reports = append(reports, sessionReport{Schema: "viablk.sessions/v1", PID: p.PID, Sessions: p.Sessions})
			}
			return a.printJSON(reports)
		}
		return a.printTable(sessionRows(processes, a.output == "wide", time.Now()))
	}
	return cmd
}

// shortIDLength is how much of an ID the narrow table has.
const shortIDLength = 8

// sessionRows returns the table of the clients.
func sessionRows(processes []processStatus, wide bool, now time.Time) [][]string {
	rows := [][]string{{"ID", "PID", "FACE", "CLIENT", "EXPORTS", "OPENED", "IDLE", "READS", "WRITES", "READ-BYTES", "WRITE-BYTES"}}
	if wide {
		rows = [][]string{{
			"ID", "PID", "FACE", "PEER", "IDENTITY", "EXPORTS", "CONNECTIONS", "OPENED", "IDLE",
			"READS", "WRITES", "READ-BYTES", "WRITTEN-BYTES", "ERRORS",
		}}
	}
	since := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return show.Age(max(0, now.Sub(t)))
	}
	for i := range processes {
		pid := strconv.Itoa(processes[i].PID)
		for _, s := range processes[i].Sessions {
			exports := strings.Join(s.Exports, " ")
			if wide {
				rows = append(rows, slices.Concat(
					[]string{s.ID, pid, s.Face, s.Peer, s.Identity, exports, strconv.Itoa(s.Connections), since(s.Opened), since(s.LastActive)},
					numbers(s.Reads, s.Writes), volumes(s.BytesRead, s.BytesWritten), numbers(s.Errors)))
				continue
			}
			client := s.Identity
			if client == "anonymous" {
				client = s.Peer
			}
			rows = append(rows, slices.Concat(
				[]string{s.ID[:min(len(s.ID), shortIDLength)], pid, s.Face, client, exports, since(s.Opened), since(s.LastActive)},
				[]string{show.Count(s.Reads), show.Count(s.Writes)}, volumes(s.BytesRead, s.BytesWritten)))
		}
	}
	return rows
}

func (a *app) sessionEndCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "end ID…",
		Short: "End clients of running processes",
		Long: `End clients that "viablk session ls" lists, by their IDs or the start of them. To end
one that has ended is no error.

The session of an initiator ends with its requests in flight. Its device is told so,
and refused from then on: requests to it wait for --ctrl-loss-tmo and fail, until it is
attached again. An NBD client gets the answers to the requests that have arrived, then
the end of its connection, and may come back. To keep a client out, change the clients
of the export. A device of the kernel is detached in its stead.`,
		Example: `  viablk session ls
  viablk session end 3f9c02aa`,
	}
	options := addOptions(cmd, adminOption)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		processes, err := a.runningProcesses(cmd.Context(), options)
		if err != nil {
			return err
		}
		for _, id := range args {
			if err := endSession(cmd.Context(), processes, id); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

// leastIDLength is the least start of an ID that names a client.
const leastIDLength = 4

// endSession ends a client by the start of its ID. A whole ID may be that of a
// client that has ended.
func endSession(ctx context.Context, processes []processStatus, id string) error {
	if len(id) < leastIDLength || strings.Trim(id, "0123456789abcdef") != "" {
		return usage("session %q: give at least %d hexadecimal digits of an ID", id, leastIDLength)
	}
	type match struct{ socket, id string }
	var matches []match
	for i := range processes {
		for _, s := range processes[i].Sessions {
			if strings.HasPrefix(s.ID, id) {
				matches = append(matches, match{processes[i].socket, s.ID})
			}
		}
	}
	switch {
	case len(matches) > 1:
		return usage("session %q: %d IDs begin like that", id, len(matches))
	case len(matches) == 0:
		for i := range processes {
			matches = append(matches, match{processes[i].socket, id})
		}
	}
	for _, m := range matches {
		err := askAdmin(ctx, m.socket, adminCall{method: http.MethodDelete, route: "/v1/sessions/" + url.PathEscape(m.id)})
		var answer *answerCode
		if errors.As(err, &answer) && answer.code == http.StatusNotFound {
			continue
		}
		if err != nil {
			return fmt.Errorf("end session %s: %w", m.id, err)
		}
		return nil
	}
	return &exit{exitFalse, fmt.Errorf("there is no session %q; viablk session ls lists them", id)}
}
