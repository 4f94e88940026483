package viablk_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// eventTable is the page that lists what the log can say.
const eventTable = "docs/logs.md"

// unloggedFolders have no lines of a log: kits and tests.
var unloggedFolders = []string{"integration", "contrib", "via/viatest", "via/roce/port/porttest", "target/backend/backendtest", "internal/nbd/nbdtest"}

// logMethods write a line: their first literal string is its text. The level of
// the others is an argument.
var logMethods = map[string]string{
	"Debug": "DEBUG", "Info": "INFO", "Warn": "WARN", "Error": "ERROR", "Log": "", "logCaused": "", "logVisit": "",
}

// eventName is how an event is called.
var eventName = regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)

// eventRow matches a row of the table: event, levels, text.
var eventRow = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([A-Z, ]+) \\| .+ \\|$")

// loggedEvents returns the events that a file logs with their levels, "" for
// one that is no constant, and complaints about lines that have none.
func loggedEvents(name, source string) (events map[string][]string, complaints []string) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, []string{err.Error()}
	}
	events = make(map[string][]string)
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		level, ok := logMethods[method.Sel.Name]
		i := slices.IndexFunc(call.Args, func(a ast.Expr) bool { return literal(a) != "" })
		if !ok || i < 0 {
			return true
		}
		for _, a := range call.Args[:i] {
			if s, ok := a.(*ast.SelectorExpr); ok && strings.HasPrefix(s.Sel.Name, "Level") && len(s.Sel.Name) > len("Level") {
				level = strings.ToUpper(strings.TrimPrefix(s.Sel.Name, "Level"))
			}
		}
		if strings.HasPrefix(literal(call.Args[i]), "panic") {
			return true // [contain.Panic.Log] adds the event
		}
		if len(call.Args) < i+3 || literal(call.Args[i+1]) != "event" || !eventName.MatchString(literal(call.Args[i+2])) {
			complaints = append(complaints, fmt.Sprintf("%s: no event behind the text %q", files.Position(call.Pos()), literal(call.Args[i])))
			return true
		}
		event := literal(call.Args[i+2])
		events[event] = append(events[event], level)
		return true
	})
	return events, complaints
}

// literal returns a string that stands in the source, or "".
func literal(e ast.Expr) string {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return ""
	}
	s, _ := strconv.Unquote(l.Value)
	return s
}

// compareEvents returns what differs between the events that are logged and the
// rows of a page.
func compareEvents(logged map[string][]string, page string) (complaints []string) {
	listed := make(map[string]bool)
	for _, row := range eventRow.FindAllStringSubmatch(page, -1) {
		event, levels := row[1], strings.Split(row[2], ", ")
		if listed[event] {
			complaints = append(complaints, fmt.Sprintf("%s: two rows of %q", eventTable, event))
		}
		listed[event] = true
		if logged[event] == nil {
			complaints = append(complaints, fmt.Sprintf("%s: %q is logged nowhere", eventTable, event))
		}
		for _, level := range logged[event] {
			if level != "" && !slices.Contains(levels, level) {
				complaints = append(complaints, fmt.Sprintf("%s: %q is logged at %s too", eventTable, event, level))
			}
		}
	}
	for _, event := range slices.Sorted(maps.Keys(logged)) {
		if !listed[event] {
			complaints = append(complaints, fmt.Sprintf("%s: no row of %q", eventTable, event))
		}
	}
	return complaints
}

// TestEvents: each line of the log has an event, which stands in the table with
// its level, and the table has no others.
func TestEvents(t *testing.T) {
	logged := map[string][]string{"panic": {"ERROR"}} // of package contain, whose text is its caller's
	err := fs.WalkDir(os.DirFS("."), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains(unloggedFolders, name) || d.Name() == "testdata" || d.Name() != "." && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		events, complaints := loggedEvents(name, string(source))
		for _, c := range complaints {
			t.Error(c)
		}
		for event, levels := range events {
			logged[event] = append(logged[event], levels...)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(eventTable)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range compareEvents(logged, string(page)) {
		t.Error(c)
	}
}

// TestPlantedEvents: what TestEvents looks for is found.
func TestPlantedEvents(t *testing.T) {
	for _, c := range []struct{ call, event, level, complaint string }{
		{`log.Info("x", "event", "a_b", "k", 1)`, "a_b", "INFO", ""},
		{`c.logCaused(log, slog.LevelWarn, "x", "event", "a")`, "a", "WARN", ""},
		{`log.Log(ctx, level, "x", "event", "a")`, "a", "", ""},
		{`refusals.Warn(w.log, "x", "event", "a", "k", v)`, "a", "WARN", ""},
		{`log.Info("x", "k", 1)`, "", "", "bad.go:2:12: no event behind the text \"x\""},
		{`log.Info("x", "event", name)`, "", "", "no event"},
		{`log.Info("x", "event", "A b")`, "", "", "no event"},
		{`log.Info("x")`, "", "", "no event"},
		{`p.Log(log, "panic: the end", "k", 1)`, "", "", ""},
		{`err.Error()`, "", "", ""},
	} {
		events, complaints := loggedEvents("bad.go", "package x\nfunc f() { "+c.call+" }")
		if (c.complaint == "") != (complaints == nil) || c.complaint != "" && !strings.Contains(complaints[0], c.complaint) {
			t.Errorf("%s: %q", c.call, complaints)
		}
		if c.event != "" && !slices.Equal(events[c.event], []string{c.level}) {
			t.Errorf("%s: %v", c.call, events)
		}
	}
	page := "| `a` | INFO | text |\n| `b` | INFO, WARN | text |\n| `b` | WARN | text |\n| `gone` | WARN | text |\n"
	got := compareEvents(map[string][]string{"a": {"WARN", ""}, "b": {"INFO"}, "new": {"INFO"}}, page)
	want := []string{`"a" is logged at WARN too`, `two rows of "b"`, `"b" is logged at INFO too`, `"gone" is logged nowhere`, `no row of "new"`}
	if len(got) != len(want) {
		t.Fatalf("%q", got)
	}
	for i := range want {
		if !strings.HasSuffix(got[i], want[i]) {
			t.Errorf("%q, want %q", got[i], want[i])
		}
	}
}
