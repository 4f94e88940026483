package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/config"
)

// logLevelKey is the key of the level in a configuration.
const logLevelKey = "log.level"

// logReport is what GET and PUT /v1/log answer, and an element of what "viablk
// log-level" prints.
type logReport struct {
	Schema  string `json:"schema"` // viablk.log/v1
	PID     int    `json:"pid,omitempty"`
	Command string `json:"command,omitempty"`
	Level   string `json:"level"` // debug, info, warn or error
}

// levelName returns a level as a configuration has it.
func levelName(level slog.Level) string { return strings.ToLower(level.String()) }

// levelOf returns the level of a checked configuration.
func levelOf(name string) (level slog.Level) {
	if err := level.UnmarshalText([]byte(name)); err != nil {
		panic(err) // config.Config.Validate knows the levels
	}
	return level
}

// setLogLevel changes the level of the log. The line about it appears at the
// more verbose of both levels.
func (s *service) setLogLevel(level slog.Level) {
	before := s.level.Level()
	if before > level {
		s.level.Set(level)
	}
	if before != level {
		s.log.Info("log level changed", "event", "log_level_changed", "from", levelName(before), "to", levelName(level))
	}
	s.level.Set(level)
}

// handleLogLevel adds the routes of the log.
func (s *service) handleLogLevel(mux *http.ServeMux) {
	answer := func(w http.ResponseWriter) {
		answerJSON(w, http.StatusOK, logReport{Schema: "viablk.log/v1", Level: levelName(s.level.Level())})
	}
	mux.HandleFunc("GET /v1/log", func(w http.ResponseWriter, _ *http.Request) { answer(w) })
	mux.HandleFunc("PUT /v1/log", func(w http.ResponseWriter, r *http.Request) {
		document, ok := readDocument(w, r, maximumDocument)
		if !ok {
			return
		}
		name, err := config.DecodeLogLevel(document)
		if err != nil {
			answerProblems(w, err)
			return
		}
		s.setLogLevel(levelOf(name))
		answer(w)
	})
}

// withLogLevel returns a configuration in effect with the level that an
// administrator has set, if it is another one.
func (r runningConfig) withLogLevel(level slog.Level) runningConfig {
	for i := range r.Settings {
		if s := &r.Settings[i]; s.Key == logLevelKey && s.Value != levelName(level) {
			*s = config.Setting{Key: logLevelKey, Value: levelName(level), Origin: config.FromAdmin}
		}
	}
	return r
}

func (a *app) logLevelCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "log-level [debug|info|warn|error]",
		Short: "Show or change the log level of running processes",
		Long: `Show the log level of the running viablk processes of this user, or of the one behind
--admin, or change it until they end. Their configuration does not change.`,
		Example: `  viablk log-level debug --admin /run/viablk-target/status.sock`,
	}
	options := addOptions(cmd, adminOption)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		call := adminCall{method: http.MethodGet, route: "/v1/log"}
		if len(args) == 1 {
			document, err := json.Marshal(map[string]string{"level": args[0]})
			if err != nil {
				return err
			}
			if _, err := config.DecodeLogLevel(document); err != nil {
				return &exit{exitUsage, err}
			}
			call.method, call.body = http.MethodPut, document
		}
		processes, err := a.runningProcesses(cmd.Context(), options)
		if err != nil {
			return err
		}
		reports := []logReport{}
		var errs []error
		for i := range processes {
			p := &processes[i]
			report := logReport{PID: p.PID, Command: p.Command}
			call.read = func(_ net.Conn, body *json.Decoder) error { return body.Decode(&report) }
			if err := askAdmin(cmd.Context(), p.socket, call); err != nil {
				errs = append(errs, fmt.Errorf("pid %d: %w", p.PID, err))
				continue
			}
			reports = append(reports, report)
		}
		return errors.Join(append(errs, a.printLogLevels(reports))...)
	}
	return cmd
}

func (a *app) printLogLevels(reports []logReport) error {
	if a.output == "json" {
		return a.printJSON(reports)
	}
	rows := [][]string{{"PID", "COMMAND", "LEVEL"}}
	for _, r := range reports {
		rows = append(rows, []string{strconv.Itoa(r.PID), r.Command, r.Level})
	}
	return a.printTable(rows)
}
