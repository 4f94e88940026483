package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/config"
)

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check, show, dump or compare a configuration",
	}
	cmd.AddCommand(a.configCheckCommand(), a.configShowCommand(), a.configDumpCommand(), a.configDiffCommand(), a.configSchemaCommand())
	return cmd
}

// checkResult is what "viablk config check" prints.
type checkResult struct {
	Schema   string           `json:"schema"` // viablk.config-check/v1
	File     string           `json:"file"`
	Files    []string         `json:"files,omitempty"` // that were read, if there are fragments; of a right configuration
	Problems []config.Problem `json:"problems"`        // empty: the configuration is right
}

func (a *app) configCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE",
		Short: "Validate a configuration file",
		Long: `Report everything that is wrong with a configuration file, as it would apply
under the present environment, the specifications of disks included. Nothing is opened
but the file itself and its fragments in conf.d: whether a disk is there, and fit, shows when the target starts.`,
		RunE: func(_ *cobra.Command, args []string) error {
			e, err := a.load(args[0], nil)
			var bad *config.Error
			if err != nil && !errors.As(err, &bad) {
				return err
			}
			result := checkResult{Schema: "viablk.config-check/v1", File: args[0], Problems: []config.Problem{}}
			if bad != nil {
				result.Problems = bad.Problems
			}
			if len(e.Files) > 1 {
				result.Files = e.Files
			}
			return a.printCheck(result)
		},
	}
}

// printCheck prints the result; its exit code is part of it.
func (a *app) printCheck(result checkResult) error {
	var err error
	if a.output == "json" {
		err = a.printJSON(result)
	} else {
		for _, p := range result.Problems {
			fmt.Fprintln(a.stdout, p)
		}
		if len(result.Problems) == 0 {
			fmt.Fprintf(a.stdout, "%s: ok\n", strings.Join(append([]string{result.File}, result.Files[min(1, len(result.Files)):]...), ", "))
		}
	}
	if err == nil && len(result.Problems) > 0 {
		return &exit{code: exitConfiguration}
	}
	return err
}

// effective is what "viablk config show" prints.
type effective struct {
	Schema   string           `json:"schema"` // viablk.config/v1
	File     string           `json:"file"`
	Settings []config.Setting `json:"settings"`
	Access   []access         `json:"access"`
}

// access is a listener of the target and who gets the disks there.
type access struct {
	URI string `json:"uri"`
	Who string `json:"who"`
}

// newAccess says who gets the disks of a target.
func newAccess(c config.Config) []access {
	all := []access{}
	for _, listen := range c.Target.Listen {
		if u, err := config.ParseURI(listen); err == nil {
			all = append(all, access{listen, c.Access(u)})
		}
	}
	return all
}

func (a *app) configShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show [FILE]",
		Short: "Print the value of every key and where it comes from",
		Long: `Print the value of every key and where it comes from, and for each listener of the
target who gets the disks there that have no clients of their own.`,
		RunE: func(_ *cobra.Command, args []string) error {
			file := ""
			if len(args) == 1 {
				file = args[0]
			}
			e, err := a.load(file, nil)
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.printJSON(effective{Schema: "viablk.config/v1", File: file, Settings: e.Settings, Access: newAccess(e.Config)})
			}
			rows := [][]string{{"KEY", "VALUE", "ORIGIN"}}
			for _, s := range e.Settings {
				rows = append(rows, []string{s.Key, fmt.Sprint(s.Value), string(s.Origin)})
			}
			for _, x := range newAccess(e.Config) {
				rows = append(rows, []string{"access at " + x.URI, x.Who, "-"})
			}
			return a.printTable(rows)
		},
	}
}
