package testbed

import (
	"bufio"
	_ "embed"
	"io"
	"strings"
	"testing"
	"time"
)

// clientProgram is what python3 runs for a client.
//
//go:embed client.py
var clientProgram string

// client is an NBD client that stays connected and runs the commands of the
// test.
type client struct {
	*Tool
	t       testing.TB
	stdin   io.WriteCloser
	answers chan string
}

// AnswerLimit is how long a client waits for what must not hang.
const AnswerLimit = time.Minute

// Connect connects a client; it leaves in order when the test ends.
func Connect(t testing.TB, uri string) *client {
	t.Helper()
	Requires(t, "nbdsh")
	c := NewTool(nil, Locate("python3"), "-c", clientProgram, uri)
	k := &client{Tool: c, t: t, answers: make(chan string, 1)}
	var err error
	k.stdin, err = c.Cmd.StdinPipe()
	Must(t, err)
	c.Cmd.Stdout = nil
	stdout, err := c.Cmd.StdoutPipe()
	Must(t, err)
	c.Start(t, StartCommand)
	go func() {
		defer close(k.answers)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			k.answers <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		if t.Failed() {
			k.Kill() // it may wait for an answer that comes late or never
		}
		k.Disconnect()
	})
	k.Expect("ok")
	return k
}

// Ask sends a command whose answer must be this one.
func (k *client) Ask(command, answer string) {
	k.t.Helper()
	k.Send(command)
	k.Expect(answer)
}

func (k *client) Send(command string) {
	k.t.Helper()
	_, err := io.WriteString(k.stdin, command+"\n")
	Must(k.t, err)
}

// Expect waits for an answer.
func (k *client) Expect(answer string) {
	k.t.Helper()
	if got := k.Answer(); got != answer {
		k.t.Fatalf("a client got %q, not %q\n%s", got, answer, k.Output())
	}
}

// Answer waits for an answer, whatever it is.
func (k *client) Answer() string {
	k.t.Helper()
	select {
	case got := <-k.answers:
		return got
	case <-time.After(AnswerLimit):
		k.Kill()
		k.t.Fatalf("a client hangs: no answer within %v", AnswerLimit)
		return ""
	}
}

// Disconnect disconnects the client.
func (k *client) Disconnect() {
	_ = k.stdin.Close() // once more is no harm
	for range k.answers {
	}
	if code := k.Wait(k.t, AnswerLimit); code != 0 && code != -1 && !strings.Contains(k.Output(), "nbd_shutdown") {
		k.t.Errorf("a client: exit code %d\n%s", code, k.Output())
	}
}
