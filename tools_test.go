package viablk_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// essential are programs that every Debian has, whatever is installed: those of
// its essential packages and of apt.
var essential = []string{
	"bash", "cat", "cp", "dpkg", "dpkg-deb", "dpkg-query", "apt-get", "ldd", "ls", "sh", "/bin/sh", "sleep", "tar", "truncate",
}

// provided are programs that the tests bring with them: Go and this module's.
var provided = []string{"go", "viablk"}

// inMachines are programs that tests start in virtual machines or in roots of
// Debian, whose packages the tests fetch themselves, by the folder of the
// tests.
var inMachines = map[string][]string{
	"integration/vm":       {anything},
	"integration/packages": {anything},
	"via/verbs":            {"rdma"}, // of the kernel's driver, which runs in a machine
}

// starters are the functions that start a program or require one, and which
// argument is the program's name; all after it are names too if more is true.
var starters = map[string]struct {
	argument int
	more     bool
}{
	"exec.Command": {0, false}, "exec.CommandContext": {1, false}, "exec.LookPath": {0, false},
	"Requires": {1, true}, "StartTool": {1, false}, "Run": {1, false}, "Locate": {0, false},
	"testbed.Requires": {1, true}, "testbed.StartTool": {1, false}, "testbed.Run": {1, false}, "testbed.Locate": {0, false},
}

// scriptCommand is a line of a test script that starts a program.
var scriptCommand = regexp.MustCompile(`(?m)^(?:[!?] )?exec (\S+)`)

// toolLists are the Makefile's lists of "program:package" by variable.
var toolLists = regexp.MustCompile(`(?m)^(\w*TOOLS) :=((?:.*\\\n)*.*)$`)

// makefileTools returns the programs whose packages "make deps" installs.
func makefileTools(makefile string) map[string]bool {
	tools := make(map[string]bool)
	for _, list := range toolLists.FindAllStringSubmatch(makefile, -1) {
		for word := range strings.FieldsSeq(list[2]) {
			if program, debian, ok := strings.Cut(word, ":"); ok && debian != "" {
				tools[program] = true
			}
		}
	}
	return tools
}

// programsOf returns the programs that a Go file starts or requires by name.
func programsOf(name, content string) ([]string, error) {
	f, err := parser.ParseFile(token.NewFileSet(), name, content, 0)
	if err != nil {
		return nil, err
	}
	var programs []string
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		starter, ok := starters[calledName(call.Fun)]
		if !ok {
			return true
		}
		for i := starter.argument; i < len(call.Args) && (i == starter.argument || starter.more); i++ {
			if word, ok := call.Args[i].(*ast.BasicLit); ok && word.Kind == token.STRING {
				line, _ := strconv.Unquote(word.Value)
				program, _, _ := strings.Cut(line, " ")
				programs = append(programs, program)
			}
		}
		return true
	})
	return programs, nil
}

// calledName returns "f" or "x.f" of a call, or nothing.
func calledName(e ast.Expr) string {
	switch f := e.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			return x.Name + "." + f.Sel.Name
		}
	}
	return ""
}

// checkTools returns the programs that tests and scripts start and that the
// Makefile does not install.
func checkTools(makefile string, files map[string]string) []string {
	tools := makefileTools(makefile)
	var bad []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		var programs []string
		if path.Ext(name) == ".go" {
			var err error
			if programs, err = programsOf(name, files[name]); err != nil {
				bad = append(bad, fmt.Sprintf("%s: does not parse: %v", name, err))
			}
		} else {
			for _, m := range scriptCommand.FindAllStringSubmatch(files[name], -1) {
				programs = append(programs, m[1])
			}
		}
		for _, program := range programs {
			known := tools[program] || slices.Contains(essential, program) || slices.Contains(provided, program)
			if !known && !startsInMachine(name, program) {
				bad = append(bad, fmt.Sprintf("%s: starts %s, which no list of tools in the Makefile installs", name, program))
			}
		}
	}
	return bad
}

// startsInMachine reports whether a test fetches the program's package itself.
func startsInMachine(name, program string) bool {
	for folder, programs := range inMachines {
		if strings.HasPrefix(name, folder+"/") && (programs[0] == anything || slices.Contains(programs, program)) {
			return true
		}
	}
	return false
}

// readScripts returns the test scripts of the module.
func readScripts(t *testing.T) map[string]string {
	t.Helper()
	scripts := make(map[string]string)
	names, err := fs.Glob(os.DirFS("."), "cmd/viablk/testdata/script/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatalf("%d test scripts were found: %v", len(names), err)
	}
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		scripts[name] = string(content)
	}
	return scripts
}

// namedList is where a list of tools has those of another one.
var namedList = regexp.MustCompile(`\$\((\w*TOOLS)\)`)

// checkLists returns the lists of tools that have those of a list that comes
// after them: make would take it for an empty one.
func checkLists(makefile string) []string {
	var bad []string
	before := make(map[string]bool)
	for _, list := range toolLists.FindAllStringSubmatch(makefile, -1) {
		for _, other := range namedList.FindAllStringSubmatch(list[2], -1) {
			if !before[other[1]] {
				bad = append(bad, fmt.Sprintf("%s has the tools of %s, which is defined after it", list[1], other[1]))
			}
		}
		before[list[1]] = true
	}
	return bad
}

