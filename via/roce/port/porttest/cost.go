package porttest

import (
	"testing"

	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/rc"
)

// Allocations sends, receives and checks runs and single packets, which has to
// allocate nothing.
func Allocations(t *testing.T, open Fabric) {
	t.Helper()
	ends := open.Start(t, 2, 1)
	a, b := ends[0], ends[1]
	spans := []port.Span{
		{To: a.To(b), Packets: Run(64, 8, 1000, 60)},
		{To: a.To(b), Packets: []rc.Packet{Packet(64, 0, 0, 0), Packet(128, 1, 333, 2)}},
	}
	exchange := func() {
		if err := a.Shards[0].Send(spans); err != nil {
			t.Fatal(err)
		}
		for got := 0; got < 10; {
			n, err := b.Shards[0].Receive(b.Room)
			if err != nil {
				t.Fatal(err)
			}
			for i := range b.Room[:n] {
				if !b.Shards[0].Intact(&b.Room[i]) {
					t.Fatal("not intact")
				}
			}
			if got += n; n == 0 {
				Sleep(t, b.Shards[0]) // AllocsPerRun sets GOMAXPROCS to 1
			}
		}
	}
	for range 100 {
		exchange() // fills the pools
	}
	if n := testing.AllocsPerRun(200, exchange); n != 0 {
		t.Errorf("10 packets: %v allocations", n)
	}
}

// Benchmark sends, receives and checks 60 packets on one thread. It counts
// payload as bytes and a batch as an operation.
func Benchmark(b *testing.B, open Fabric, size int, joins bool) {
	const batch = 60
	ends := open.Start(b, 2, 1)
	from, to := ends[0].Shards[0], ends[1].Shards[0]
	room := make([]port.Arrival, 128)
	var packets []rc.Packet
	for inRun, bytes := 0, 0; len(packets) < batch; inRun++ {
		p := Packet(64, len(packets), size, 1)
		if bytes += p.Size; bytes > rc.MaxRunBytes || !joins {
			inRun, bytes = 0, p.Size
		}
		p.Joins = inRun > 0
		packets = append(packets, p)
	}
	spans := []port.Span{{To: ends[0].To(ends[1]), Packets: packets}}
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
