package nbdclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// endTimeout is how long a command has to end after SIGTERM: it may have an
// image to close.
const endTimeout = 30 * time.Second

// Command is an NBD server that a program was started as, with a socket that it
// finds as one of systemd's (LISTEN_FDS). It ends with its starter.
type Command struct {
	words   []string
	folder  string // of the socket; of this user alone
	process *os.Process
	ended   chan struct{}    // closed when the process has ended
	state   *os.ProcessState // once it has ended
}

// activate is a shell that becomes the program: the variable has its own
// process in it.
const activate = `LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=unknown exec "$@"`

// StartCommand starts a program with arguments. The caller closes it.
func StartCommand(words []string, log *slog.Logger) (c *Command, err error) {
	path, err := exec.LookPath(words[0])
	if err != nil {
		return nil, fmt.Errorf("start a server: %w", err)
	}
	c = &Command{words: words, ended: make(chan struct{})}
	if c.folder, err = os.MkdirTemp("", "viablk-run-"); err != nil {
		return nil, fmt.Errorf("start %s: %w", words[0], err)
	}
	socket, err := c.listen()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", words[0], err), os.RemoveAll(c.folder))
	}
	defer socket.Close() // the program has its own
	cmd := exec.Command("/bin/sh", append([]string{"-c", activate, "sh", path}, words[1:]...)...)
	cmd.Stderr, cmd.ExtraFiles, cmd.Env = os.Stderr, []*os.File{socket}, environment(os.Environ())
	// Signals of a terminal are for the starter, which has requests to finish.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	started := make(chan error)
	go c.routineWait(cmd, started, log)
	if err := <-started; err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", words[0], err), os.RemoveAll(c.folder))
	}
	return c, nil
}

// environment returns the variables that a program gets: those of its starter
// but what speaks to the service manager for it.
func environment(variables []string) []string {
	return slices.DeleteFunc(variables, func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == "NOTIFY_SOCKET" || name == "WATCHDOG_USEC" || name == "WATCHDOG_PID"
	})
}

// socketPath is where the program listens.
func (c *Command) socketPath() string { return filepath.Join(c.folder, "socket") }

// listen returns a socket that listens.
func (c *Command) listen() (*os.File, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: c.socketPath(), Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	return l.File()
}

// routineWait starts the program and waits for its end. The kernel ends the
// program with the thread that started it: that thread is the goroutine's.
func (c *Command) routineWait(cmd *exec.Cmd, started chan<- error, log *slog.Logger) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	c.process = cmd.Process
	started <- err
	if err != nil {
		return
	}
	_ = cmd.Wait() // the state says more
	c.state = cmd.ProcessState
	log.Info("the server of a disk has ended", "event", "command_ended", "command", c.words[0], "state", c.state)
	close(c.ended)
}

// Dial connects to the program.
func (c *Command) Dial(ctx context.Context) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", c.socketPath())
}

// Abandon closes a program that does not serve, and returns err with how the
// program ended, if it did so by itself.
func (c *Command) Abandon(err error) error {
	closed := c.Close()
	select {
	case <-c.ended:
	default: // not even by SIGKILL
		return errors.Join(err, closed)
	}
	status, ok := c.state.Sys().(syscall.WaitStatus)
	if ok && !(status.Signaled() && (status.Signal() == syscall.SIGTERM || status.Signal() == syscall.SIGKILL)) {
		err = fmt.Errorf("%s ended with %v: %w", c.words[0], c.state, err)
	}
	return errors.Join(err, closed)
}

// Close ends the program.
func (c *Command) Close() error {
	err := c.end()
	return errors.Join(err, os.RemoveAll(c.folder))
}

// end ends the process, by SIGTERM if it listens to that.
func (c *Command) end() error {
	for _, s := range []os.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := c.process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("end %s: %w", c.words[0], err)
		}
		select {
		case <-c.ended:
			return nil
		case <-time.After(endTimeout):
		}
	}
	return fmt.Errorf("end %s: process %d does not end", c.words[0], c.process.Pid)
}

// SplitCommand returns the words of a line as a shell has them, with quotes and
// backslashes but nothing else that a shell knows.
func SplitCommand(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord, quote := false, rune(0)
	escaped := false
	for _, r := range line {
		switch {
		case escaped:
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			escaped, inWord = true, true
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, inWord = r, true
		case r == ' ' || r == '\t':
			if inWord {
				words = append(words, word.String())
				word.Reset()
				inWord = false
			}
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	switch {
	case quote != 0 || escaped:
		return nil, errors.New("a quote or a backslash has no end")
	case inWord:
		words = append(words, word.String())
	}
	if len(words) == 0 {
		return nil, errors.New("the command is empty")
	}
	return words, nil
}
