package viablk_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strings"
	"testing"
)

// scheduled are the packages whose clock, waits and goroutines come from a
// sched.Scheduler: a simulation runs them in virtual time.
var scheduled = []string{"initiator", "target", "target/reserve"}

// unscheduled are the functions and types that go around the scheduler.
var unscheduled = map[string][]string{
	"time":    {"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until"},
	"context": {"AfterFunc", "WithCancel", "WithCancelCause", "WithDeadline", "WithDeadlineCause", "WithTimeout", "WithTimeoutCause"},
	"sync":    {"Cond", "NewCond", "Once", "OnceFunc", "OnceValue", "OnceValues", "WaitGroup"},
	"unix":    {"Nanosleep", "Poll", "Ppoll", "Select"},
	"eventfd": {"New"},
	"rand":    {"Int", "Read", "Text"},
}

// exempt are uses of such functions that no simulation sees.
var exempt = map[string]string{
	"target/identity.go": "rand.Read", // once in a process
}

// checkScheduled checks that a file of scheduled packages waits, starts
// goroutines and reads the clock through the scheduler alone.
func checkScheduled(files *token.FileSet, name string, f *ast.File) []string {
	if strings.HasSuffix(name, "_test.go") || !slices.Contains(scheduled, path.Dir(name)) {
		return nil
	}
	var bad []string
	add := func(n ast.Node, what string) {
		bad = append(bad, fmt.Sprintf("%s:%d: %s goes around the scheduler", name, files.Position(n.Pos()).Line, what))
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			add(n, "a go statement")
		case *ast.SelectStmt:
			add(n, "a select")
		case *ast.SendStmt:
			add(n, "a send")
		case *ast.UnaryExpr:
			if n.Op == token.ARROW {
				add(n, "a receive")
			}
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && slices.Contains(unscheduled[x.Name], n.Sel.Name) {
				if use := x.Name + "." + n.Sel.Name; exempt[name] != use {
					add(n, use)
				}
			}
		}
		return true
	})
	return bad
}

// TestScheduledRulesCanFail shows each rule a file that breaks it.
func TestScheduledRulesCanFail(t *testing.T) {
	for body, want := range map[string]string{
		"go f()":                            "a go statement",
		"select {}":                         "a select",
		"c <- 1":                            "a send",
		"<-c":                               "a receive",
		"x := <-c; _ = x":                   "a receive",
		"_ = time.Now()":                    "time.Now",
		"g(time.Since)":                     "time.Since",
		"context.WithTimeout(ctx, d)":       "context.WithTimeout",
		"var w sync.WaitGroup; w.Wait()":    "sync.WaitGroup",
		"_, _ = unix.Ppoll(nil, nil, nil)":  "unix.Ppoll",
		"_, _ = eventfd.New()":              "eventfd.New",
		"_, _ = rand.Read(b)":               "rand.Read",
		"scheduler.Now(); ctx.Err(); w.n--": "",
	} {
		for _, dir := range append(scheduled, "via") {
			name := dir + "/planted.go"
			source := "// Package planted is planted.\npackage planted\n\nfunc p() {\n\t" + body + "\n}\n"
			got := slices.DeleteFunc(tree{name: source}.check(), func(line string) bool {
				return !strings.Contains(line, "scheduler")
			})
			if want == "" || dir == "via" {
				if len(got) != 0 {
					t.Errorf("%s in %s: %q", body, dir, got)
				}
				continue
			}
			if line := fmt.Sprintf("%s:5: %s goes around the scheduler", name, want); !slices.Equal(got, []string{line}) {
				t.Errorf("%s: got %q, not %q", body, got, line)
			}
		}
	}
}
