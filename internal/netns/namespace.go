// Package netns makes network namespaces for load that must not reach a real
// network, and joins two of them by a cable. It knows addresses and processes,
// and nothing of what is sent.
//
// Namespaces have no names: they live as long as a thread of this process, a
// process that was started in them, or an open file keeps them. Nothing is left
// when the process is killed. To look inside one,
// "nsenter --net=/proc/PID/fd/N" takes the number of its [Namespace.File].
//
// All of it needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN.
package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrClosed is the error of what is asked of a closed namespace.
var ErrClosed = errors.New("the network namespace is closed")

// Namespace is a network namespace with a thread in it. It is safe for
// concurrent use; one function runs at a time.
type Namespace struct {
	file  *os.File
	calls chan func()
	stop  chan struct{}
	once  sync.Once
	ended chan struct{} // closed when the thread is gone
}

// New makes an empty namespace: its loopback device is down.
func New() (*Namespace, error) {
	return start("make a network namespace", func() error { return unix.Unshare(unix.CLONE_NEWNET) })
}

// Of returns a namespace that a file descriptor of a process's ns/net keeps.
// The file is not kept.
func Of(f *os.File) (*Namespace, error) {
	return start("enter a network namespace", func() error {
		return unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
	})
}

// start starts the thread of a namespace, which enters it.
func start(what string, join func() error) (*Namespace, error) {
	n := &Namespace{calls: make(chan func()), stop: make(chan struct{}), ended: make(chan struct{})}
	entered := make(chan error, 1)
	offMainThread(func() {
		defer close(n.ended)
		err := join()
		if err == nil {
			n.file, err = os.Open("/proc/thread-self/ns/net")
		}
		entered <- err
		if err == nil {
			n.serve()
		}
	})
	if err := <-entered; err != nil {
		<-n.ended
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return n, nil
}

// offMainThread starts f on a thread that ends with it. The runtime cannot end
// the main thread, which would stay where f left it: it is held until f has
// another.
func offMainThread(f func()) {
	placed := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			offMainThread(f)
			runtime.UnlockOSThread()
			close(placed)
			return
		}
		close(placed)
		f()
	}()
	<-placed
}

// serve runs functions until the namespace is closed.
func (n *Namespace) serve() {
	for {
		select {
		case f := <-n.calls:
			f()
		case <-n.stop:
			return
		}
	}
}

// Do runs f on the thread of the namespace and returns its error. Sockets that
// f opens stay in the namespace, in any goroutine; goroutines that it starts
// are not in it. f does not call Do.
func (n *Namespace) Do(f func() error) error {
	done := make(chan error, 1)
	select {
	case n.calls <- func() { done <- f() }:
	case <-n.stop:
		return ErrClosed
	}
	select {
	case err := <-done:
		return err
	case <-n.ended:
		return ErrClosed
	}
}

// Start starts a command in the namespace. The kernel kills it when the
// namespace is closed, or this process ends.
func (n *Namespace) Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return n.Do(cmd.Start)
}

// File returns an open file of the namespace, for processes that enter it. It
// is valid until Close.
func (n *Namespace) File() *os.File { return n.file }

// Close ends the thread; processes that were started in the namespace are
// killed, and the namespace goes with the last of them. It may be called again.
func (n *Namespace) Close() error {
	var err error
	n.once.Do(func() {
		close(n.stop)
		<-n.ended
		err = n.file.Close()
	})
	return err
}
