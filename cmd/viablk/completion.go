package main

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/viablk/viablk/config"
)

// complete tells shells what the arguments of commands and the values of flags
// can be: files, folders, one of some words, or free text. It is
// read off the usage of each, where people read it.
func complete(cmd *cobra.Command) {
	cmd.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Value.Type() == "bool" {
			return
		}
		argument, text := pflag.UnquoteUsage(f)
		completion := completionOf(argument, choices(argument, text))
		switch {
		case f.Name == "output":
			completion = completeOutput
		case strings.HasPrefix(argument, "NAME=") && strings.HasSuffix(argument, "BACKEND"):
			completion = completeExport
		case f.Value.Type() == "stringSlice":
			completion = completeList(choices(argument, text))
		}
		if err := cmd.RegisterFlagCompletionFunc(f.Name, completion); err != nil {
			panic(err) // the flag is there, and has none
		}
	})
	arguments, _, _ := strings.Cut(cmd.Use, "--")
	if words := strings.Fields(strings.TrimSuffix(arguments, "["))[1:]; len(words) > 0 {
		cmd.ValidArgsFunction = func(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if len(args) >= len(words) {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			if words[len(args)] == "NAME=BACKEND" {
				return completeExport(c, args, begun)
			}
			kinds := strings.Split(strings.Trim(words[len(args)], "[]…"), "|")
			// A word in upper case is a kind, one in lower case literal.
			last := ""
			for _, kind := range kinds {
				if kind == strings.ToUpper(kind) {
					last = kind
				}
			}
			kinds = slices.DeleteFunc(kinds, func(kind string) bool { return kind != strings.ToLower(kind) })
			return completionOf(last, kinds)(c, args, begun)
		}
	}
	for _, child := range cmd.Commands() {
		complete(child)
	}
}

// completeOutput completes the formats that a command has.
func completeOutput(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return outputs(cmd), cobra.ShellCompDirectiveNoFileComp
}

// completeList completes the last element of a list with a choice that the list
// does not have yet.
func completeList(choices []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		head := begun[:strings.LastIndexByte(begun, ',')+1]
		given := strings.Split(head, ",")
		var offered []string
		for _, c := range choices {
			if !slices.Contains(given, c) {
				offered = append(offered, head+c)
			}
		}
		return offered, cobra.ShellCompDirectiveNoFileComp
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
	case "SRC", "DST", "DISK": // a URI or a path
		choices, directive = slices.Concat(choices, schemes), cobra.ShellCompDirectiveNoSpace
	case "URI":
		choices, directive = slices.Concat(choices, schemes), directive|cobra.ShellCompDirectiveNoSpace
	}
	if kind == "DEVICE" {
		nodes, _ := filepath.Glob("/dev/nbd[0-9]*") // its only error is that of the pattern
		choices = slices.Concat(choices, nodes)
	}
	return cobra.FixedCompletions(choices, directive)
}

// enumeration matches the end of a usage that says what the values can be, one
// of them or a list.
var enumeration = regexp.MustCompile(`^(?:.*?[ :])?((?:[a-z-]+, )*[a-z-]+ or [a-z-]+)(?:; a list)?$`)

// alternatives lists words in a usage, so that shells offer them.
func alternatives[T ~string](words []T) string {
	list := texts(words)
	last := len(list) - 1
	if last == 0 {
		return list[0]
	}
	return strings.Join(list[:last], ", ") + " or " + list[last]
}

// schemes are how the URIs of servers begin.
var schemes = []string{"nbd://", "nbds://", "nbd+unix:///", "via+shm:///", "via+roce://", "via+verbs://"}

// choices returns the words that a value can be, if its usage lists them.
func choices(argument, text string) []string {
	switch argument {
	case "DEVICE":
		if strings.Contains(text, "or auto") {
			return []string{config.DeviceAuto}
		}
	case "FORMAT", "LEVEL", "MODE", "HOW", "POLICY", "WHAT", "NAME":
		if listed := enumeration.FindStringSubmatch(text); listed != nil {
			return strings.Split(strings.Replace(listed[1], " or ", ", ", 1), ", ")
		}
	}
	return nil
}
