package loop_test

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkWaits is the smallest server that shows what many connections on one
// thread save: a thread for each connection in ppoll, or one or two threads
// that wait for all of them in epoll (edge-triggered). Everything else is left
// out. Each client sends "depth" requests at a time. Decision 0020 has the
// figures.
func BenchmarkWaits(b *testing.B) {
	for _, l := range []load{{4 << 10, 1}, {4 << 10, 32}, {128 << 10, 16}} {
		for _, connections := range []int{1, 4, 16, 64} {
			for loops, name := range []string{"threads", "one loop", "two loops"} {
				b.Run(fmt.Sprintf("KiB=%d/depth=%d/connections=%d/%s", l.reply>>10, l.depth, connections, name), func(b *testing.B) {
					benchmarkWaits(b, connections, l, loops)
				})
			}
		}
	}
}

// load is what a client asks for.
type load struct {
	reply int // bytes
	depth int // requests at a time
}

// TestWaits keeps the benchmark right: each way answers every request.
func TestWaits(t *testing.T) {
	for loops := range 3 {
		if s := serveAll(t, 3, load{4 << 10, 2}, loops, 50); s.requests.Load() < 3*50 {
			t.Errorf("%d loops answered %d requests, want %d", loops, s.requests.Load(), 3*50)
		}
	}
}

func benchmarkWaits(b *testing.B, connections int, l load, loops int) {
	each := (b.N + connections - 1) / connections
	s := serveAll(b, connections, l, loops, each)
	b.ReportMetric(float64(s.cpu.Load())/1e3/float64(b.N), "cpu-µs/op")
	b.ReportMetric(float64(s.calls.Load())/float64(b.N), "calls/op")
}

// requestBytes is the size of an NBD request.
const requestBytes = 28

// waitServer is what the threads of a server have in common.
type waitServer struct {
	requests, calls, cpu atomic.Int64 // cpu in ns
	reply                int          // bytes
	replies              []byte
}

// serveAll has clients send so many requests each, and returns when the server
// has answered them and seen its clients leave.
func serveAll(t testing.TB, connections int, l load, loops, each int) *waitServer {
	t.Helper()
	before := runtime.GOMAXPROCS(2*connections + 4) // no thread waits for a P
	defer runtime.GOMAXPROCS(before)
	s := &waitServer{reply: l.reply, replies: make([]byte, l.depth*l.reply)}
	shares := make([][]int, max(loops, 1))
	if loops == 0 {
		shares = make([][]int, connections)
	}
	var clients []int
	for i := range connections {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range pair {
			defer unix.Close(fd)
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<20) // a speed-up
		}
		shares[i%len(shares)] = append(shares[i%len(shares)], pair[0])
		clients = append(clients, pair[1])
	}
	var all sync.WaitGroup
	began := time.Now()
	for _, share := range shares {
		all.Go(func() { s.run(t, share, loops > 0) })
	}
	for _, fd := range clients {
		all.Go(func() { request(t, fd, l, each) })
	}
	all.Wait()
	if b, ok := t.(*testing.B); ok {
		b.ReportMetric(float64(time.Since(began).Nanoseconds())/float64(b.N), "ns/op")
	}
	return s
}

// request sends requests and receives the replies, then closes its direction.
func request(t testing.TB, fd int, l load, count int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer func() { _ = unix.Shutdown(fd, unix.SHUT_WR) }()
	requests, replies := make([]byte, l.depth*requestBytes), make([]byte, l.depth*l.reply)
	for count > 0 {
		n := min(l.depth, count)
		count -= n
		err := writeAll(fd, requests[:n*requestBytes])
		for got := 0; err == nil && got < n*l.reply; {
			var m int
			m, err = unix.Read(fd, replies)
			if got += m; err == unix.EINTR {
				err = nil
			} else if err == nil && m == 0 {
				err = unix.EPIPE
			}
		}
		if err != nil {
			t.Error(err)
			return
		}
	}
}

// run serves the connections of one thread until their clients have left.
func (s *waitServer) run(t testing.TB, fds []int, epoll bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cpu := threadTime(t)
	defer func() { s.cpu.Add(threadTime(t) - cpu) }()
	wait := func(ready []int) []int { // ppoll on the only one
		_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(fds[0]), Events: unix.POLLIN}}, nil, nil)
		return append(ready, fds[0])
	}
	if epoll {
		set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(set)
		for _, fd := range fds {
			if err := unix.EpollCtl(set, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)}); err != nil {
				t.Error(err)
				return
			}
		}
		events := make([]unix.EpollEvent, 64)
		wait = func(ready []int) []int {
			n, _ := unix.EpollWait(set, events, -1)
			for _, e := range events[:max(n, 0)] {
				ready = append(ready, int(e.Fd))
			}
			return ready
		}
	}
	buffer, ready := make([]byte, 64<<10), make([]int, 0, 64)
	partial := make(map[int]int, len(fds)) // bytes of a request
	for left := len(fds); left > 0; {
		ready = wait(ready[:0])
		s.calls.Add(1)
		for _, fd := range ready {
			n, _, err := unix.Recvfrom(fd, buffer, unix.MSG_DONTWAIT) // never interrupted
			s.calls.Add(1)
			if err != nil {
				continue
			}
			if n == 0 {
				left--
				continue
			}
			partial[fd] += n
			count := partial[fd] / requestBytes
			partial[fd] %= requestBytes
			s.requests.Add(int64(count))
			s.calls.Add(1)
			if err := writeAll(fd, s.replies[:count*s.reply]); err != nil {
				t.Error(err)
			}
		}
	}
}

// writeAll writes p, however often signals of the runtime interrupt it.
func writeAll(fd int, p []byte) error {
	for len(p) > 0 {
		n, err := unix.Write(fd, p)
		if err != nil && err != unix.EINTR {
			return err
		}
		p = p[max(n, 0):]
	}
	return nil
}

// threadTime is the processor time that the thread has used, in ns.
func threadTime(t testing.TB) int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		t.Error(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
