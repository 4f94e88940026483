package shm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
)

// roleVariable names the role that a process of this test binary plays instead
// of testing.
const roleVariable = "VIABLK_SHM_TEST_ROLE"

// roles are the functions of these processes.
var roles = map[string]func(tb *roleTB, args []string) error{
	"echo":      roleEcho,
	"load":      roleLoad,
	"bench":     roleBench,
	"dial":      roleDial,
	"forbidden": roleForbidden,
	"advertise": roleAdvertise,
	"hang up":   roleHangUp,
}

// runRole runs a process that a test started.
func runRole(role string) int {
	f, ok := roles[role]
	if !ok {
		fmt.Fprintf(os.Stderr, "no role %q\n", role)
		return 2
	}
	tb := &roleTB{}
	if err := f(tb, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
		return 1
	}
	tb.close()
	return 0
}

// roleTB lets a role call the helpers of tests.
type roleTB struct {
	testing.TB
	dir      string // the starter's to remove
	cleanups []func()
}

func (*roleTB) Helper()                        {}
func (r *roleTB) TempDir() string              { return r.dir }
func (*roleTB) Fatal(args ...any)              { panic(fmt.Sprint(args...)) }
func (*roleTB) Fatalf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }
func (*roleTB) Error(args ...any)              { panic(fmt.Sprint(args...)) }
func (*roleTB) Errorf(format string, a ...any) { panic(fmt.Sprintf(format, a...)) }
func (r *roleTB) Cleanup(f func())             { r.cleanups = append(r.cleanups, f) }

func (r *roleTB) close() {
	for i := range r.cleanups {
		r.cleanups[len(r.cleanups)-1-i]()
	}
}

// child is a process of a role.
type child struct {
	tb  testing.TB
	cmd *exec.Cmd
	out *bufio.Reader
	in  io.WriteCloser
}

// startRole starts this test binary in a role. It dies with the test.
func startRole(tb testing.TB, role string, args ...string) *child {
	tb.Helper()
	return startProcess(tb, "/proc/self/exe", &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}, role, args...)
}

func startProcess(tb testing.TB, path string, attr *syscall.SysProcAttr, role string, args ...string) *child {
	tb.Helper()
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = attr
	out, err := cmd.StdoutPipe()
	check(tb, err)
	in, err := cmd.StdinPipe()
	check(tb, err)
	check(tb, cmd.Start())
	c := &child{tb: tb, cmd: cmd, out: bufio.NewReader(out), in: in}
	tb.Cleanup(func() {
		if c.cmd.ProcessState == nil {
			_ = c.cmd.Process.Kill()
			_ = c.wait()
		}
	})
	return c
}

// line reads a line that the child prints.
func (c *child) line() string {
	c.tb.Helper()
	s, err := c.out.ReadString('\n')
	if err != nil {
		c.tb.Fatalf("the child says %q, then %v", s, err)
	}
	return strings.TrimSpace(s)
}

// wait waits for the child's end.
func (c *child) wait() error {
	_ = c.in.Close()
	return c.cmd.Wait()
}

func (c *child) signal(s syscall.Signal) {
	c.tb.Helper()
	check(c.tb, c.cmd.Process.Signal(s))
}

// place is where a process's memory is, as its peers name it.
type place struct {
	addr   uint64
	handle uint32
}

func (s *station) place() place { return place{s.mem.Addr(), s.mem.Handle()} }

func (p place) String() string { return fmt.Sprintf("%d %d", p.addr, p.handle) }

func parsePlace(line string) (p place, err error) {
	_, err = fmt.Sscanf(line, "%d %d", &p.addr, &p.handle)
	return p, err
}

// exchange is a station that sends and receives messages of up to 4 KiB in
// numbered buffers; receives are always posted.
type exchange struct {
	*station
	vi      *via.VI
	receive func(buffer int, c via.Completion) // of a message
	sent    func(c via.Completion)             // of anything else
	scratch []via.Completion
}

const (
	bufferBytes = 4096
	bufferBase  = 1 << 20
	buffers     = stationDepth / 2
)

func newExchange(tb testing.TB, p timeouts) *exchange {
	tb.Helper()
	x := &exchange{station: newStation(tb, p)}
	x.vi = x.newVI()
	for i := range buffers {
		x.repost(i)
	}
	return x
}

