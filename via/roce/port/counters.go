package port

import "sync/atomic"

// counters are the live Counters of a shard.
type counters struct {
	sent, sendCalls        atomic.Uint64
	received, receiveCalls atomic.Uint64
	emptyCalls             atomic.Uint64
	bytesSent              atomic.Uint64
	bytesReceived          atomic.Uint64
	dropped                atomic.Uint64
	overrun                atomic.Uint64
	malformed              atomic.Uint64
	badICRC                atomic.Uint64
}

// Counters implements [Shard].
func (t *counters) Counters() Counters {
	return Counters{
		Sent: t.sent.Load(), SendCalls: t.sendCalls.Load(),
		Received: t.received.Load(), ReceiveCalls: t.receiveCalls.Load(),
		EmptyCalls:    t.emptyCalls.Load(),
		BytesSent:     t.bytesSent.Load(),
		BytesReceived: t.bytesReceived.Load(),
		Dropped:       t.dropped.Load(),
		Overrun:       t.overrun.Load(),
		Malformed:     t.malformed.Load(),
		BadICRC:       t.badICRC.Load(),
	}
}

// countReceived counts a system call, or a dequeue, that returned arrivals.
func (t *counters) countReceived(arrivals []Arrival) {
	if len(arrivals) == 0 {
		t.emptyCalls.Add(1)
		return
	}
	bytes := 0
	for i := range arrivals {
		bytes += len(arrivals[i].Bytes)
	}
	t.receiveCalls.Add(1)
	t.received.Add(uint64(len(arrivals)))
	t.bytesReceived.Add(uint64(bytes))
}

// countSent counts system calls that sent packets.
func (t *counters) countSent(calls, packets, bytes int) {
	t.sendCalls.Add(uint64(calls))
	t.sent.Add(uint64(packets))
	t.bytesSent.Add(uint64(bytes))
}
