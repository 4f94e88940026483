package integration

import (
	"bufio"
	"io"
	"strings"
	"testing"
	"time"
)

// client is an NBD client that stays connected and does what it is told.
type client struct {
	*tool
	t       testing.TB
	stdin   io.WriteCloser
	answers chan string
}

// answerLimit is how long a client waits for what must not hang.
const answerLimit = 10 * time.Second

// connect connects a client; it leaves in order when the test ends.
func connect(t testing.TB, uri string) *client {
	t.Helper()
	requires(t, "nbdsh")
	c := newTool(nil, locate("python3"), "testdata/client.py", uri)
	k := &client{tool: c, t: t, answers: make(chan string, 1)}
	var err error
	k.stdin, err = c.cmd.StdinPipe()
	must(t, err)
	c.cmd.Stdout = nil
	stdout, err := c.cmd.StdoutPipe()
	must(t, err)
	c.start(t, startCommand)
	go func() {
		defer close(k.answers)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			k.answers <- lines.Text()
		}
	}()
	t.Cleanup(k.leave)
	k.expect("ok")
	return k
}

// ask sends a command whose answer must be this one.
func (k *client) ask(command, answer string) {
	k.t.Helper()
	k.send(command)
	k.expect(answer)
}

func (k *client) send(command string) {
	k.t.Helper()
	_, err := io.WriteString(k.stdin, command+"\n")
	must(k.t, err)
}

// expect waits for an answer.
func (k *client) expect(answer string) {
	k.t.Helper()
	select {
	case got := <-k.answers:
		if got != answer {
			k.t.Fatalf("a client got %q, not %q\n%s", got, answer, k.output())
		}
	case <-time.After(answerLimit):
		k.kill()
		k.t.Fatalf("a client hangs: no answer within %v", answerLimit)
	}
}

// leave disconnects the client.
func (k *client) leave() {
	_ = k.stdin.Close() // once more is no harm
	for range k.answers {
	}
	if code := k.wait(k.t, answerLimit); code != 0 && code != -1 && !strings.Contains(k.output(), "nbd_shutdown") {
		k.t.Errorf("a client: exit code %d\n%s", code, k.output())
	}
}
