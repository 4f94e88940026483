package port_test

import (
	"fmt"
	"testing"

	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/port/porttest"
)

// One thread sends, receives and checks 60 packets: the cost of a packet at
// both ends. In single each packet is a run of its own, as with many queue
// pairs.
func BenchmarkUDP(b *testing.B) {
	for _, family := range []struct{ name, addr string }{{"v4", "127.0.0.1"}, {"v6", "::1"}} {
		for _, o := range []port.UDPOptions{{}, {NoCoalescing: true}, {NoSegmentation: true, NoCoalescing: true}} {
			for _, size := range []int{64, 1024, 4096} {
				name := fmt.Sprintf("%s/gso=%v/gro=%v/%d", family.name, !o.NoSegmentation, !o.NoCoalescing, size)
				b.Run(name, func(b *testing.B) { porttest.Benchmark(b, sockets(family.addr, o), size, true) })
			}
		}
		b.Run(family.name+"/single/64", func(b *testing.B) {
			porttest.Benchmark(b, sockets(family.addr, port.UDPOptions{}), 64, false)
		})
	}
}

func BenchmarkMemory(b *testing.B) {
	for _, size := range []int{64, 4096} {
		b.Run(fmt.Sprint(size), func(b *testing.B) { porttest.Benchmark(b, inMemory("2001:db8::1"), size, true) })
	}
}
