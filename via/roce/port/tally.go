package port

import "sync/atomic"

// tally are the Counters of a lane while they run.
type tally struct {
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

// Counters implements [Lane].
func (t *tally) Counters() Counters {
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

// took counts a system call, or what stands for it, that returned arrivals.
func (t *tally) took(arrivals []Arrival) {
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

// gave counts system calls that sent packets.
func (t *tally) gave(calls, packets, bytes int) {
	t.sendCalls.Add(uint64(calls))
	t.sent.Add(uint64(packets))
	t.bytesSent.Add(uint64(bytes))
}
