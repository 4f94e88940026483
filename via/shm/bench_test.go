package shm

import (
	"fmt"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
)

// far is a connection to another process that echoes.
type far struct {
	*exchange
	to  place
	got int
}

func newFar(b *testing.B, mode string) *far {
	b.Helper()
	f := &far{exchange: newExchange(b, testPatience)}
	f.receive = func(slot int, _ via.Completion) { f.got++; f.repost(slot) }
	f.sent = func(via.Completion) {}
	l := f.listen()
	c := startRole(b, "echo", l.Addr().Host, mode)
	f.accept(l)
	var err error
	f.to, err = parsePlace(c.line())
	check(b, err)
	b.Cleanup(func() { // the child ends with the connection
		check(b, f.vi.Disconnect())
		check(b, c.wait())
	})
	return f
}

// BenchmarkRoundTrip bounces 64 bytes between two processes.
func BenchmarkRoundTrip(b *testing.B) {
	for _, mode := range []string{"spin", "sleep"} {
		b.Run(mode, func(b *testing.B) {
			f := newFar(b, mode)
			b.ReportAllocs()
			for b.Loop() {
				want := f.got + 1
				f.send(0, 64)
				for f.got < want {
					if !f.turn() && mode == "sleep" && !f.sleep() {
						b.Fatal("no answer")
					}
				}
			}
			b.ReportMetric(float64(f.vi.Stats().Doorbells)/float64(b.N), "bells/op")
		})
	}
}

// BenchmarkWindow keeps four echoes of 64 bytes under way.
func BenchmarkWindow(b *testing.B) {
	f := newFar(b, "spin")
	sent := 0
	for b.Loop() {
		for sent-f.got >= slots/2 {
			f.turn()
		}
		f.send(sent%slots, 64)
		sent++
	}
}

// BenchmarkRdma moves memory of another process and compares with a copy of the
// same size between the same kinds of memory.
func BenchmarkRdma(b *testing.B) {
	for name, op := range map[string]via.Opcode{"write": via.OpRdmaWrite, "read": via.OpRdmaRead} {
		for _, n := range []int{64, 4 << 10, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				f := newFar(b, "sleep")
				d := f.descriptor(3*slots, op, 0, 0)
				var done [4]via.Completion
				b.SetBytes(int64(n))
				for b.Loop() {
					d.Reset(op)
					d.SetRemote(f.to.addr+4<<20, f.to.handle)
					d.AddSegment(f.mem.Addr()+4<<20, f.mem.Handle(), uint32(n))
					check(b, f.vi.PostSend(d))
					for f.cq.Poll(done[:]) == 0 {
					}
				}
				rdma := float64(b.Elapsed()) / float64(b.N)
				b.ReportMetric(rdma/f.copyTime(n), "x-copy")
			})
		}
	}
}

// copyTime returns the nanoseconds that a copy of n bytes takes within the
// station's memory, after the same warming up.
func (s *station) copyTime(n int) float64 {
	mem := s.mem.Bytes()
	from, to := mem[4<<20:4<<20+n], mem[6<<20:6<<20+n]
	copies := 1 + 64<<20/max(n, 1<<10)
	copy(to, from)
	start := time.Now()
	for range copies {
		copy(to, from)
	}
	return float64(time.Since(start)) / float64(copies)
}

// BenchmarkPost posts 64-byte sends, half a queue to a doorbell, in one process.
func BenchmarkPost(b *testing.B) {
	d := newDuo(b)
	const batch = stationDepth / 2
	var recv, send [batch]*via.Descriptor
	for i := range batch {
		recv[i], send[i] = d.b.descriptor(i, via.OpRecv, 1<<20, 64), d.a.descriptor(i, via.OpSend, 1<<20, 64)
	}
	var posting time.Duration
	posts := 0
	for b.Loop() {
		for i := range batch {
			recv[i].Reset(via.OpRecv)
			recv[i].AddSegment(d.b.mem.Addr()+1<<20, d.b.mem.Handle(), 64)
			check(b, d.vb.PostRecv(recv[i]))
			send[i].Reset(via.OpSend)
			send[i].AddSegment(d.a.mem.Addr()+1<<20, d.a.mem.Handle(), 64)
		}
		start := time.Now()
		for i := range batch {
			check(b, d.va.StageSend(send[i]))
		}
		d.va.Doorbell()
		posting += time.Since(start)
		posts += batch
		d.take(d.a.cq, batch)
		d.take(d.b.cq, batch)
	}
	b.ReportMetric(float64(posting)/float64(posts), "ns/post")
}
