package main

import (
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/pki"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"viablk": main})
}

// waitTimeout bounds how long a script waits for something that will happen.
const waitTimeout = 2 * time.Minute

// deadlineMargin is left of the test's own time to end scripts that hang.
const deadlineMargin = 30 * time.Second

// The scripts state the contract of the command line: what is printed where,
// and the exit code.
func TestScript(t *testing.T) {
	var deadline time.Time // none without -timeout
	if end, ok := t.Deadline(); ok {
		deadline = end.Add(-deadlineMargin)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		Deadline:            deadline,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("XDG_RUNTIME_DIR", env.WorkDir)
			env.Setenv("TMPDIR", env.WorkDir+"/.tmp")
			// Under the race detector a process sleeps a second before it
			// exits.
			env.Setenv("GORACE", "atexit_sleep_ms=0")
			return os.MkdirAll(env.WorkDir+"/.tmp", 0o700)
		},
		Condition: func(name string) (bool, error) {
			if name != "root" {
				return false, fmt.Errorf("unknown condition %q", name)
			}
			return os.Geteuid() == 0, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"until":   until,
			"exits":   exits,
			"capture": capture,
			"damage":  damage,
			"expired": expired,
		},
	})
}

// until REGEXP COMMAND… runs a command until its standard output matches.
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until REGEXP COMMAND…")
	}
	want := regexp.MustCompile(args[0])
	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(5 * time.Millisecond) {
		err := ts.Exec(args[1], args[2:]...)
		if want.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%q never came; the last answer was %v", args[0], err)
		}
	}
}

// logRecord is a line of the log, which shares standard error with the
// complaint.
var logRecord = regexp.MustCompile(`(?m)^time=\S+ level=.*\n`)

// exits CODE COMMAND… runs a command, which must have the exit code and print
// at most one line on standard error beside its log.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND…")
	}
	got := "0"
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		code := regexp.MustCompile(`^exit status (\d+)$`).FindStringSubmatch(err.Error())
		if code == nil {
			ts.Fatalf("%v", err)
		}
		got = code[1]
	}
	stderr := ts.ReadFile("stderr")
	if got != args[0] {
		ts.Fatalf("exit code %s, not %s; standard error: %s", got, args[0], stderr)
	}
	if !regexp.MustCompile(`^([^\n]*\n)?$`).MatchString(logRecord.ReplaceAllString(stderr, "")) {
		ts.Fatalf("standard error is not one line: %q", stderr)
	}
}

// capture VARIABLE REGEXP sets a variable to the first group of the regular
// expression in the last standard output.
func capture(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: capture VARIABLE REGEXP")
	}
	got := regexp.MustCompile(args[1]).FindStringSubmatch(ts.ReadFile("stdout"))
	if len(got) != 2 {
		ts.Fatalf("%q does not match", args[1])
	}
	ts.Setenv(args[0], got[1])
}

// expired ca FOLDER, expired list FOLDER, and expired server|client FOLDER NAME
// OUT make what viablk pki init, revoke and issue make, but it ends at once.
func expired(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: expired ca|list|server|client FOLDER [NAME OUT]")
	}
	folder := ts.MkAbs(args[1])
	var err error
	switch {
	case args[0] == "ca":
		err = pki.Init(folder, "expired", time.Nanosecond) // times are whole seconds
	case args[0] == "list":
		_, err = pki.Revoke(folder, "", time.Nanosecond)
	case len(args) == 4:
		err = pki.Issue(folder, pki.Role(args[0]), args[2:3], ts.MkAbs(args[3]), time.Nanosecond)
	default:
		ts.Fatalf("usage: expired server|client FOLDER NAME OUT")
	}
	ts.Check(err)
}

// damage FILE [newer] makes the identity record of a disk one that viablk
// refuses: one that is not whole, or of a newer version.
func damage(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 || len(args) == 2 && args[1] != "newer" {
		ts.Fatalf("usage: damage FILE [newer]")
	}
	record := []byte("not a record")
	if len(args) == 2 {
		record = []byte("viablkid\x02\x00\x00\x00")
	}
	ts.Check(unix.Setxattr(ts.MkAbs(args[0]), "user.viablk.identity", record, unix.XATTR_REPLACE))
}
