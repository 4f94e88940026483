package port_test

import (
	"fmt"
	"testing"

	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/rc"
)

// One thread sends 60 packets, receives and checks them: what a packet costs both
// ends together. The packets of single are runs of one, as those of many queue
// pairs are.
func BenchmarkUDP(b *testing.B) {
	for _, family := range []struct{ name, addr string }{{"v4", "127.0.0.1"}, {"v6", "::1"}} {
		for _, o := range []port.UDPOptions{{}, {NoCoalescing: true}, {NoSegmentation: true, NoCoalescing: true}} {
			for _, size := range []int{64, 1024, 4096} {
				name := fmt.Sprintf("%s/gso=%v/gro=%v/%d", family.name, !o.NoSegmentation, !o.NoCoalescing, size)
				b.Run(name, func(b *testing.B) { benchmark(b, sockets(family.addr, o), size, true) })
			}
		}
		b.Run(family.name+"/single/64", func(b *testing.B) {
			benchmark(b, sockets(family.addr, port.UDPOptions{}), 64, false)
		})
	}
}

func BenchmarkMemory(b *testing.B) {
	for _, size := range []int{64, 4096} {
		b.Run(fmt.Sprint(size), func(b *testing.B) { benchmark(b, inMemory("2001:db8::1"), size, true) })
	}
}

// benchmark counts payload as bytes and a batch as an operation.
func benchmark(b *testing.B, open fabric, size int, joins bool) {
	const batch = 60
	ends := open.start(b, 2, 1)
	from, to := ends[0].lanes[0], ends[1].lanes[0]
	room := make([]port.Arrival, 128)
	var packets []rc.Packet
	for inRun, bytes := 0, 0; len(packets) < batch; inRun++ {
		p := packet(64, len(packets), size, 1)
		if bytes += p.Size; bytes > rc.MaxRunBytes || !joins {
			inRun, bytes = 0, p.Size
		}
		p.Joins = inRun > 0
		packets = append(packets, p)
	}
	spans := []port.Span{{To: ends[0].to(ends[1]), Packets: packets}}
	b.SetBytes(int64(batch * size))
	b.ReportAllocs()
	for b.Loop() {
		if err := from.Send(spans); err != nil {
			b.Fatal(err)
		}
		for got := 0; got < batch; {
			n, err := to.Receive(room)
			if err != nil {
				b.Fatal(err)
			}
			for i := range room[:n] {
				if !to.Intact(&room[i]) {
					b.Fatal("not intact")
				}
			}
			got += n
		}
	}
	b.ReportMetric(float64(batch*b.N)/b.Elapsed().Seconds(), "packets/s")
	if c := to.Counters(); c.Overrun+c.BadICRC+c.Malformed != 0 {
		b.Fatalf("%+v", c)
	}
}
