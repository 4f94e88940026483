package main

import (
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// complete tells shells what the arguments of commands and the values of flags can
// be: files, folders, one of some words, or what nobody else knows. It is read off
// the usage of each, where people read it.
func complete(cmd *cobra.Command) {
	cmd.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Value.Type() == "bool" {
			return
		}
		argument, text := pflag.UnquoteUsage(f)
		if err := cmd.RegisterFlagCompletionFunc(f.Name, completionOf(argument, choices(argument, text))); err != nil {
			panic(err) // the flag is there, and has none
		}
	})
	arguments, _, _ := strings.Cut(cmd.Use, "--")
	if words := strings.Fields(strings.TrimSuffix(arguments, "["))[1:]; len(words) > 0 {
		cmd.ValidArgsFunction = func(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) >= len(words) {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			kinds := strings.Split(strings.Trim(words[len(args)], "[]…"), "|")
			last := kinds[len(kinds)-1]
			// What is in lower case is to be written as it stands.
			kinds = slices.DeleteFunc(kinds, func(kind string) bool { return kind != strings.ToLower(kind) })
			return completionOf(last, kinds)(c, args, begun)
		}
	}
	for _, child := range cmd.Commands() {
		complete(child)
	}
}

// completionOf completes an argument of a kind, or one of the choices.
func completionOf(kind string, choices []string) cobra.CompletionFunc {
	directive := cobra.ShellCompDirectiveNoFileComp
	switch kind {
	case "FILE", "PATH", "SOCKET", "DEVICE":
		directive = cobra.ShellCompDirectiveDefault
	case "FOLDER":
		directive = cobra.ShellCompDirectiveFilterDirs
	}
	return cobra.FixedCompletions(choices, directive)
}

// enumeration matches the end of a usage that says what the values can be.
var enumeration = regexp.MustCompile(`^(?:.*?[ :])?((?:[a-z]+, )*[a-z]+ or [a-z]+)$`)

// choices returns the words that a value can be, if its usage lists them.
func choices(argument, text string) []string {
	switch argument {
	case "FORMAT", "LEVEL", "MODE":
		if listed := enumeration.FindStringSubmatch(text); listed != nil {
			return strings.Split(strings.Replace(listed[1], " or ", ", ", 1), ", ")
		}
	}
	return nil
}
