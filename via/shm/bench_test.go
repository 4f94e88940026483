package shm

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/eventfd"
	"github.com/viablk/viablk/via"
)

// stream is a VI with prebuilt descriptors, used round-robin.
type stream struct {
	vi        *via.VI
	out, in   []*via.Descriptor
	sent, got int
}

// benchEnd is streams on one completion queue.
type benchEnd struct {
	*station
	q       *via.CQ
	streams []stream
	used    int // bytes of the station's memory, from the middle on
	batch   [64]via.Completion
}

const (
	benchDepth = 16      // operations in flight, of one stream; fewer of many
	benchArea  = 1 << 20 // bytes of each kind of operation, from benchArea on
)

func newBenchEnd(tb testing.TB, streams int) *benchEnd {
	tb.Helper()
	e := &benchEnd{station: newStation(tb, testTimeouts), streams: make([]stream, streams)}
	var err error
	depth := 64
	if streams > 1 {
		depth = 4
	}
	e.q, err = e.nic.CreateCQ(2 * depth * streams)
	check(tb, err)
	e.used = stationBytes / 2
	for i := range e.streams {
		l := &e.streams[i]
		l.vi, err = e.nic.CreateVi(
			via.ViAttributes{Reliability: via.ReliableDelivery, Ptag: e.tag, EnableRdmaWrite: true, EnableRdmaRead: true},
			via.ViConfig{SendCQ: e.q, RecvCQ: e.q, SendDepth: depth, RecvDepth: depth})
		check(tb, err)
		l.vi.Context = l
		for range depth {
			l.out, l.in = append(l.out, e.message(via.OpSend)), append(l.in, e.message(via.OpRecv))
			check(tb, l.vi.PostRecv(l.in[len(l.in)-1]))
		}
	}
	return e
}

// message builds a descriptor of 64 bytes.
func (e *benchEnd) message(op via.Opcode) *via.Descriptor {
	d, err := e.mem.NewDescriptor(e.used, 64)
	check(e.tb, err)
	d.Reset(op)
	d.AddSegment(e.mem.Addr()+uint64(e.used)+64, e.mem.Handle(), 64)
	e.used += 128
	return d
}

func (e *benchEnd) close() {
	for i := range e.streams {
		check(e.tb, e.streams[i].vi.Disconnect())
	}
	for e.q.Poll(e.batch[:]) > 0 {
	}
	for i := range e.streams {
		check(e.tb, e.streams[i].vi.Destroy())
	}
	check(e.tb, e.q.Destroy())
}

// again resets a descriptor to be posted once more.
func again(d *via.Descriptor) *via.Descriptor {
	binary.LittleEndian.PutUint32(d.Bytes()[28:], 0)
	return d
}

// stage posts the stream's next send, without a doorbell.
func (l *stream) stage() {
	d := l.out[l.sent%len(l.out)]
	l.sent++
	if err := l.vi.StageSend(again(d)); err != nil {
		panic(err)
	}
}

// repost posts the oldest receive again.
func (l *stream) repost() {
	d := l.in[l.got%len(l.in)]
	l.got++
	if err := l.vi.PostRecv(again(d)); err != nil {
		panic(err)
	}
}

// poll polls once. A failed completion ends the benchmark.
func (e *benchEnd) poll() []via.Completion {
	done := e.batch[:e.q.Poll(e.batch[:])]
	for i := range done {
		if done[i].Status.Failed() {
			panic(done[i].Status.String())
		}
	}
	return done
}

// block sleeps until there may be something to poll.
func (e *benchEnd) block() {
	if e.q.Arm() {
		fds := [1]unix.PollFd{{Fd: int32(e.q.FD()), Events: unix.POLLIN}}
		_, _ = unix.Ppoll(fds[:], nil, nil)
	}
}

