package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/target/limit"
)

// A default is stated once, in Go. Help and manual take it from there, and the
// documentation is compared with it.

// statedInUsage matches a usage that states a default as a literal.
var statedInUsage = regexp.MustCompile(`(\b0: |\bdefault:? |; )[0-9]+(\.[0-9]+)? ?(ns|us|µs|ms|s|min|m|h|B|[KMGT]iB)?($|[,;.)]| if )`)

// literalDefaults returns the string literals of a Go file that state a
// default.
func literalDefaults(name, source string) ([]string, error) {
	f, err := parser.ParseFile(token.NewFileSet(), name, source, 0)
	if err != nil {
		return nil, err
	}
	var bad []string
	ast.Inspect(f, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if s, err := strconv.Unquote(lit.Value); err == nil && statedInUsage.MatchString(s) {
				bad = append(bad, s)
			}
		}
		return true
	})
	return bad, nil
}

func TestUsagesStateNoDefaults(t *testing.T) {
	names, err := filepath.Glob("*.go")
	if err != nil || len(names) < 20 {
		t.Fatalf("%d files, %v", len(names), err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		bad, err := literalDefaults(name, string(source))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range bad {
			t.Errorf("%s: %q states a default: take it from its constant", name, s)
		}
	}
	for _, planted := range []string{"sleep; 0: 50 us", "keep for TIME; 20ms, if it is not said", "rounds, default 5"} {
		if bad, err := literalDefaults("x.go", fmt.Sprintf("package x\n\nvar s = %q\n", planted)); err != nil || len(bad) != 1 {
			t.Errorf("%q is not found: %v, %v", planted, bad, err)
		}
	}
}

// The statements of the documentation: behind a flag or a key of an export, and
// in a table of limits.
var (
	statedOfFlag = regexp.MustCompile("`(?:--)?([a-z-]+)(?: [A-Z]+)?`[^`\n]*?\\(?default:? ([0-9][0-9.]*(?: ?[a-zµ]+)?)[,;.) |]")
	statedLimit  = regexp.MustCompile("(?m)^\\| `([A-Z][A-Za-z]+)` \\| ([0-9][0-9.]*(?: (?:s|µs|ms|KiB|MiB))?)[ ,;]")
)

// limitKeys are the keys of the configuration by the rows of the table of
// limits in docs/nbd.md.
var limitKeys = map[string]string{
	"Handshake": "nbd.handshake_timeout", "Options": "nbd.options", "Handshakes": "nbd.handshakes",
	"Connections": "nbd.connections", "Depth": "nbd.depth", "Progress": "nbd.progress_timeout", "BusyPoll": "nbd.busy_poll",
}

// defaultsByName returns the defaults by flag and by key.
func defaultsByName() map[string]string {
	all := map[string]string{"burst": limit.DefaultBurst.String()}
	for _, s := range config.Defaults() {
		all[s.Key] = fmt.Sprint(s.Value)
	}
	for _, group := range [][]option{commonOptions, targetOptions, attachOptions, deviceOptions} {
		for _, o := range group {
			if _, twice := all[o.flag]; twice {
				all[o.flag] = "" // of target and attach: not one default
				continue
			}
			all[o.flag] = all[o.key]
		}
	}
	return all
}

// wrongDefaults returns the statements of a text that differ from the defaults,
// and how many it has.
func wrongDefaults(text string, defaults map[string]string) (bad []string, stated int) {
	check := func(name, value string) {
		want := defaults[name]
		if want == "" {
			return
		}
		stated++
		if !sameValue(value, want) {
			bad = append(bad, fmt.Sprintf("%s is %s, not %s", name, want, value))
		}
	}
	for _, m := range statedOfFlag.FindAllStringSubmatch(text, -1) {
		check(m[1], m[2])
	}
	for _, m := range statedLimit.FindAllStringSubmatch(text, -1) {
		if key, ok := limitKeys[m[1]]; ok {
			check(key, m[2])
		}
	}
	return bad, stated
}

// sameValue compares a value as people write it with one of the configuration.
func sameValue(text, value string) bool {
	want, err := time.ParseDuration(value)
	if err != nil {
		return strings.ReplaceAll(text, " ", "") == value
	}
	number, unit, _ := strings.Cut(text, " ")
	switch strings.TrimSuffix(unit, "s") {
	case "minute":
		unit = "m"
	case "second":
		unit = "s"
	case "":
		if unit == "" && number == "0" {
			unit = "s"
		}
	}
	got, err := time.ParseDuration(number + unit)
	return err == nil && got == want
}

func TestDocumentedDefaults(t *testing.T) {
	names, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	defaults, total := defaultsByName(), 0
	for _, name := range append(names, "../../README.md") {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		bad, stated := wrongDefaults(string(text), defaults)
		total += stated
		for _, s := range bad {
			t.Errorf("%s: %s", name, s)
		}
	}
	if total < 9 {
		t.Errorf("only %d defaults were found in the documentation", total)
	}
	for _, planted := range []string{
		"| `--ctrl-loss-tmo TIME` | the timeout; default 7, see below |", "`burst` (default 21 ms) is kept",
		"| `Depth` | 127 requests |\n", "| `Progress` | 31 s without |\n",
	} {
		if bad, _ := wrongDefaults(planted, defaults); len(bad) != 1 {
			t.Errorf("%q is not found to be wrong: %v", planted, bad)
		}
	}
}
