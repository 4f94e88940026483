package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/config"
)

func (a *app) configSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of a configuration file",
		Long: `Print the JSON Schema of a configuration file, with which editors complete keys and
mark mistakes. It has the keys, the kinds of their values and the words that a value
can be; "viablk config check" knows bounds too, and what does not go together.`,
		Example: `  viablk config schema > viablk.schema.json`,
		RunE: func(*cobra.Command, []string) error {
			return a.printJSON(config.Schema(func(key string, export bool) string {
				usage := exportUsages[key]
				if !export {
					usage = usageOf(key)
				}
				return strings.ReplaceAll(usage, "`", "")
			}))
		},
	}
}
