package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// suggestDistance is how many letters a misspelt word may differ in from the
// word that is suggested.
const suggestDistance = 2

// checkArguments gives each command below cmd, and cmd itself, a check of its
// arguments against its usage line, which is the only place that names them.
func checkArguments(cmd *cobra.Command) {
	if cmd.HasSubCommands() {
		cmd.SuggestionsMinimumDistance = suggestDistance
		cmd.Args = checkSubcommand
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	} else {
		cmd.Args = checkPositional
	}
	for _, child := range cmd.Commands() {
		checkArguments(child)
	}
}

// checkSubcommand refuses a word that is no subcommand.
func checkSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("unknown command %q%s", args[0], didYouMean(cmd.SuggestionsFor(args[0])))
}

// argumentNames returns the arguments in a usage line: those that must be
// given, and those that may. The last may be repeated if unlimited is set.
func argumentNames(use string) (required, optional []string, unlimited bool) {
	line, _, _ := strings.Cut(use, "--")
	for _, word := range strings.Fields(strings.TrimSuffix(line, "["))[1:] {
		name, repeated := strings.CutSuffix(word, "…")
		unlimited = repeated
		if inner, ok := strings.CutPrefix(name, "["); ok {
			optional = append(optional, strings.TrimSuffix(inner, "]"))
		} else {
			required = append(required, name)
		}
	}
	return required, optional, unlimited
}

// checkPositional refuses missing and superfluous arguments of a command.
func checkPositional(cmd *cobra.Command, args []string) error {
	required, optional, unlimited := argumentNames(cmd.Use)
	switch most := len(required) + len(optional); {
	case len(args) < len(required):
		return fmt.Errorf("%s: %s is missing", cmd.Name(), required[len(args)])
	case len(args) <= most || unlimited:
		return nil
	case most == 0:
		return fmt.Errorf("%s takes no argument: %s", cmd.Name(), flagFor(cmd, args[0]))
	default:
		return fmt.Errorf("%s: unexpected argument %q", cmd.Name(), args[most])
	}
}

// flagFor says which flag of a command an argument was meant for.
func flagFor(cmd *cobra.Command, arg string) string {
	var flag string
	switch {
	case strings.Contains(arg, "://") && cmd.Flags().Lookup("listen") != nil:
		flag = "listen"
	case strings.Contains(arg, "://") && cmd.Flags().Lookup("nbd") != nil:
		flag = "nbd"
	case strings.Contains(arg, "=") && cmd.Flags().Lookup("export") != nil:
		flag = "export"
	default:
		return fmt.Sprintf("unexpected %q", arg)
	}
	return fmt.Sprintf("give --%s %s", flag, arg)
}

// renamedFlags are flags that have another name now.
var renamedFlags = map[string]string{"nbd-spin": "nbd-busy-poll", "spin": "busy-poll"}

// unknownFlag adds to the complaint about a flag what it may have been meant
// for.
func unknownFlag(cmd *cobra.Command, err error) error {
	name, ok := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !ok {
		return err
	}
	var near []string
	if now := renamedFlags[name]; cmd.Flags().Lookup(now) != nil {
		near = append(near, "--"+now)
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && (editDistance(name, f.Name) <= suggestDistance || strings.HasPrefix(f.Name, name)) {
			near = append(near, "--"+f.Name)
		}
	})
	return fmt.Errorf("unknown flag --%s%s", name, didYouMean(near))
}

// didYouMean words a suggestion, or nothing.
func didYouMean(words []string) string {
	if len(words) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(words, " or ") + "?"
}

// editDistance returns how many letters must be inserted, removed or replaced
// to make b of a (Levenshtein).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// helpCommand is cobra's, except that an unknown topic is an error.
func (a *app) helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND…]",
		Short: "Show the help of a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			topic, rest, err := cmd.Root().Find(args)
			if err == nil && len(rest) > 0 {
				err = checkSubcommand(topic, rest)
			}
			if err != nil {
				return usage("%v; see %s --help", err, topic.CommandPath())
			}
			topic.InitDefaultHelpFlag()
			return topic.Help()
		},
	}
}
