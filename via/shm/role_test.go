package shm

import (
	"bufio"
	"context"
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

// roleVariable names what a process of this test binary does instead of testing.
const roleVariable = "VIABLK_SHM_TEST_ROLE"

// roles are what such a process can do.
var roles = map[string]func(tb *roleTB, args []string) error{
	"echo":      roleEcho,
	"load":      roleLoad,
	"bench":     roleBench,
	"dial":      roleDial,
	"forbidden": roleForbidden,
	"advertise": roleAdvertise,
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

// roleTB lets a role use what tests use.
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
// numbered slots; receives are always posted.
type exchange struct {
	*station
	vi      *via.VI
	receive func(slot int, c via.Completion) // of a message
	sent    func(c via.Completion)           // of anything else
	spare   []via.Completion
}

const (
	slotBytes = 4096
	slotBase  = 1 << 20
	slots     = stationDepth / 2
)

func newExchange(tb testing.TB, p patience) *exchange {
	tb.Helper()
	x := &exchange{station: newStation(tb, p)}
	x.vi = x.newVI()
	for i := range slots {
		x.repost(i)
	}
	return x
}

func (x *exchange) repost(slot int) {
	d := x.descriptor(slot, via.OpRecv, slotBase+slot*slotBytes, slotBytes)
	d.User = uint64(slot)
	check(x.tb, x.vi.PostRecv(d))
}

// send sends n bytes of a slot.
func (x *exchange) send(slot, n int) {
	d := x.descriptor(slots+slot, via.OpSend, slotBase+slot*slotBytes, n)
	d.User = uint64(slot)
	check(x.tb, x.vi.PostSend(d))
}

// turn polls once and handles what is done. It returns whether anything was.
func (x *exchange) turn() bool {
	n := x.poll()
	x.dispatch()
	return n > 0
}

// dispatch handles what was polled.
func (x *exchange) dispatch() {
	done := x.done
	x.done = x.spare[:0]
	for _, c := range done {
		switch {
		case c.Status.Failed() || c.VI != x.vi:
		case c.Recv:
			x.receive(int(c.Descriptor.User), c)
		default:
			x.sent(c)
		}
	}
	x.spare = done
}

// serve takes turns until the connection ends, asleep when there is nothing to do
// if it is to sleep.
func (x *exchange) serve(sleeps bool) {
	for x.vi.State() == via.StateConnected {
		if !x.turn() && sleeps && x.vi.State() == via.StateConnected && !x.sleep() {
			panic("nothing arrives")
		}
	}
}

// dial connects to the listener of another process.
func (x *exchange) dial(path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err := x.vi.Connect(ctx, via.Address{Host: path, Discriminator: "d"})
	return err
}

// roleEcho sends back what it receives; its second argument says whether it
// sleeps or spins meanwhile.
func roleEcho(tb *roleTB, args []string) error {
	x := newExchange(tb, testPatience)
	x.receive = func(slot int, c via.Completion) { x.send(slot, int(c.Length)) }
	x.sent = func(c via.Completion) { x.repost(int(c.Descriptor.User)) }
	if err := x.dial(args[0]); err != nil {
		return err
	}
	fmt.Println(x.place())
	x.serve(args[1] == "sleep")
	return nil
}

// roleLoad writes to and reads from the parent's memory, sends a message after
// each, and goes on when that is answered.
func roleLoad(tb *roleTB, args []string) error {
	x := newExchange(tb, testPatience)
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
		check(tb, x.vi.PostSend(x.remote(2*slots, ops[round%2], 3<<20, bytes, to.addr+3<<20, to.handle)))
		x.send(round%slots, 64)
		round++
	}
	pending := 3
	done := func() {
		if pending--; pending == 0 {
			pending = 3
			next()
		}
	}
	x.receive = func(slot int, _ via.Completion) { x.repost(slot); done() }
	x.sent = func(via.Completion) { done() }
	next()
	x.serve(false)
	return nil
}

// roleDial speaks the handshake and says how it ended.
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
