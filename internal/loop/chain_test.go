// The requests of one load end before those of the next begin, which only the
// sockets know: the race detector does not.

//go:build !race

package loop_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkChain is the smallest chain of two processes, which no other one can
// beat by much. A relay receives requests of NBD into memory that it shares
// with a worker; the worker has the disk, copies once, and the relay replies. A
// doorbell is rung once per batch, and only if the other side sleeps. Nothing
// is checked. Decision 0027 has the figures, measured with fio:
//
//	VIABLK_CHAIN='SOCKET RELAYS WORKERS SPIN TOLD SPENT' ./loop.test
//
// serves it until its standard input ends, without a worker if WORKERS is 0.
// Each side spends the time SPENT on a request, as checks would.
func BenchmarkChain(b *testing.B) {
	for _, l := range []chainLoad{{4 << 10, 1, false}, {4 << 10, 1, true}, {4 << 10, 32, false}, {4 << 10, 32, true}, {128 << 10, 16, false}, {128 << 10, 16, true}} {
		for _, connections := range []int{1, 4, 16} {
			for _, s := range chainShapes {
				b.Run(fmt.Sprintf("KiB=%d/depth=%d/write=%v/connections=%d/%s", l.length>>10, l.depth, l.write, connections, s.name), func(b *testing.B) {
					p := startChain(b, s)
					p.load(b, connections, l, (b.N+connections-1)/connections, 0)
					p.end(b)
					b.ReportMetric(float64(p.cpu.Nanoseconds())/1e3/float64(b.N), "cpu-µs/op")
				})
			}
		}
	}
}

// TestChain keeps the benchmark right: each shape answers every request, and
// reads return what was written.
func TestChain(t *testing.T) {
	for _, s := range chainShapes {
		t.Run(s.name, func(t *testing.T) {
			p := startChain(t, s)
			for mark, l := range []chainLoad{{4 << 10, 7, true}, {128 << 10, 7, true}} {
				p.load(t, 5, l, 60, uint64(mark+1))
				l.write = false
				p.load(t, 5, l, 60, uint64(mark+1))
			}
			p.end(t)
		})
	}
}

const (
	chainLinks = 16
	chainDepth = 32
	chainBytes = 128 << 10
	chainDisk  = 64 << 20
	chainBlock = 4 << 10 // begins with its offset, plus what the writer adds
)

// chainShape says how a chain spreads connections over threads.
type chainShape struct {
	name            string
	relays, workers int // threads; no workers: the relay has the disk
	spin            time.Duration
	told            bool          // the Go scheduler, of each sleep
	spent           time.Duration // on a request, by each side
}

var chainShapes = []chainShape{
	{"no worker, threads", chainLinks, 0, 0, false, 0},
	{"no worker, two loops", 2, 0, 0, false, 0},
	{"threads", chainLinks, chainLinks, 0, false, 0},
	{"one loop", 1, 1, 0, false, 0},
	{"two loops", 2, 2, 0, false, 0},
	{"two loops, one worker", 2, 1, 0, false, 0},
	{"two loops, spin 20 µs", 2, 2, 20 * time.Microsecond, false, 0},
	{"two loops, spin 50 µs", 2, 2, 50 * time.Microsecond, false, 0},
	{"threads, told", chainLinks, chainLinks, 0, true, 0},
	{"two loops, one worker, told", 2, 1, 0, true, 0},
	{"two loops, told", 2, 2, 0, true, 0},
	{"two loops, told, 7 µs spent", 2, 2, 0, true, 7 * time.Microsecond},
}

const chainEnv = "VIABLK_CHAIN"