// roleBench answers messages, each on the stream it came on, when it has a
// batch of them. Arguments: socket, streams, batch, "spin" or "sleep".
func roleBench(tb *roleTB, args []string) error {
	var streams, batch int
	if _, err := fmt.Sscan(args[1]+" "+args[2], &streams, &batch); err != nil {
		return err
	}
	e := newBenchEnd(tb, streams)
	for i := range e.streams {
		x := exchange{vi: e.streams[i].vi}
		if err := x.dial(args[0]); err != nil {
			return err
		}
	}
	fmt.Println(e.place())
	owed := make([]*stream, 0, 1024)
	for e.streams[0].vi.State() == via.StateConnected {
		n := e.q.Poll(e.batch[:])
		for _, c := range e.batch[:n] {
			if c.Recv && !c.Status.Failed() {
				owed = append(owed, c.VI.Context.(*stream))
			}
		}
		if len(owed) >= batch {
			for _, l := range owed {
				l.stage()
				l.vi.Doorbell()
				l.repost()
			}
			owed = owed[:0]
		}
		if n == 0 && args[3] == "sleep" && e.streams[0].vi.State() == via.StateConnected {
			e.block()
		}
	}
	e.close()
	return nil
}

// startBench returns an end that is connected to a process in that role, and
// where that process's memory is.
func startBench(b *testing.B, streams, batch int, mode string) (*benchEnd, place) {
	b.Helper()
	e := newBenchEnd(b, streams)
	l := e.listen()
	c := startRole(b, "bench", l.Addr().Host, fmt.Sprint(streams), fmt.Sprint(batch), mode)
	for i := range e.streams {
		x := exchange{station: e.station, vi: e.streams[i].vi}
		x.accept(l)
	}
	to, err := parsePlace(c.line())
	check(b, err)
	b.Cleanup(func() {
		e.close()
		check(b, c.wait())
	})
	return e, to
}

// BenchmarkRoundTrip bounces 64 bytes between two processes, and a wake-up
// between bare eventfds.
func BenchmarkRoundTrip(b *testing.B) {
	for _, mode := range []string{"spin", "sleep"} {
		b.Run(mode, func(b *testing.B) {
			e, _ := startBench(b, 1, 1, mode)
			l := &e.streams[0]
			b.ReportAllocs()
			for b.Loop() {
				l.stage()
				l.vi.Doorbell()
				for got := false; !got; {
					done := e.poll()
					for i := range done {
						got = got || done[i].Recv
					}
					if len(done) == 0 && mode == "sleep" {
						e.block()
					}
				}
				l.repost()
			}
			b.ReportMetric(float64(l.vi.Stats().Doorbells)/float64(b.N), "bells/op")
		})
	}
	b.Run("eventfd", benchEventfd)
}

// benchEventfd is the control of the sleeping round trip: two threads that wake
// each other with nothing between them.
func benchEventfd(b *testing.B) {
	here, err := eventfd.New()
	check(b, err)
	there, err := eventfd.New()
	check(b, err)
	sleep := func(fd int) {
		fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		_, _ = unix.Ppoll(fds[:], nil, nil)
		eventfd.Drain(fd)
	}
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		for !stop.Load() {
			sleep(there)
			eventfd.Ring(here)
		}
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for b.Loop() {
		eventfd.Ring(there)
		sleep(here)
	}
	stop.Store(true)
	eventfd.Ring(there)
	<-done
	closePair(here, there)
}

// BenchmarkRdma keeps 16 operations in flight and compares with copies between
// buffers of the same size, number and distance.
func BenchmarkRdma(b *testing.B) {
	for _, op := range []via.Opcode{via.OpRdmaWrite, via.OpRdmaRead} {
		for _, n := range []int{64, 4 << 10, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%d", map[via.Opcode]string{via.OpRdmaWrite: "write", via.OpRdmaRead: "read"}[op], n), func(b *testing.B) {
				e, to := startBench(b, 1, 1, "sleep")
				benchRdma(b, e, to, op, n)
			})
		}
	}
}

func benchRdma(b *testing.B, e *benchEnd, to place, op via.Opcode, n int) {
	vi, buffers := e.streams[0].vi, max(1, min(benchDepth, benchArea/n))
	var descs []*via.Descriptor
	for i := range buffers {
		d := e.descriptor(i, op, 0, 0)
		d.SetRemote(to.addr+2*benchArea+uint64(i*n), to.handle)
		d.AddSegment(e.mem.Addr()+benchArea+uint64(i*n), e.mem.Handle(), uint32(n))
		descs = append(descs, d)
	}
	mem := e.mem.Bytes()
	copies := func() time.Duration {
		start := time.Now()
		for i := range buffers {
			from, to := mem[benchArea+i*n:][:n], mem[2*benchArea+i*n:][:n]
			copy(to, from)
		}
		return time.Since(start)
	}
	moves := func() time.Duration {
		start := time.Now()
		for _, d := range descs {
			if err := vi.StageSend(again(d)); err != nil {
				panic(err)
			}
		}
		vi.Doorbell()
		for done := 0; done < buffers; {
			done += len(e.poll())
		}
		return time.Since(start)
	}
	var moving, copying time.Duration
	ops := 0
	b.SetBytes(int64(n * buffers))
	b.ReportAllocs()
	for b.Loop() {
		copying += copies()
		moving += moves()
		ops += buffers
	}
	b.ReportMetric(float64(moving)/float64(ops), "ns/rdma")
	b.ReportMetric(float64(copying)/float64(ops), "ns/copy")
}

