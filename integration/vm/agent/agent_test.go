package agent_test

import (
	"bytes"
	"crypto/rand"
	"net"
	"net/rpc"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/viablk/viablk/integration/vm/agent"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client is a client of an agent of this process.
type client struct {
	*testing.T
	*rpc.Client
}

// serve starts an agent. It is stopped, and must end, with the test.
func serve(t *testing.T, powerOff func()) client {
	t.Helper()
	here, there := net.Pipe()
	served := make(chan error)
	go func() { served <- agent.Serve(there, powerOff) }()
	c := client{t, rpc.NewClient(here)}
	t.Cleanup(func() {
		_ = c.Close() // the test may have closed it
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return c
}

// start starts a command.
func (c client) start(args ...string) int {
	c.Helper()
	var number int
	if err := c.Call("Agent.Start", args, &number); err != nil {
		c.Fatal(err)
	}
	return number
}

// finish reads a command to its end.
func (c client) finish(number int) agent.Output {
	c.Helper()
	var all agent.Output
	for !all.Ended {
		var out agent.Output
		if err := c.Call("Agent.Read", number, &out); err != nil {
			c.Fatal(err)
		}
		all.Stdout, all.Stderr = append(all.Stdout, out.Stdout...), append(all.Stderr, out.Stderr...)
		all.Ended, all.Code = out.Ended, out.Code
	}
	return all
}

func TestCommandEnds(t *testing.T) {
	c := serve(t, nil)
	for script, want := range map[string]struct {
		stdout, stderr string
		code           int
	}{
		"exit 0":                      {},
		"exit 7":                      {code: 7},
		"kill -9 $$":                  {code: 128 + 9},
		"echo a; echo b >&2; exit 1":  {"a\n", "b\n", 1},
		"cat":                         {}, // there is no input
		"printf 'no end of the line'": {stdout: "no end of the line"},
	} {
		out := c.finish(c.start("sh", "-c", script))
		if string(out.Stdout) != want.stdout || string(out.Stderr) != want.stderr || out.Code != want.code {
			t.Errorf("%s: got %q, %q, %d; want %+v", script, out.Stdout, out.Stderr, out.Code, want)
		}
	}
}

// A command has ended when its process has, even if another process has its
// output open.
func TestCommandLeavesProcessBehind(t *testing.T) {
	c := serve(t, nil)
	out := c.finish(c.start("sh", "-c", "sleep 1000 & echo $!"))
	pid, err := strconv.Atoi(strings.TrimSpace(string(out.Stdout)))
	if err != nil {
		t.Fatalf("got %q: %v", out.Stdout, err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Error("the process behind is not there:", err)
	}
}

// Output beyond the agent's buffer arrives, in order, as the test reads.
func TestLongOutput(t *testing.T) {
	c := serve(t, nil)
	out := c.finish(c.start("sh", "-c", "seq 1 300000; seq 300000 -1 1 >&2"))
	for name, stream := range map[string][]byte{"up": out.Stdout, "down": out.Stderr} {
		lines := strings.Fields(string(stream))
		if len(lines) != 300000 {
			t.Fatalf("%s: %d lines", name, len(lines))
		}
		for i, line := range lines {
			if want := strconv.Itoa(i + 1); name == "up" && line != want {
				t.Fatalf("line %d is %s", i, line)
			}
			if want := strconv.Itoa(300000 - i); name == "down" && line != want {
				t.Fatalf("line %d is %s", i, line)
			}
		}
	}
}

// Output arrives before the command has ended, and a signal reaches what the
// command started.
func TestSignalWhileRunning(t *testing.T) {
	c := serve(t, nil)
	number := c.start("sh", "-c", "sleep 1000 & echo up; wait")
	var out agent.Output
	if err := c.Call("Agent.Read", number, &out); err != nil || string(out.Stdout) != "up\n" || out.Ended {
		t.Fatalf("got %+v, %v", out, err)
	}
	s := agent.Signal{Number: number, Signal: syscall.SIGTERM}
	if err := c.Call("Agent.Signal", s, &agent.None{}); err != nil {
		t.Fatal(err)
	}
	if out = c.finish(number); out.Code != 128+int(syscall.SIGTERM) {
		t.Errorf("exit code %d", out.Code)
	}
	if err := c.Call("Agent.Signal", s, &agent.None{}); err != nil {
		t.Error("a signal to what has ended:", err)
	}
	if err := c.Call("Agent.Read", number, &out); err == nil || !strings.Contains(err.Error(), "there is no command") {
		t.Errorf("reading what has ended: %v", err)
	}
}

// Commands, and one whose output is not read, do not wait for each other.
func TestCommandsAtTheSameTime(t *testing.T) {
	c := serve(t, nil)
	unread := c.start("cat", "/dev/zero")
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	reader := c.start("cat", fifo)
	writer := c.start("sh", "-c", "echo through > "+fifo)
	if out := c.finish(reader); string(out.Stdout) != "through\n" {
		t.Errorf("got %q", out.Stdout)
	}
	c.finish(writer)
	var out agent.Output
	if err := c.Call("Agent.Read", unread, &out); err != nil || len(out.Stdout) == 0 {
		t.Errorf("%d bytes, %v", len(out.Stdout), err)
	}
	if err := c.Call("Agent.Signal", agent.Signal{Number: unread, Signal: syscall.SIGKILL}, &agent.None{}); err != nil {
		t.Error(err)
	}
	if out := c.finish(unread); out.Code != 128+9 {
		t.Errorf("exit code %d", out.Code)
	}
}

// When the stream ends, so do the commands: goleak sees one that does not.
func TestStreamEndsBeforeCommands(t *testing.T) {
	c := serve(t, nil)
	c.start("sleep", "1000")
	c.start("cat", "/dev/zero")
	read := c.Go("Agent.Read", c.start("sleep", "1000"), &agent.Output{}, nil)
	_ = c.Close()
	if <-read.Done; read.Error == nil {
		t.Error("a call on a stream that ended succeeded")
	}
}

func TestFilePieces(t *testing.T) {
	c := serve(t, nil)
	path := filepath.Join(t.TempDir(), "a", "b", "file")
	data := make([]byte, 100_001)
	_, _ = rand.Read(data)
	for at := 0; at < len(data); at += 30_000 {
		p := agent.Piece{Path: path, Offset: int64(at), Data: data[at:min(at+30_000, len(data))], Mode: 0o751}
		if err := c.Call("Agent.Write", p, &agent.None{}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("the file differs, or is not there: %v", err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o751 {
		t.Errorf("its mode is %v, %v", st.Mode(), err)
	}
	for _, p := range []agent.Piece{{Offset: 99_000, Length: 4096}, {Offset: 7, Length: 100}, {Offset: 200_000, Length: 1}} {
		p.Path = path
		var got []byte
		from, to := min(int(p.Offset), len(data)), min(int(p.Offset)+p.Length, len(data))
		if err := c.Call("Agent.Fetch", p, &got); err != nil || !bytes.Equal(got, data[from:to]) {
			t.Errorf("%d bytes at %d: got %d bytes, %v", p.Length, p.Offset, len(got), err)
		}
	}
	if err := c.Call("Agent.Write", agent.Piece{Path: path, Mode: 0o600}, &agent.None{}); err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(path); err != nil || st.Size() != 0 || st.Mode() != 0o600 {
		t.Errorf("written anew it has %d bytes and mode %v, %v", st.Size(), st.Mode(), err)
	}
}

func TestRefusals(t *testing.T) {
	c := serve(t, nil)
	var data []byte
	for want, err := range map[string]error{
		"executable file not found": c.Call("Agent.Start", []string{"no-such-program"}, new(int)),
		"the command is empty":      c.Call("Agent.Start", []string{}, new(int)),
		"there is no command 99":    c.Call("Agent.Read", 99, &agent.Output{}),
		"no such file":              c.Call("Agent.Fetch", agent.Piece{Path: "/no/such/file", Length: 1}, &data),
		"at most 1048576":           c.Call("Agent.Fetch", agent.Piece{Path: "/etc/passwd", Length: 1<<20 + 1}, &data),
		"is a directory":            c.Call("Agent.Write", agent.Piece{Path: "/"}, &agent.None{}),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestMachine(t *testing.T) {
	off := make(chan bool, 1)
	c := serve(t, func() { off <- true })
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	var got string
	if err := c.Call("Agent.Ready", agent.None{}, &got); err != nil || got != strings.TrimSpace(string(release)) {
		t.Errorf("the release is %q, %v; want %q", got, err, release)
	}
	if err := c.Call("Agent.PowerOff", agent.None{}, &agent.None{}); err != nil || !<-off {
		t.Errorf("power off: %v", err)
	}
}