func (x *exchange) repost(buffer int) {
	d := x.descriptor(buffer, via.OpRecv, bufferBase+buffer*bufferBytes, bufferBytes)
	d.User = uint64(buffer)
	check(x.tb, x.vi.PostRecv(d))
}

// send sends n bytes of a buffer.
func (x *exchange) send(buffer, n int) {
	d := x.descriptor(buffers+buffer, via.OpSend, bufferBase+buffer*bufferBytes, n)
	d.User = uint64(buffer)
	check(x.tb, x.vi.PostSend(d))
}

// pollOnce polls once and handles the completions. It reports whether there
// were any.
func (x *exchange) pollOnce() bool {
	n := x.poll()
	x.dispatch()
	return n > 0
}

// dispatch handles the polled completions.
func (x *exchange) dispatch() {
	done := x.done
	x.done = x.scratch[:0]
	for _, c := range done {
		switch {
		case c.Status.Failed() || c.VI != x.vi:
		case c.Recv:
			x.receive(int(c.Descriptor.User), c)
		default:
			x.sent(c)
		}
	}
	x.scratch = done
}

// serve polls until the connection ends. If sleeps is true it sleeps while
// there is no work.
func (x *exchange) serve(sleeps bool) {
	for x.vi.State() == via.StateConnected {
		if !x.pollOnce() && sleeps && x.vi.State() == via.StateConnected && !x.sleep() {
			panic("nothing arrives")
		}
	}
}

// dial connects to the listener of another process.
func (x *exchange) dial(path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := x.vi.Connect(ctx, via.Address{Host: path, Discriminator: "d"})
	return err
}

// roleEcho echoes messages; its second argument selects whether it sleeps or
// busy-polls meanwhile.
func roleEcho(tb *roleTB, args []string) error {
	x := newExchange(tb, testTimeouts)
	x.receive = func(buffer int, c via.Completion) { x.send(buffer, int(c.Length)) }
	x.sent = func(c via.Completion) { x.repost(int(c.Descriptor.User)) }
	if err := x.dial(args[0]); err != nil {
		return err
	}
	fmt.Println(x.place())
	x.serve(args[1] == "sleep")
	return nil
}

// roleLoad writes to and reads from the parent's memory, sends a message after
// each, and continues after the reply.
func roleLoad(tb *roleTB, args []string) error {
	x := newExchange(tb, testTimeouts)
	if err := x.dial(args[0]); err != nil {
		return err
	}
	to, err := parsePlace(args[1])
	if err != nil {
		return err
	}
	const bytes = 256 << 10
	ops := []via.Opcode{via.OpRdmaWrite, via.OpRdmaRead}
	round := 0
	next := func() {
		check(tb, x.vi.PostSend(x.remote(2*buffers, ops[round%2], 3<<20, bytes, to.addr+3<<20, to.handle)))
		x.send(round%buffers, 64)
		round++
	}
	pending := 3
	done := func() {
		if pending--; pending == 0 {
			pending = 3
			next()
		}
	}
	x.receive = func(buffer int, _ via.Completion) { x.repost(buffer); done() }
	x.sent = func(via.Completion) { done() }
	next()
	x.serve(false)
	return nil
}

// roleDial runs the handshake and prints its result.
func roleDial(tb *roleTB, args []string) error {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: args[0], Net: "unixpacket"})
	if err != nil {
		fmt.Println("no connection:", err)
		return nil
	}
	o := newRawOffer(tb)
	_ = sendControl(c, control{kind: controlHello, body: rawHello(), fds: o.fds()})
	_ = sendControl(c, control{kind: controlReady})
	m, err := receiveControl(c)
	closeAll(m.fds...)
	switch {
	case err != nil:
		fmt.Println("closed")
	case m.kind == controlAccept:
		fmt.Println("accepted")
	default:
		fmt.Println("answered", m.kind)
	}
	return c.Close()
}

// roleHangUp listens at a path and closes the first connection.
func roleHangUp(_ *roleTB, args []string) error {
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: args[0], Net: "unixpacket"})
	if err != nil {
		return err
	}
	fmt.Println("listening")
	c, err := l.Accept()
	if err != nil {
		return err
	}
	return errors.Join(c.Close(), l.Close())
}