// BenchmarkPost posts 64-byte sends, half a queue to a doorbell, in one
// process.
func BenchmarkPost(b *testing.B) {
	d := newDuo(b)
	const batch = stationDepth / 2
	var recv, send [batch]*via.Descriptor
	for i := range batch {
		recv[i], send[i] = d.b.descriptor(i, via.OpRecv, 1<<20, 64), d.a.descriptor(i, via.OpSend, 1<<20, 64)
	}
	var posting time.Duration
	posts := 0
	b.ReportAllocs()
	for b.Loop() {
		for i := range batch {
			check(b, d.vb.PostRecv(again(recv[i])))
		}
		start := time.Now()
		for i := range batch {
			check(b, d.va.StageSend(again(send[i])))
		}
		d.va.Doorbell()
		posting += time.Since(start)
		posts += batch
		d.receive(d.a.cq, batch)
		d.receive(d.b.cq, batch)
	}
	b.ReportMetric(float64(posting)/float64(posts), "ns/post")
}

// BenchmarkPoll measures the polls that return the completions of a batch of
// messages and their replies, each on another of the active VIs.
func BenchmarkPoll(b *testing.B) {
	for _, c := range []struct{ streams, active, batch int }{
		{1, 1, 1}, {1000, 1, 1}, {1000, 1000, 1}, {1, 1, 32}, {1000, 32, 32}, {1000, 1000, 32},
	} {
		b.Run(fmt.Sprintf("vis=%d/active=%d/batch=%d", c.streams, c.active, c.batch), func(b *testing.B) {
			e, _ := startBench(b, c.streams, c.batch, "spin")
			benchPoll(b, e, c.active, c.batch)
		})
	}
}

func benchPoll(b *testing.B, e *benchEnd, active, batch int) {
	next, taken := 0, 0
	var polling time.Duration
	for b.Loop() {
		for range batch {
			l := &e.streams[next%active]
			next++
			l.stage()
			l.vi.Doorbell()
		}
		answers := 5*time.Microsecond + time.Duration(batch)*500*time.Nanosecond
		for posted := time.Now(); time.Since(posted) < answers; { // they come meanwhile
		}
		for done := 0; done < 2*batch; {
			start := time.Now()
			got := e.poll()
			if len(got) == 0 {
				continue
			}
			polling += time.Since(start)
			done += len(got)
			for i := range got {
				if got[i].Recv {
					got[i].VI.Context.(*stream).repost()
				}
			}
		}
		taken += 2 * batch
	}
	b.ReportMetric(float64(polling)/float64(taken), "ns/completion")
}

// BenchmarkHalfRoundTrips bounces 64 bytes between two links of one goroutine:
// the processor's work of a round trip, without what each end waits for the
// other.
func BenchmarkHalfRoundTrips(b *testing.B) {
	var ends [2]*heapEnd
	ends[0], ends[1] = newHeapPair([2]*via.Memory{registerHeap(b), registerHeap(b)}, via.ReliableDelivery, nil)
	var send, recv [2]*via.Work
	for i, e := range ends {
		send[i], recv[i] = e.work(via.OpSend, 0, 64, nil), e.work(via.OpRecv, 1, 64, nil)
	}
	roundTrip := func(from, to int) {
		*recv[to] = via.Work{Op: via.OpRecv, Length: 64, Segments: recv[to].Segments}
		ends[to].link.PostRecv(recv[to])
		send[from].Moved = 0
		ends[from].link.PostSend(send[from])
		ends[from].link.Doorbell()
		if ends[to].cq.Poll(ends[to].done) != 1 || ends[from].cq.Poll(ends[from].done) != 1 {
			b.Fatal("a message is not there at once")
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		roundTrip(0, 1)
		roundTrip(1, 0)
	}
}