func TestMain(m *testing.M) {
	s, socket, spin, spent := chainShape{}, "", "", ""
	if n, _ := fmt.Sscan(os.Getenv(chainEnv), &socket, &s.relays, &s.workers, &spin, &s.told, &spent); n < 6 {
		os.Exit(m.Run())
	}
	s.spin, _ = time.ParseDuration(spin)
	s.spent, _ = time.ParseDuration(spent)
	runtime.GOMAXPROCS(2*chainLinks + 4) // no thread waits for a P
	role := func() error { return s.serve(socket) }
	if socket == "-" {
		role = s.work
	}
	if err := role(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// start starts a process of the chain, which ends when its input does.
func (s chainShape) start(socket string, out io.Writer, files []*os.File) (*exec.Cmd, io.Closer, error) {
	c := exec.Command(os.Args[0], "-test.run=^$")
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %d %v %v %v", chainEnv, socket, s.relays, s.workers, s.spin, s.told, s.spent))
	c.Stdout, c.Stderr, c.ExtraFiles = out, os.Stderr, files
	in, err := c.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	return c, in, c.Start()
}

// wake rings the bell of a thread that sleeps.
func wake(sleeps *atomic.Bool, bell int) {
	if sleeps.Load() && sleeps.Swap(false) {
		_, _ = unix.Write(bell, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// newDisk returns a disk whose blocks begin with their offsets.
func newDisk() []byte {
	disk := make([]byte, chainDisk)
	for offset := 0; offset < len(disk); offset += chainBlock {
		binary.LittleEndian.PutUint64(disk[offset:], uint64(offset))
	}
	return disk
}

// chainProcess is a chain that the test has started.
type chainProcess struct {
	relay  *exec.Cmd
	in     io.Closer
	socket string
	cpu    time.Duration // of both processes, when they have ended
}

func startChain(t testing.TB, s chainShape) *chainProcess {
	t.Helper()
	ready, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ready.Close() }()
	p := &chainProcess{socket: filepath.Join(t.TempDir(), "s")}
	p.relay, p.in, err = s.start(p.socket, out, nil)
	_ = out.Close()
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(ready).ReadString('\n'); strings.TrimSpace(line) != "ready" {
		t.Fatalf("the relay says %q, %v", line, err)
	}
	return p
}

func (p *chainProcess) end(t testing.TB) {
	t.Helper()
	_ = p.in.Close()
	if err := p.relay.Wait(); err != nil {
		t.Error(err)
	}
	p.cpu = p.relay.ProcessState.UserTime() + p.relay.ProcessState.SystemTime()
}

// chainLoad is what a client asks for.
type chainLoad struct {
	length, depth int
	write         bool
}

// load has clients send so many requests each. A write adds the mark to the
// offsets that blocks begin with; a read expects it.
func (p *chainProcess) load(t testing.TB, connections int, l chainLoad, each int, mark uint64) {
	t.Helper()
	var fds []int
	for range connections {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err == nil {
			defer unix.Close(fd)
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: p.socket})
		}
		if err == nil {
			err = errors.Join(readAll(fd, make([]byte, 18)), writeAll(fd, []byte("\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x01\x00\x00\x00\x00")), readAll(fd, make([]byte, 10)))
		}
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	before := runtime.GOMAXPROCS(2*connections + 4) // no thread waits for a P
	defer runtime.GOMAXPROCS(before)
	if b, ok := t.(*testing.B); ok {
		b.ResetTimer()
		defer b.StopTimer()
	}
	var all sync.WaitGroup
	for i, fd := range fds {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			share := chainDisk / connections / l.length
			if err := l.request(fd, i*share, share, each, mark); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// request sends requests for blocks in the share that begins at first, depth at
// a time, and checks the replies, which come in order.
func (l chainLoad) request(fd, first, share, count int, mark uint64) error {
	sent, answer := chainRequest, chainReply
	if l.write {
		sent += l.length
	} else {
		answer += l.length
	}
	requests, replies := make([]byte, l.depth*sent), make([]byte, l.depth*answer)
	for done := 0; done < count; {
		n := min(l.depth, count-done)
		for i := range n {
			r, offset := requests[i*sent:][:sent], uint64((first+(done+i)%share)*l.length)
			binary.BigEndian.PutUint32(r, 0x25609513)
			binary.BigEndian.PutUint64(r[8:], uint64(done+i))
			binary.BigEndian.PutUint64(r[16:], offset)
			binary.BigEndian.PutUint32(r[24:], uint32(l.length))
			for at := chainRequest; at < sent; at += chainBlock {
				r[7] = 1
				binary.LittleEndian.PutUint64(r[at:], offset+uint64(at-chainRequest)+mark)
			}
		}
		if err := errors.Join(writeAll(fd, requests[:n*sent]), readAll(fd, replies[:n*answer])); err != nil {
			return err
		}
		for i := range n {
			r, offset := replies[i*answer:][:answer], uint64((first+(done+i)%share)*l.length)
			if got := binary.BigEndian.Uint64(r[8:]); got != uint64(done+i) {
				return fmt.Errorf("reply to request %d, want to %d", got, done+i)
			}
			for at := chainReply; at < answer; at += chainBlock {
				if got, want := binary.LittleEndian.Uint64(r[at:]), offset+uint64(at-chainReply)+mark; got != want {
					return fmt.Errorf("block %#x begins with %#x, want %#x", offset, got, want)
				}
			}
		}
		done += n
	}
	return nil
}

// readAll fills p.
func readAll(fd int, p []byte) error {
	for len(p) > 0 {
		n, err := unix.Read(fd, p)
		if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil && err != unix.EINTR {
			return err
		}
		p = p[max(n, 0):]
	}
	return nil
}
