package roce_test

import (
	"runtime"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
)

// memoryPerConnection bounds the memory of one end of a connection, without
// registered memory, in bytes.
const memoryPerConnection = 64 << 10

// Connections of one completion queue share a socket and its buffers: each
// takes little memory, even after all have exchanged messages.
func TestMemoryOfManyConnections(t *testing.T) {
	const first, then = 20, 500
	p := roce.New(roce.Options{})
	x, y := newParty(t, p, ""), newParty(t, p, "")
	const queue = 2 * depth * (first + then + 1)
	check(t, x.cq.Resize(queue))
	check(t, y.cq.Resize(queue))
	host := freePort(t, "127.0.0.1")
	var vis [2][]*via.VI
	connect := func(n int) {
		for range n {
			a, b := x.newVI(via.ReliableDelivery, x.cq), y.newVI(via.ReliableDelivery, y.cq)
			link(t, host, a, b, y.nic)
			vis[0], vis[1] = append(vis[0], a), append(vis[1], b)
			x.used, y.used = 0, 0
			check(t, a.PostRecv(x.build(via.OpRecv, 0, 10_000, nil)))
			check(t, b.PostRecv(y.build(via.OpRecv, 0, 10_000, nil)))
			check(t, a.PostSend(x.build(via.OpSend, 20_000, 10_000, nil)))
			check(t, b.PostSend(y.build(via.OpSend, 20_000, 10_000, nil)))
			done := 0
			within(t, "a message each way", func() bool { done += x.poll() + y.poll(); return done == 4 })
		}
	}
	used := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // frees objects with finalizers
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	connect(first)
	before := used()
	connect(then)
	after := used()
	each := (int64(after) - int64(before)) / (2 * then)
	t.Logf("%d connections of one socket take %d bytes at each end", then, each)
	if each > memoryPerConnection {
		t.Errorf("that is more than %d", memoryPerConnection)
	}
	for _, e := range p.Statistics() {
		if len(e.Shards) != 1 {
			t.Errorf("%v has %d sockets for connections, want one", e.Local, len(e.Shards))
		}
	}
	x.close(vis[0]...)
	y.close(vis[1]...)
}
