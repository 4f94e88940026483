// Package agent serves a test inside a virtual machine: it runs commands, takes
// files and gives files, called over a byte stream.
//
// The service runs in the guest, its client in the test; net/rpc carries the
// calls, several at a time. No call but Read waits for a command, and Read
// returns only what there is, so that a command which writes faster than the
// host reads stands still instead of filling the guest's memory.
package agent

import (
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Name is the name of the service; its methods are called as Name.Method.
const Name = "Agent"

// Agent is the service. Its methods are called by net/rpc, concurrently.
type Agent struct {
	powerOff func()

	mu       sync.Mutex
	commands map[int]*command // by the number that Start gave
	last     int
	over     bool // the stream has ended
}

// Serve answers calls until the stream ends, and ends the commands that still
// run then. powerOff ends the machine; it need not return.
func Serve(stream io.ReadWriteCloser, powerOff func()) error {
	a := &Agent{powerOff: powerOff, commands: make(map[int]*command)}
	server := rpc.NewServer()
	if err := server.RegisterName(Name, a); err != nil {
		return fmt.Errorf("register the agent: %w", err)
	}
	server.ServeConn(&watched{stream, a.abandon}) // waits for the calls in progress
	return nil
}

// abandon ends all commands, so that Read returns.
func (a *Agent) abandon() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	for _, c := range a.commands {
		c.abandon()
	}
}

// watched is a stream that tells its end.
type watched struct {
	io.ReadWriteCloser
	ended func()
}

func (w *watched) Read(data []byte) (int, error) {
	n, err := w.ReadWriteCloser.Read(data)
	if err != nil {
		w.ended()
	}
	return n, err
}

// None is an argument or an answer that says nothing.
type None struct{}

// Ready answers as soon as the guest has booted: with the kernel's release.
func (a *Agent) Ready(_ None, release *string) error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("name the kernel: %w", err)
	}
	*release = unix.ByteSliceToString(u.Release[:])
	return nil
}

// Uptime answers with how long the guest has run, by its own clock.
func (a *Agent) Uptime(_ None, uptime *time.Duration) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	*uptime = time.Duration(now.Nano())
	return nil
}

// Start starts a command and answers with its number.
func (a *Agent) Start(args []string, number *int) error {
	c, err := startCommand(args)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		c.abandon()
		return errors.New("the stream has ended")
	}
	a.last++
	a.commands[a.last] = c
	*number = a.last
	return nil
}

// Output is what a command wrote since the last Read, or how it ended.
type Output struct {
	Stdout, Stderr []byte
	Ended          bool
	Code           int // the exit code; 128 more than the signal that ended it
}

// Read waits for output or the end of a command. Read returns each byte once,
// and forgets the number of a command that ended.
func (a *Agent) Read(number int, out *Output) error {
	c, err := a.command(number)
	if err != nil {
		return err
	}
	*out = c.read()
	if out.Ended {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.commands, number)
	}
	return nil
}

// Signal is a signal to a command and to what it started.
type Signal struct {
	Number int // of the command
	Signal syscall.Signal
}

// Signal sends a signal. A command that ended gets none, which is no error.
func (a *Agent) Signal(s Signal, _ *None) error {
	c, err := a.command(s.Number)
	if err != nil {
		return nil
	}
	return c.signal(s.Signal)
}

// command finds a command.
func (a *Agent) command(number int) (*command, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, ok := a.commands[number]
	if !ok {
		return nil, fmt.Errorf("there is no command %d", number)
	}
	return c, nil
}

// Piece is a part of a file.
type Piece struct {
	Path   string
	Offset int64       // bytes
	Data   []byte      // to write
	Length int         // bytes to read; at most maximumPiece
	Mode   os.FileMode // permissions of a file that is written
}

// maximumPiece bounds what one call reads, bytes.
const maximumPiece = 1 << 20

// Write writes a piece of a file. The piece at offset 0 makes the file, or
// makes it empty.
func (a *Agent) Write(p Piece, _ *None) error {
	flags := os.O_WRONLY
	if p.Offset == 0 {
		flags |= os.O_CREATE | os.O_TRUNC
		if err := os.MkdirAll(filepath.Dir(p.Path), 0o755); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(p.Path, flags, p.Mode)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(p.Data, p.Offset)
	if err == nil && p.Offset == 0 {
		err = f.Chmod(p.Mode)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// Fetch reads a piece of a file. It is short where the file ends.
func (a *Agent) Fetch(p Piece, data *[]byte) error {
	if p.Length < 0 || p.Length > maximumPiece {
		return fmt.Errorf("%d bytes are asked for, at most %d are allowed", p.Length, maximumPiece)
	}
	f, err := os.Open(p.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	*data, err = io.ReadAll(io.NewSectionReader(f, p.Offset, int64(p.Length)))
	return err
}

// PowerOff ends the machine in good order. The answer may not arrive.
func (a *Agent) PowerOff(None, *None) error {
	a.powerOff()
	return nil
}
