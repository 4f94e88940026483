//go:build vm

package interop

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/viablk/viablk/integration/vm"
)

// report is what a test program says with -test.v.
type report struct {
	failed []string            // tests, in the order of their ends
	said   map[string][]string // lines of each test
	others []string            // lines of no test
}

// readReport reads the output of a test program. The program names a test when
// it starts, and when a line of it follows one of another test.
func readReport(output string) *report {
	r := &report{said: make(map[string][]string)}
	current := ""
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\n")
		words := strings.Fields(line)
		switch {
		case len(words) == 3 && words[0] == "===":
			current = words[2]
		case len(words) == 4 && words[0] == "---":
			if current = ""; words[1] == "FAIL:" {
				r.failed = append(r.failed, words[2])
			}
		case current != "":
			r.said[current] = append(r.said[current], line)
		default:
			r.others = append(r.others, line)
		}
	}
	return r
}

// Of a failure message: the lines of a test, and of the rest.
const (
	linesPerTest = 60
	lastLines    = 100
)

// failure describes a run that failed: the failed tests and what they said,
// then the lines of no test. It leaves out the lines of good tests.
func (r *report) failure(of vm.Result) string {
	b := new(strings.Builder)
	how := fmt.Sprintf("exit code %d", of.Code)
	if of.Err != nil {
		how = of.Err.Error()
	}
	fmt.Fprintf(b, "%s: %s, %d tests failed\n", strings.Join(of.Args, " "), how, len(r.failed))
	for _, name := range r.failed {
		if r.has(name) && len(r.said[name]) == 0 {
			continue // its parts say why
		}
		fmt.Fprintf(b, "--- FAIL: %s\n", name)
		write(b, r.said[name], linesPerTest, 0)
	}
	if len(r.failed) == 0 {
		b.WriteString("--- the end of its output\n")
		lines := strings.Split(strings.TrimRight(of.Stdout, "\n"), "\n")
		write(b, lines, 0, lastLines)
	}
	write(b, r.others, 0, lastLines)
	write(b, strings.Split(strings.TrimRight(of.Stderr, "\n"), "\n"), lastLines, lastLines)
	return b.String()
}

// has reports whether a part of a test failed.
func (r *report) has(name string) bool {
	return slices.ContainsFunc(r.failed, func(other string) bool { return strings.HasPrefix(other, name+"/") })
}

// write writes the first and the last lines.
func write(b *strings.Builder, lines []string, first, last int) {
	if len(lines) > first+last {
		left := len(lines) - first - last
		lines = slices.Concat(lines[:first], []string{fmt.Sprintf("    ... %d lines ...", left)}, lines[len(lines)-last:])
	}
	for _, line := range lines {
		b.WriteString(line)
		b.WriteByte('\n')
	}
}

func TestReport(t *testing.T) {
	var out strings.Builder
	out.WriteString("=== RUN   TestKit\n")
	for i := range 500 {
		fmt.Fprintf(&out, "=== RUN   TestKit/good%d\n    kit.go:1: good words\n", i)
	}
	out.WriteString("=== RUN   TestKit/bad\n    kit.go:2: bad words\n        of two lines\n" +
		"=== RUN   TestKit/other\n=== NAME  TestKit/bad\n    kit.go:3: late words\nviatest: 3 cases\n")
	cut := out.String()
	out.WriteString("--- FAIL: TestKit (0.10s)\n    --- PASS: TestKit/good0 (0.00s)\n    --- FAIL: TestKit/bad (0.10s)\n    --- PASS: TestKit/other (0.00s)\nFAIL\n")
	const want = "kit -test.v: exit code 1, 2 tests failed\n--- FAIL: TestKit/bad\n    kit.go:2: bad words\n        of two lines\n" +
		"    kit.go:3: late words\nviatest: 3 cases\nFAIL\nto the other stream\n"
	of := vm.Result{Args: []string{"kit", "-test.v"}, Code: 1, Stdout: out.String(), Stderr: "to the other stream\n"}
	if got := readReport(of.Stdout).failure(of); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	// The program was killed.
	of = vm.Result{Args: []string{"kit"}, Err: fmt.Errorf("killed"), Stdout: cut}
	got := readReport(of.Stdout).failure(of)
	if !strings.HasPrefix(got, "kit: killed, 0 tests failed\n--- the end of its output\n    ... ") ||
		!strings.Contains(got, "late words") || strings.Count(got, "\n") > lastLines+10 {
		t.Errorf("got:\n%s", got)
	}
}
