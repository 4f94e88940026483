package nbdclient

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/viablk/viablk/internal/nbd"
)

func TestSplitCommand(t *testing.T) {
	for line, want := range map[string][]string{
		"qemu-nbd -f qcow2 image":     {"qemu-nbd", "-f", "qcow2", "image"},
		" \ta  b ":                    {"a", "b"},
		`a "b c" 'd e'f g\ h ""`:      {"a", "b c", "d ef", "g h", ""},
		`a "x'y" 'x"y' "x\"y" 'x\y'`:  {"a", "x'y", `x"y`, `x"y`, `x\y`},
		"a $HOME; b | c > d `e` * &&": {"a", "$HOME;", "b", "|", "c", ">", "d", "`e`", "*", "&&"},
	} {
		if got, err := SplitCommand(line); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q gives %q, %v, want %q", line, got, err, want)
		}
	}
	for _, line := range []string{"", "  ", `a "b`, "a 'b", `a\`} {
		if got, err := SplitCommand(line); err == nil {
			t.Errorf("%q gives %q", line, got)
		}
	}
}

// TestCommandEnds: a server that a disk started ends with it, and leaves
// nothing.
func TestCommandEnds(t *testing.T) {
	c, err := StartCommand([]string{"nbdkit", "-f", "memory", "1M"}, slog.New(slog.DiscardHandler))
	must(t, err)
	d := mustOpen(t, Config{Name: "nbdkit", Release: c.Close, Connect: func(ctx context.Context) (*nbd.Opened, error) {
		conn, err := c.Dial(ctx)
		if err != nil {
			return nil, err
		}
		return nbd.Client{}.Open(ctx, conn, "")
	}})
	t.Cleanup(func() { // after the queue
		must(t, d.Close())
		if err := c.process.Signal(syscall.Signal(0)); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("the server runs: %v", err)
		}
		if _, err := os.Stat(c.folder); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("its folder is there: %v", err)
		}
	})
	must(t, newClient(t, d).put(1, 0))
	line, err := os.ReadFile("/proc/" + strconv.Itoa(c.process.Pid) + "/cmdline")
	if err != nil || !strings.Contains(string(line), "nbdkit\x00-f\x00memory") {
		t.Errorf("process %d is %q, %v", c.process.Pid, line, err)
	}
}

// TestCommandIsGivenLittle: a program has its socket, and nothing else of its
// starter's descriptors or of the service manager.
func TestCommandIsGivenLittle(t *testing.T) {
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "VIABLK_LEFT"} {
		t.Setenv(name, "1")
	}
	held, err := os.CreateTemp(t.TempDir(), "held")
	must(t, err)
	defer held.Close()
	c, err := StartCommand([]string{"sleep", "1h"}, slog.New(slog.DiscardHandler))
	must(t, err)
	defer func() { must(t, c.Close()) }()
	proc := "/proc/" + strconv.Itoa(c.process.Pid)
	var variables []byte
	for { // until the shell has become the program, which has its name first
		line, err := os.ReadFile(proc + "/comm")
		must(t, err)
		if string(line) == "sleep\n" {
			variables, err = os.ReadFile(proc + "/environ")
			must(t, err)
			if len(variables) > 0 {
				break
			}
		}
		runtime.Gosched()
	}
	files, err := os.ReadDir(proc + "/fd")
	must(t, err)
	for _, f := range files {
		if to, err := os.Readlink(proc + "/fd/" + f.Name()); err == nil && to == held.Name() {
			t.Errorf("descriptor %s is a file of the starter", f.Name())
		}
	}
	socket, err := os.Readlink(proc + "/fd/3")
	if err != nil || !strings.HasPrefix(socket, "socket:") {
		t.Errorf("descriptor 3 is %q, %v", socket, err)
	}
	var given []string
	for _, v := range strings.Split(string(variables), "\x00") {
		name, _, _ := strings.Cut(v, "=")
		given = append(given, name)
	}
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		if slices.Contains(given, name) {
			t.Errorf("the program has %s", name)
		}
	}
	if !slices.Contains(given, "VIABLK_LEFT") || !slices.Contains(given, "LISTEN_PID") {
		t.Errorf("the program has %q", given)
	}
}
