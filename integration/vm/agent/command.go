package agent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// command is a process that a test started, with its unread output.
type command struct {
	process *os.Process

	mu             sync.Mutex
	changed        *sync.Cond // of anything below
	stdout, stderr []byte
	ended          bool
	code           int
	abandoned      bool // no call will read
}

// maximumHeld is how much of each stream waits for Read before the command has
// to, bytes.
const maximumHeld = 256 << 10

// startCommand starts a command in a process group of its own, without input.
func startCommand(args []string) (*command, error) {
	if len(args) == 0 {
		return nil, errors.New("the command is empty")
	}
	stdout, stdoutEnd, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer stdoutEnd.Close()
	stderr, stderrEnd, err := os.Pipe()
	if err != nil {
		_ = stdout.Close()
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer stderrEnd.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = stdoutEnd, stderrEnd
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		_, _ = stdout.Close(), stderr.Close()
		return nil, err
	}
	c := &command{process: cmd.Process}
	c.changed = sync.NewCond(&c.mu)
	go c.routineWait(cmd, stdout, stderr)
	return c, nil
}

// routineWait waits for the end of the command and of its output.
func (c *command) routineWait(cmd *exec.Cmd, stdout, stderr *os.File) {
	var copies sync.WaitGroup
	copies.Go(func() { c.copy(&c.stdout, stdout) })
	copies.Go(func() { c.copy(&c.stderr, stderr) })
	_ = cmd.Wait() // the state says it
	code := cmd.ProcessState.ExitCode()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		code = 128 + int(status.Signal())
	}
	// All that the command wrote is in the pipes. Processes it left running may
	// keep them open for ever; the agent does not wait for them.
	_, _ = stdout.SetReadDeadline(time.Now()), stderr.SetReadDeadline(time.Now())
	copies.Wait()
	_, _ = stdout.Close(), stderr.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended, c.code = true, code
	c.changed.Broadcast()
}

// copy takes what arrives in a pipe until it ends, or until its deadline has
// passed and it is empty.
func (c *command) copy(held *[]byte, pipe *os.File) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := pipe.Read(buffer)
		c.hold(held, buffer[:n])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		} else if err != nil {
			return
		}
	}
	raw, err := pipe.SyscallConn()
	if err != nil || pipe.SetReadDeadline(time.Time{}) != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		for {
			n, err := syscall.Read(int(fd), buffer)
			if n <= 0 && err != syscall.EINTR {
				return true
			}
			c.hold(held, buffer[:max(n, 0)])
		}
	})
}

// hold keeps output for Read, once there is room.
func (c *command) hold(held *[]byte, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(*held) >= maximumHeld && !c.abandoned {
		c.changed.Wait()
	}
	*held = append(*held, data...)
	c.changed.Broadcast()
}

// read waits for output or the end.
func (c *command) read() Output {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.stdout) == 0 && len(c.stderr) == 0 && !c.ended {
		c.changed.Wait()
	}
	out := Output{Stdout: c.stdout, Stderr: c.stderr, Ended: c.ended, Code: c.code}
	c.stdout, c.stderr = nil, nil
	c.changed.Broadcast()
	return out
}

// signal sends a signal to the command's process group.
func (c *command) signal(s syscall.Signal) error {
	if err := syscall.Kill(-c.process.Pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal %v to process group %d: %w", s, c.process.Pid, err)
	}
	return nil
}

// abandon ends the command; its test is gone.
func (c *command) abandon() {
	_ = c.signal(syscall.SIGKILL)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abandoned = true
	c.changed.Broadcast()
}
