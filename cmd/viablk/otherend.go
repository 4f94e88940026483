package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/viablk/viablk/cmd/viablk/internal/bench"
	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/internal/netns"
)

// How long the other end has to begin, and to end; less after a failure, for
// then it may be the one that hangs.
const (
	peerTimeout   = 5 * time.Second
	failedTimeout = 200 * time.Millisecond
)

// otherEnd is the other end of a benchmark of this process's own.
type otherEnd struct {
	folder    string // of the socket; removed at the end
	uri       config.URI
	processor *int             // where it runs; nil for anywhere
	far       *netns.Namespace // where its process runs; nil for here
	network   netip.Addr       // of the yardsticks; invalid for none
	eventfds  [2]*os.File
	begun     bool          // it runs, or has ended
	stop      func()        // makes it end
	kill      func()        // if it does not; nil if that cannot be
	ended     chan struct{} // closed when it has ended
	err       error         // why; valid then
}

// startOtherEnd starts the other end, in a process of its own or not. cancel is
// called when it ends.
func (a *app) startOtherEnd(ctx context.Context, o *benchOptions, cancel func(error)) (*otherEnd, error) {
	e := &otherEnd{ended: make(chan struct{}), processor: o.other}
	var err error
	if e.folder, err = os.MkdirTemp("", "viablk-bench-"); err != nil {
		return nil, fmt.Errorf("make a folder for the socket: %w", err)
	}
	if err := e.place(ctx, o); err != nil {
		return nil, errors.Join(err, e.release(failedTimeout))
	}
	for i := range e.eventfds {
		fd, err := eventfd.New()
		if err != nil {
			return nil, errors.Join(err, e.release(failedTimeout))
		}
		e.eventfds[i] = os.NewFile(uintptr(fd), "eventfd")
	}
	if o.oneProcess {
		err = e.startThread(ctx, a.newBenchLog(), cancel)
	} else {
		err = e.startProcess(cancel)
	}
	if err != nil {
		return nil, errors.Join(err, e.release(failedTimeout))
	}
	return e, nil
}

// place chooses where the other end is.
func (e *otherEnd) place(ctx context.Context, o *benchOptions) (err error) {
	host := netip.Addr{}
	if o.far >= 0 {
		f := os.NewFile(uintptr(o.far), "network namespace")
		defer f.Close()
		if e.far, err = netns.Of(f); err != nil {
			return err
		}
		host = netns.FarIPv4
	}
	if e.uri, err = privateURI(o.provider, e.folder, host); err != nil {
		return err
	}
	e.uri.NoOffloads = o.noOffloads
	if e.network = host; o.far < 0 {
		e.network, err = networkOf(ctx, e.uri)
	}
	return err
}

// privateURI returns an unused address, at a host if that is
// valid.
func privateURI(provider, folder string, host netip.Addr) (config.URI, error) {
	name := "localhost"
	switch {
	case host.IsValid():
		name = host.String()
	case provider == "verbs":
		var err error
		if name, err = rdmaAddress(); err != nil {
			return config.URI{}, err
		}
	}
	if strings.ContainsRune(name, ':') {
		name = "[" + name + "]"
	}
	text := fmt.Sprintf("via+%s://%s:%d/", provider, name, 20000+os.Getpid()%20000)
	if provider == "shm" {
		text = config.URI{Provider: provider, Socket: filepath.Join(folder, "bench.sock")}.String()
	}
	u, err := config.ParseURI(text)
	if err != nil {
		return u, usage("--provider %q: %v", provider, err)
	}
	return u, nil
}

// here and there return the eventfds as each end sees them.
func (e *otherEnd) here() *bench.Eventfds {
	return &bench.Eventfds{Private: int(e.eventfds[0].Fd()), Peer: int(e.eventfds[1].Fd())}
}

func (e *otherEnd) there() *bench.Eventfds {
	return &bench.Eventfds{Private: int(e.eventfds[1].Fd()), Peer: int(e.eventfds[0].Fd())}
}

// startThread runs the other end in this process.
func (e *otherEnd) startThread(ctx context.Context, log *slog.Logger, cancel func(error)) error {
	serving, stop := context.WithCancel(ctx)
	e.stop, e.begun = stop, true
	ready := make(chan struct{})
	go func() {
		defer close(e.ended)
		e.err = serveBench(serving, e.uri, log, func(s *bench.Server) error {
			s.Eventfds, s.Processor, s.Network = e.there(), e.processor, e.network
			close(ready)
			return nil
		})
		cancel(fmt.Errorf("the other end stopped: %w", e.err))
	}()
	select {
	case <-ready:
		return nil
	case <-e.ended:
		return e.err
	}
}

// startProcess runs this program again as the other end.
func (e *otherEnd) startProcess(cancel func(error)) error {
	path, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.Command(path, "bench", "peer", e.uri.String())
	if e.processor != nil {
		cmd.Args = append(cmd.Args, "--processor", strconv.Itoa(*e.processor))
	}
	if e.network.IsValid() {
		cmd.Args = append(cmd.Args, "--network", e.network.String())
	}
	cmd.Args[0] = os.Args[0]
	cmd.ExtraFiles = []*os.File{e.eventfds[1], e.eventfds[0]}
	var complaint lastLine
	cmd.Stderr = &complaint
	input, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("start the other end: %w", err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start the other end: %w", err)
	}
	start := cmd.Start
	if e.far != nil {
		start = func() error { return e.far.Do(cmd.Start) } // it ends with its standard input, and cleans up
	}
	if err := start(); err != nil {
		return fmt.Errorf("start the other end: %w", err)
	}
	e.stop = func() { _ = input.Close() }
	e.kill, e.begun = func() { _ = cmd.Process.Kill() }, true
	ready := make(chan bool, 1)
	go func() {
		defer close(e.ended)
		line, _ := bufio.NewReader(output).ReadString('\n')
		ready <- line != ""
		if e.err = cmd.Wait(); complaint.String() != "" {
			e.err = errors.New(complaint.String())
		}
		if e.err == nil {
			e.err = errors.New("it ended before the measurement")
		}
		cancel(fmt.Errorf("the other process stopped: %w", e.err))
	}()
	select {
	case ok := <-ready:
		if ok {
			return nil
		}
		<-e.ended
		return fmt.Errorf("start the other end: %w", e.err)
	case <-time.After(peerTimeout):
		return errors.New("the other process does not begin")
	}
}

// release ends the other end, within timeout if it can be killed, and removes
// what it used.
func (e *otherEnd) release(timeout time.Duration) error {
	if e.begun {
		e.stop()
		select {
		case <-e.ended:
		case <-time.After(timeout):
			if e.kill != nil {
				e.kill()
			}
			<-e.ended
		}
	}
	if e.far != nil {
		_ = e.far.Close() // what ran there has ended
	}
	for _, f := range e.eventfds {
		if f != nil {
			f.Close()
		}
	}
	if err := os.RemoveAll(e.folder); err != nil {
		return fmt.Errorf("remove the folder of the socket: %w", err)
	}
	return nil
}

// lastLine keeps the last line that was written.
type lastLine struct {
	mu sync.Mutex
	// +checklocks:mu
	text string
}

// Write keeps p.
func (l *lastLine) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := strings.TrimSpace(string(p)); s != "" {
		l.text = s[strings.LastIndexByte(s, '\n')+1:]
	}
	return len(p), nil
}

// String returns the line without the name of the program.
func (l *lastLine) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimPrefix(l.text, "viablk: ")
}
