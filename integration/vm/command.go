package vm

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/viablk/viablk/integration/vm/agent"
)

// Result is how a command ended.
type Result struct {
	Args           []string
	Code           int // the exit code; 128 more than the signal that ended it
	Stdout, Stderr string
	Err            error // why there is no exit code, if there is none
}

// OK reports whether the command succeeded.
func (r Result) OK() bool { return r.Err == nil && r.Code == 0 }

// String tells everything, for messages.
func (r Result) String() string {
	how := fmt.Sprintf("exit code %d", r.Code)
	if r.Err != nil {
		how = r.Err.Error()
	}
	return fmt.Sprintf("%s: %s\n%s%s", strings.Join(r.Args, " "), how, r.Stdout, r.Stderr)
}

// Command is a command that runs in a machine. Its methods may be called
// concurrently.
type Command struct {
	v      *VM
	number int
	ended  chan struct{}

	mu             sync.Mutex
	result         Result // without output
	stdout, stderr []byte
	changed        chan struct{} // closed and replaced when anything above changes
}

// outputLimit is how much a command may write, bytes.
const outputLimit = 64 << 20

// startLimit is how long the start of a command may take.
const startLimit = time.Minute

// killLimit is how long a command may take to end once it is killed.
const killLimit = time.Minute

// Run runs a command to its end, which must come before that of ctx: then it is
// killed, with all that it started.
func (v *VM) Run(ctx context.Context, args ...string) Result {
	c, err := v.Start(ctx, args...)
	if err != nil {
		return Result{Args: args, Err: err}
	}
	return c.Wait()
}

// mustLimit is how long a command of Must may run.
const mustLimit = 3 * time.Minute

// Must runs a command, which must succeed within mustLimit, and returns its
// standard output. It is called by the test's goroutine only.
func (v *VM) Must(args ...string) string {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(v.t.Context(), mustLimit)
	defer cancel()
	r := v.Run(ctx, args...)
	if !r.OK() {
		v.t.Fatal(r)
	}
	return r.Stdout
}

// Await runs a command again and again until it succeeds and its standard
// output contains a text. It waits for what a server does not say: that it
// listens.
//
//	v.Await(ctx, ":18515 ", "netstat", "-ltn")
//	v.Await(ctx, "LISTEN", "rdma", "resource", "show", "cm_id")
func (v *VM) Await(ctx context.Context, text string, args ...string) error {
	for last := (Result{}); ; {
		r := v.Run(ctx, args...)
		if r.OK() && strings.Contains(r.Stdout, text) {
			return nil
		}
		if r.Err != nil {
			return fmt.Errorf("wait for %q in the output of %v: %w; before: %v", text, args, r.Err, last)
		}
		last = r
		select {
		case <-time.After(pause):
		case <-ctx.Done(): // Run says so
		}
	}
}

// pause is between two attempts of Await.
const pause = 10 * time.Millisecond

// Start starts a command, which is killed when ctx ends. Processes that outlive
// it cannot write any more: long-lived programs are commands of their own.
func (v *VM) Start(ctx context.Context, args ...string) (*Command, error) {
	c := &Command{v: v, ended: make(chan struct{}), changed: make(chan struct{}), result: Result{Args: args}}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	// Without its number, a command that was started could not be killed.
	starting, cancel := context.WithTimeout(context.WithoutCancel(ctx), startLimit)
	defer cancel()
	if err := v.call(starting, "Start", args, &c.number); err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.cause != nil {
		return nil, v.cause
	}
	v.commands.Go(func() { c.routineRead(ctx) })
	return c, nil
}

// routineRead takes the output of the command until it ends. When ctx ends it
// kills the command.
func (c *Command) routineRead(ctx context.Context) {
	defer close(c.ended)
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(killLimit, cancel)
		_ = c.Signal(syscall.SIGKILL)
	})
	defer stop()
	for {
		var out agent.Output
		err := c.v.call(life, "Read", c.number, &out)
		if err == nil && c.written() > outputLimit {
			err = fmt.Errorf("killed: it wrote more than %d bytes", outputLimit)
			_ = c.Signal(syscall.SIGKILL)
		}
		if ctx.Err() != nil && (err != nil || out.Ended) {
			err = fmt.Errorf("killed: %w", context.Cause(ctx))
		}
		if err != nil {
			c.note(agent.Output{}, err) // the answer may still arrive in out
			return
		}
		if c.note(out, nil); out.Ended {
			return
		}
	}
}

// note adds to the result.
func (c *Command) note(out agent.Output, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stdout = append(c.stdout, out.Stdout...)
	c.stderr = append(c.stderr, out.Stderr...)
	c.result.Code, c.result.Err = out.Code, err
	close(c.changed)
	c.changed = make(chan struct{})
}

// Wait waits for the end of the command.
func (c *Command) Wait() Result {
	<-c.ended
	return c.snapshot()
}

// Output returns what the command wrote up to now to its standard output.
func (c *Command) Output() string { return c.snapshot().Stdout }

// snapshot returns the result so far.
func (c *Command) snapshot() Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.result
	r.Stdout, r.Stderr = string(c.stdout), string(c.stderr)
	return r
}

// written returns how much the command wrote up to now, bytes.
func (c *Command) written() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.stdout) + len(c.stderr)
}

// Await waits until the command has written a text to its standard output. It
// is an error if the command, or ctx, ends before.
func (c *Command) Await(ctx context.Context, text string) error {
	for {
		c.mu.Lock()
		changed, written := c.changed, bytes.Contains(c.stdout, []byte(text))
		c.mu.Unlock()
		if written {
			return nil
		}
		select {
		case <-changed:
			continue
		default:
		}
		select {
		case <-changed:
		case <-c.ended:
			return fmt.Errorf("it ended without %q: %v", text, c.snapshot())
		case <-ctx.Done():
			return fmt.Errorf("wait for %q: %w: %v", text, context.Cause(ctx), c.snapshot())
		}
	}
}

// Signal sends a signal to the command and to what it started. A command that
// ended gets none, which is no error.
func (c *Command) Signal(s syscall.Signal) error {
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	return c.v.call(ctx, "Signal", agent.Signal{Number: c.number, Signal: s}, &agent.None{})
}