// Every program that a test or script starts is installed by "make deps".
func TestMakefileInstallsTools(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(makefileTools(string(makefile))); n < 30 {
		t.Fatalf("only %d tools were found in the Makefile", n)
	}
	files := readScripts(t)
	maps.Copy(files, readTree(t))
	for _, complaint := range append(checkTools(string(makefile), files), checkLists(string(makefile))...) {
		t.Error(complaint)
	}
}

// A program that the Makefile does not install is found, however it is started.
func TestMissingToolIsFound(t *testing.T) {
	const makefile = "TOOLS := fio:fio \\\n\tip:iproute2\n"
	for name, content := range map[string]string{
		"via/a_test.go":         "package a\n\nfunc f() { exec.Command(\"telnet\", \"-x\") }\n",
		"via/b_test.go":         "package a\n\nfunc f() { exec.CommandContext(ctx, \"telnet\") }\n",
		"integration/c_test.go": "package a\n\nfunc f() { testbed.Requires(t, \"fio\", \"telnet\") }\n",
		"cmd/viablk/d.txtar":    "exec fio --x\n! exec telnet\n",
	} {
		want := []string{name + ": starts telnet, which no list of tools in the Makefile installs"}
		if got := checkTools(makefile, map[string]string{name: content}); !slices.Equal(got, want) {
			t.Errorf("%s: %q, not %q", name, got, want)
		}
	}
	good := map[string]string{"via/a_test.go": "package a\n\nfunc f() { exec.Command(\"ip\"); exec.Command(\"sh\") }\n"}
	if got := checkTools(makefile, good); len(got) != 0 {
		t.Errorf("the good file is refused: %q", got)
	}
}

// TestListOfLaterToolsIsFound: a list that comes too late for another one is
// found.
func TestListOfLaterToolsIsFound(t *testing.T) {
	const list = "SOME_TOOLS := ip:iproute2\n"
	for makefile, want := range map[string]int{list + "TOOLS := fio:fio \\\n\t$(SOME_TOOLS)\n": 0, "TOOLS := fio:fio \\\n\t$(SOME_TOOLS)\n" + list: 1} {
		if got := checkLists(makefile); len(got) != want {
			t.Errorf("%q: %q", makefile, got)
		}
	}
}

// asUser runs make as a normal user on a machine that has id, sort and the
// given programs, and returns what it prints and its exit code.
func asUser(t *testing.T, programs map[string]string, arguments ...string) (stdout, stderr string, code int) {
	t.Helper()
	bin := t.TempDir()
	programs = maps.Clone(programs)
	maps.Copy(programs, map[string]string{"id": "echo 1000", "sort": "exec /usr/bin/sort \"$@\""})
	for name, text := range programs {
		if err := os.WriteFile(path.Join(bin, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	makeProgram, err := exec.LookPath("make")
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(makeProgram, arguments...)
	c.Env = []string{"PATH=" + bin}
	var out, complaint strings.Builder
	c.Stdout, c.Stderr = &out, &complaint
	if err := c.Run(); err != nil && c.ProcessState == nil {
		t.Fatal(err)
	}
	return out.String(), complaint.String(), c.ProcessState.ExitCode()
}

// TestDepsSeesPastBuiltins: a program that the shell has built in, as kill, is
// missing all the same until there is a file of it.
func TestDepsSeesPastBuiltins(t *testing.T) {
	_, out, code := asUser(t, map[string]string{}, "-s", "deps", "TOOLS=kill:the-package-of-kill")
	if code != 2 || !strings.Contains(out, "missing the-package-of-kill") {
		t.Errorf("make deps without kill: %d\n%s", code, out)
	}
}

// TestUserIsToldWhatIsMissing: a user who may not install packages hears in one
// line which are missing, before anything is built, and a goal whose tools are
// there goes on.
func TestUserIsToldWhatIsMissing(t *testing.T) {
	touched := path.Join(t.TempDir(), "built")
	programs := map[string]string{"go": "/usr/bin/touch " + touched + "; exit 7", "apt-get": "/usr/bin/touch " + touched}
	ends := regexp.MustCompile(`^make: \*\*\* \[Makefile:\d+: deps\] Error 1\n$`)
	for _, goal := range []string{"test", "test-race", "test-vm", "deb", "build-verbs", "deps"} {
		stdout, stderr, code := asUser(t, programs, goal, "TOOLS=absent:procps /absent:fio absent:fio")
		said, rest, _ := strings.Cut(stderr, "\n")
		want := fmt.Sprintf(`make %s: needs root: missing fio procps: run "apt-get install fio procps" as root, or make %s as root`, goal, goal)
		if said != want || !ends.MatchString(rest) || stdout != "" || code != 2 {
			t.Errorf("make %s ends with %d, and says %q%q, want %q", goal, code, stdout, stderr, want)
		}
		if _, err := os.Stat(touched); err == nil {
			t.Fatalf("make %s builds or installs something first", goal)
		}
	}
	if _, stderr, code := asUser(t, programs, "test-race", "TOOLS=sort:coreutils"); code != 2 || !strings.Contains(stderr, "test-race] Error 7") {
		t.Errorf("with all tools make ends with %d: %s", code, stderr)
	}
	if _, err := os.Stat(touched); err != nil {
		t.Errorf("with all tools nothing is built: %v", err)
	}
}
