package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/viablk/viablk/config"
)

// keyAnnotation is the annotation of a flag that names the key that it sets.
const keyAnnotation = "key"

// manualCommand writes the manual out of the commands, their flags and the keys
// of the configuration. It is for those who make packages.
func (a *app) manualCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "manual FOLDER",
		Short:  "Write the pages of the manual into a folder",
		Hidden: true,
		Long: `Write the pages of the manual into a folder that there is: viablk.1, a page for each
command, and ` + configPage + `.5. Their date is SOURCE_DATE_EPOCH, or today.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			date, err := manualDate()
			if err != nil {
				return err
			}
			for name, text := range manual(cmd.Root(), date) {
				if err := os.WriteFile(filepath.Join(args[0], name), text, 0o644); err != nil {
					return fmt.Errorf("write the manual: %w", err)
				}
			}
			return nil
		},
	}
}

// manualDate is the date of the manual, which is the same whenever it is made
// of the same sources.
func manualDate() (string, error) {
	date := time.Now()
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return "", usage("SOURCE_DATE_EPOCH is %q, not a number of seconds", epoch)
		}
		date = time.Unix(seconds, 0)
	}
	return date.UTC().Format(time.DateOnly), nil
}

// manual returns the pages by the names of their files.
func manual(root *cobra.Command, date string) map[string][]byte {
	pages := map[string][]byte{configPage + ".5": configManual(root, date)}
	for _, cmd := range documented(root) {
		pages[pageName(cmd)+".1"] = commandManual(cmd, date)
	}
	return pages
}

// documented returns a command and those below it that have a page.
func documented(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, child := range cmd.Commands() {
		if child.IsAvailableCommand() && child.Name() != "help" {
			all = append(all, documented(child)...)
		}
	}
	return all
}

// pageName returns the name of a command's page.
func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// reference returns how a page is referred to.
func reference(name, section string) string { return bold(name) + "(" + section + ")" }

// sentence makes a sentence of what is none.
func sentence(text string) string {
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// commandManual returns the page of a command.
func commandManual(cmd *cobra.Command, date string) []byte {
	r := new(roff)
	r.header(pageName(cmd), "1", date, "viablk "+version().Version)
	r.section("NAME")
	r.line(`%s \- %s`, plain(pageName(cmd)), plain(cmd.Short))
	r.section("SYNOPSIS")
	r.line("%s%s", bold(cmd.CommandPath()), plain(strings.TrimPrefix(cmd.UseLine(), cmd.CommandPath())))
	r.section("DESCRIPTION")
	long := cmd.Long
	if long == "" {
		long = cmd.Short + "."
	}
	r.prose(strings.TrimSuffix(long, exitHelp))
	if children := documented(cmd)[1:]; len(children) > 0 {
		r.section("COMMANDS")
		for _, child := range children {
			if child.Parent() == cmd {
				r.item(reference(pageName(child), "1"), plain(child.Short+"."))
			}
		}
	}
	cmd.InitDefaultHelpFlag()
	r.section("OPTIONS")
	// The flags of a command, and then those that it has of its parents.
	cmd.NonInheritedFlags().VisitAll(r.flag)
	cmd.InheritedFlags().VisitAll(r.flag)
	r.section("EXIT STATUS")
	for _, status := range strings.Split(exitHelp, "\n")[1:] {
		code, meaning, _ := strings.Cut(strings.TrimSpace(status), " ")
		r.item(bold(code), plain(sentence(strings.TrimSpace(meaning))))
	}
	if cmd.Example != "" {
		r.section("EXAMPLES")
		r.prose(cmd.Example)
	}
	r.section("SEE ALSO")
	r.line("%s", strings.Join(related(cmd), ",\n"))
	return r.text.Bytes()
}

// related returns references to the pages beside that of a command.
func related(cmd *cobra.Command) []string {
	var pages []string
	if cmd.HasParent() {
		pages = append(pages, reference(pageName(cmd.Parent()), "1"))
	}
	for _, c := range documented(cmd)[1:] {
		if c.Parent() == cmd {
			pages = append(pages, reference(pageName(c), "1"))
		}
	}
	return append(pages, reference(configPage, "5"))
}

// flag writes the item of a flag.
func (r *roff) flag(f *pflag.Flag) {
	if f.Hidden {
		return
	}
	argument, text := pflag.UnquoteUsage(f)
	tag := bold("--" + f.Name)
	if f.Shorthand != "" {
		tag = bold("-"+f.Shorthand) + ", " + tag
	}
	if argument != "" {
		tag += " " + italic(argument)
	}
	text = sentence(text)
	switch f.DefValue {
	case "", "[]", "false", "0":
	default:
		text += " The default is " + strings.ReplaceAll(strings.Trim(f.DefValue, "[]"), ",", ", ") + "."
	}
	if key := f.Annotations[keyAnnotation]; len(key) == 1 {
		text += fmt.Sprintf(" Key %s, variable %s.", key[0], config.EnvironmentName(key[0]))
	}
	r.item(tag, plain(text))
}
