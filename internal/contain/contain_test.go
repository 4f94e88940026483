package contain

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/ratelog"
)

// run calls f and returns its panic, or nil.
func run(f func()) (p *Panic) {
	defer func() {
		if value := recover(); value != nil {
			p = Caught(value)
		}
	}()
	f()
	return nil
}

func TestCaught(t *testing.T) {
	before := Count()
	if p := run(func() {}); p != nil || Count() != before {
		t.Errorf("%v of a function without panic", p)
	}
	var m map[string]int
	p := run(func() { m["a"]++ })
	if p == nil || Count() != before+1 || !strings.Contains(string(p.Stack), "TestCaught") {
		t.Fatalf("caught %v, count %d", p, Count()-before)
	}
	if p := run(func() { var x *int; *x = 1 }); p == nil {
		t.Error("nil is no address")
	}
	var text bytes.Buffer
	lines = ratelog.Peers{} // other tests log too
	p.Log(slog.New(slog.NewTextHandler(&text, nil)), "connection ended", "peer", "a")
	for _, want := range []string{"level=ERROR", "peer=a", "assignment to entry in nil map", "TestCaught"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in %s", want, text.String())
		}
	}
}

func TestCall(t *testing.T) {
	var text bytes.Buffer
	lines = ratelog.Peers{}
	log, before := slog.New(slog.NewTextHandler(&text, nil)), Count()
	failure := errors.New("failure")
	if err := Call(log, "it has ended", func() error { return failure }); err != failure || text.Len() != 0 || Count() != before {
		t.Errorf("%v, %s", err, text.String())
	}
	err := Call(log, "it has ended", func() error { panic("half done") })
	if err == nil || err.Error() != "panic: half done" || !strings.Contains(text.String(), "it has ended") || Count() != before+1 {
		t.Errorf("%v, %s", err, text.String())
	}
}

// TestLinesAreLimited: a peer that finds a panic does not fill the log.
func TestLinesAreLimited(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	lines = ratelog.Peers{}
	p := run(func() { panic("again") })
	for range 1000 {
		p.Log(log, "connection ended")
	}
	if n := strings.Count(text.String(), "\n"); n == 0 || n > 40 {
		t.Errorf("%d lines", n)
	}
}

// The panics that end the process, by the name that the child gets.
var fatal = map[string]func(){
	"shared": func() {
		defer Shared()
		panic("half changed")
	},
	"address": func() {
		debug.SetPanicOnFault(true)
		page, err := unix.Mmap(-1, 0, 4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err == nil {
			page[0] = 1
		}
	},
}

const childVariable = "VIABLK_CONTAIN_CHILD"

func TestWhatEndsTheProcess(t *testing.T) {
	if f := fatal[os.Getenv(childVariable)]; f != nil {
		run(f)
		os.Exit(0)
	}
	for name := range fatal {
		cmd := exec.Command(os.Args[0], "-test.run=^TestWhatEndsTheProcess$")
		cmd.Env = append(os.Environ(), childVariable+"="+name)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "the process ends") {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}
