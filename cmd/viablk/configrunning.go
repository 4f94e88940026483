package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/config"
)

// runningConfig is the configuration in effect of a running target, without
// secrets. GET /v1/config answers it, and "viablk config dump" prints it.
type runningConfig struct {
	Schema   string           `json:"schema"` // viablk.running-config/v1
	Settings []config.Setting `json:"settings"`
}

// configuration returns the configuration in effect.
func (s *exportSet) configuration() runningConfig {
	return newRunningConfig(s.inEffect.Load()).withLogLevel(s.level.Level())
}

// newRunningConfig returns a configuration as it may be shown.
func newRunningConfig(e *config.Effective) runningConfig {
	r := runningConfig{Schema: "viablk.running-config/v1", Settings: slices.Clone(e.Settings)}
	for i := range r.Settings {
		if r.Settings[i].Key != exportsKey {
			continue
		}
		exports := []config.Export{}
		for _, x := range e.Config.Target.Exports {
			exports = append(exports, x.Redacted())
		}
		r.Settings[i].Value = exports
	}
	return r
}

// askConfig gets the configuration of the running target.
func (a *app) askConfig(ctx context.Context, options *optionSet) (r runningConfig, err error) {
	socket, err := a.targetOf(ctx, options)
	if err != nil {
		return r, err
	}
	err = askAdmin(ctx, socket, adminCall{method: http.MethodGet, route: "/v1/config", read: func(_ net.Conn, body *json.Decoder) error {
		return body.Decode(&r)
	}})
	return r, err
}

func (a *app) configDumpCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Print the configuration of a running target as a file",
		Long: `Print the configuration that is in effect in the running target, with what was
changed at run time, as a file in YAML that makes the same target. A comment behind
each value says where it comes from, unless it is a default. Passwords in the
specification of a disk are shown as ***.`,
		Example: `  viablk config dump > /etc/viablk/target.yaml`,
	}
	options := addOptions(cmd, adminOption)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r, err := a.askConfig(cmd.Context(), options)
		if err != nil {
			return err
		}
		if a.output == "json" {
			return a.printJSON(r)
		}
		text, err := r.yaml()
		if err != nil {
			return err
		}
		if _, err := a.stdout.Write(text); err != nil {
			return fmt.Errorf("print: %w", err)
		}
		return nil
	}
	return cmd
}

// yaml returns the configuration as a file. A value in JSON is one in YAML.
func (r *runningConfig) yaml() ([]byte, error) {
	var b bytes.Buffer
	section := ""
	for _, s := range r.Settings {
		name, key, nested := strings.Cut(s.Key, ".")
		indent := ""
		if !nested {
			key, name = name, ""
		} else {
			indent = "  "
		}
		if name != section && nested {
			fmt.Fprintf(&b, "%s:\n", name)
		}
		section = name
		if list, ok := s.Value.([]any); ok && len(list) > 0 && (s.Key == exportsKey || len(s.Elements) == len(list)) {
			if err := writeList(&b, indent, key, list, s); err != nil {
				return nil, err
			}
			continue
		}
		text, err := literal(s.Value)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%s%s: %s%s\n", indent, key, text, originComment(s.Origin, s.Source))
	}
	return b.Bytes(), nil
}

// originComment returns the comment behind a value.
func originComment(origin config.Origin, source string) string {
	if origin == config.FromDefault {
		return ""
	}
	return "  # " + strings.TrimSuffix(fmt.Sprintf("%s: %s", origin, source), ": ")
}

// writeList writes a list with a line for each element, which may have files of
// their own.
func writeList(b *bytes.Buffer, indent, key string, list []any, s config.Setting) error {
	whole := originComment(s.Origin, s.Source)
	if len(s.Elements) == len(list) {
		whole = ""
	}
	fmt.Fprintf(b, "%s%s:%s\n", indent, key, whole)
	for i, x := range list {
		text, err := literal(x)
		if err != nil {
			return err
		}
		from := ""
		if len(s.Elements) == len(list) {
			from = originComment(s.Origin, s.Elements[i])
		}
		fmt.Fprintf(b, "%s  - %s%s\n", indent, text, from)
	}
	return nil
}

// literal returns a value in JSON; no list is an empty one.
func literal(v any) (string, error) {
	if v == nil {
		return "[]", nil
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return "", fmt.Errorf("print: %w", err)
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}
