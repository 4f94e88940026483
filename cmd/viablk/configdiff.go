package main

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/config"
)

// configDifference is a key with another value in a file. A value is nil where
// there is none.
type configDifference struct {
	Key     string `json:"key"`
	Running any    `json:"running"`
	File    any    `json:"file"`
}

// configDifferences is what "viablk config diff" prints.
type configDifferences struct {
	Schema      string             `json:"schema"` // viablk.config-diff/v1
	File        string             `json:"file"`
	Differences []configDifference `json:"differences"`
}

func (a *app) configDiffCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diff FILE",
		Short: "Compare the configuration of a running target with a file",
		Long: `Compare the configuration that is in effect in the running target with a file, as it
would apply under the present environment: what a reload would change of the exports,
and what waits for the next start. Lines with - are of the target, lines with + of the
file. Exports are compared by name. The exit code is 1 if
something differs.`,
		Example: `  viablk config diff /etc/viablk/target.yaml`,
	}
	options := addOptions(cmd, adminOption)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		e, err := a.load(args[0], nil)
		if err != nil {
			return err
		}
		running, err := a.askConfig(cmd.Context(), options)
		if err != nil {
			return err
		}
		differences, err := running.differ(newRunningConfig(&e))
		if err != nil {
			return err
		}
		d := configDifferences{Schema: "viablk.config-diff/v1", File: args[0], Differences: differences}
		if a.output == "json" {
			err = a.printJSON(d)
		} else {
			err = d.print(a.stdout)
		}
		if err == nil && len(d.Differences) > 0 {
			err = &exit{code: exitFailure}
		}
		return err
	}
	return cmd
}

// print prints a line with - for each value that runs, and with + for each of
// the file.
func (d *configDifferences) print(to io.Writer) error {
	for _, x := range d.Differences {
		for _, side := range []struct {
			sign  string
			value any
		}{{"-", x.Running}, {"+", x.File}} {
			if side.value == nil {
				continue
			}
			text, err := literal(side.value)
			if err == nil {
				_, err = fmt.Fprintf(to, "%s%s: %s\n", side.sign, x.Key, text)
			}
			if err != nil {
				return fmt.Errorf("print: %w", err)
			}
		}
	}
	return nil
}

// differ returns the keys that have another value in a file.
func (r *runningConfig) differ(file runningConfig) ([]configDifference, error) {
	before, after := make(map[string]any), make(map[string]any)
	var keys []string
	for _, side := range []struct {
		values map[string]any
		config *runningConfig
	}{{before, r}, {after, &file}} {
		text, err := json.Marshal(side.config)
		if err != nil {
			return nil, err
		}
		var plain runningConfig // values as JSON has them
		if err := json.Unmarshal(text, &plain); err != nil {
			return nil, err
		}
		for _, s := range plain.Settings {
			for _, value := range flatten(s) {
				_, known := before[value.Key]
				if _, there := side.values[value.Key]; !known && !there {
					keys = append(keys, value.Key)
				}
				side.values[value.Key] = value.Value
			}
		}
	}
	differences := []configDifference{}
	for _, key := range keys {
		if !reflect.DeepEqual(before[key], after[key]) {
			differences = append(differences, configDifference{key, before[key], after[key]})
		}
	}
	return differences, nil
}

// flatten returns a setting, or one for each export.
func flatten(s config.Setting) []config.Setting {
	list, _ := s.Value.([]any)
	if s.Key != exportsKey {
		if s.Value == nil {
			s.Value = []any{} // no list
		}
		return []config.Setting{s}
	}
	var all []config.Setting
	for _, x := range list {
		export, _ := x.(map[string]any)
		all = append(all, config.Setting{Key: fmt.Sprintf("%s[%v]", exportsKey, export["name"]), Value: x})
	}
	return all
}
