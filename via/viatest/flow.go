package viatest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/viablk/viablk/via"
)

var flowCases = []kitCase{
	{"BothDirectionsRandomSizes", EarlyAdopter, "messages of any size in both directions at once arrive once and in order", reliable, 0, bothDirections},
	{"SlowReceiver", EarlyAdopter, "a receiver that does not poll holds its sender back; nothing is lost", reliable, 0, slowReceiver},
	{"BothSendersWait", EarlyAdopter, "two ends that fill the fabric towards each other both get through", reliable, 0, bothSendersWait},
	{"FullQueues", EarlyAdopter, "a work queue takes as many descriptors as it was created for", anyLevel, 0, fullQueues},
	{"ManyShortConnections", Functional, "connections come and go without a trace", anyLevel, 0, manyShortConnections},
}

// stream is one direction of BothDirectionsRandomSizes: what the receiver has
// granted is told to the sender outside the fabric.
type stream struct {
	granted atomic.Int64 // receives posted
	seed    uint64
}

const (
	streamMessages = 400
	streamDepth    = 24
	streamRoom     = 48 << 10 // bytes of the longest message
)

// size returns the length of message i.
func (s *stream) size(i int) int {
	r := rand.New(rand.NewPCG(s.seed, uint64(i)))
	switch r.IntN(4) {
	case 0:
		return r.IntN(64)
	case 1:
		return streamRoom - r.IntN(64)
	default:
		return r.IntN(streamRoom)
	}
}

// worker drives one end: it sends a stream and receives the other.
type worker struct {
	x        *end
	out, in  *stream
	send     []*via.Descriptor
	recv     []*via.Descriptor
	src, dst []buf
	slow     int // polls between looks at the receive queue
}

func newWorker(x *end, out, in *stream, slow int) *worker {
	w := &worker{x: x, out: out, in: in, slow: slow}
	for range streamDepth {
		w.send, w.recv = append(w.send, x.desc(2)), append(w.recv, x.desc(3))
		w.src, w.dst = append(w.src, x.buffer(streamRoom)), append(w.dst, x.buffer(streamRoom))
	}
	return w
}

func (w *worker) post(i int) error {
	d, b := w.recv[i%streamDepth], w.dst[i%streamDepth]
	build(d, via.OpRecv, nil, []buf{b.part(0, 7), b.part(7, 20000), b.part(20007, streamRoom-20007)})
	w.x.book(w.x.vi, true, d)
	err := w.x.vi.PostRecv(d)
	w.in.granted.Add(1)
	return err
}

// run returns when all messages are sent and received.
func (w *worker) run() error {
	for i := range streamDepth {
		if err := w.post(i); err != nil {
			return err
		}
	}
	sent, completed, received := 0, 0, 0
	deadline := time.Now().Add(caseTimeout)
	for polls := 0; completed < streamMessages || received < streamMessages; polls++ {
		for sent < streamMessages && sent-completed < streamDepth && int64(sent) < w.out.granted.Load() {
			d, b := w.send[sent%streamDepth], w.src[sent%streamDepth].part(0, w.out.size(sent))
			fill(b.b, int(w.out.seed)+sent)
			build(d, via.OpSend, nil, cut(b, 2))
			d.SetImmediate(uint32(sent))
			w.x.book(w.x.vi, false, d)
			if err := w.x.vi.PostSend(d); err != nil {
				return err
			}
			sent++
		}
		if w.slow == 0 || polls%w.slow == 0 {
			c, r, err := w.collect(received)
			if err != nil {
				return fmt.Errorf("after %d sends and %d receives: %w", completed, received, err)
			}
			completed, received = completed+c, received+r
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("stuck after %d posted sends, %d completed, %d receives; %v", sent, completed, received, w.x)
		}
		pause()
	}
	return nil
}

// collect polls and checks what arrived.
func (w *worker) collect(received int) (sends, receives int, err error) {
	w.x.done = w.x.done[:0]
	w.x.poll()
	for _, c := range w.x.done {
		if c.Status.Failed() {
			return 0, 0, fmt.Errorf("completion (recv %v) with %v", c.Recv, c.Status)
		}
		if !c.Recv {
			sends++
			continue
		}
		i := received + receives
		receives++
		want := pattern(w.in.size(i), int(w.in.seed)+i)
		if int(c.Immediate) != i || int(c.Length) != len(want) || !bytes.Equal(w.dst[i%streamDepth].b[:c.Length], want) {
			return 0, 0, fmt.Errorf("receive %d is message %d of %d bytes (want %d) or its bytes are wrong", i, c.Immediate, c.Length, len(want))
		}
		if i+streamDepth < streamMessages {
			if err := w.post(i + streamDepth); err != nil {
				return 0, 0, err
			}
		}
	}
	return sends, receives, nil
}

func bothDirections(e *env) {
	e.connect()
	there, back := &stream{seed: 1000}, &stream{seed: 5000}
	client, server := newWorker(e.client, there, back, 0), newWorker(e.server, back, there, 7)
	result := make(chan error, 1)
	go func() { result <- server.run() }()
	err := client.run()
	// The slower end may need a poll of the other's to get its last bytes away.
	for end := error(nil); ; {
		select {
		case end = <-result:
		default:
			e.client.poll()
			pause()
			continue
		}
		e.check(err, "client")
		e.check(end, "server")
		return
	}
}

func slowReceiver(e *env) {
	e.connect()
	const count = 64
	size := int(min(256<<10, maxTransfer(e)))
	dst := e.server.buffer(size * 4)
	var got []*via.Descriptor
	for i := range count {
		got = append(got, e.server.recv(dst.part(i%4*size, size)))
	}
	src := e.client.buffer(size)
	for i := range count {
		d := build(e.client.desc(1), via.OpSend, nil, []buf{src})
		d.SetImmediate(uint32(i))
		e.client.postSend(e.client.vi, d)
	}
	for range 2000 { // the sender alone polls
		e.client.poll()
	}
	if s := e.client.vi.State(); s != via.StateConnected {
		e.t.Fatalf("the sender is %v because its receiver is slow", s)
	}
	for i, d := range got {
		if c := e.ok(e.server, d); c.Immediate != uint32(i) || int(c.Length) != size {
			e.t.Fatalf("receive %d is message %d of %d bytes", i, c.Immediate, c.Length)
		}
	}
	e.until("the sends to complete", func() bool { send, _ := e.client.vi.QueuesEmpty(); return send })
}

func bothSendersWait(e *env) {
	e.connect()
	const count = 100
	size := int(min(128<<10, maxTransfer(e)))
	for _, x := range []*end{e.client, e.server} {
		room := x.buffer(size)
		for range count {
			x.recv(room)
		}
	}
	for _, x := range []*end{e.client, e.server} {
		src := x.buffer(size)
		for range count {
			x.send(src)
		}
	}
	for _, x := range []*end{e.client, e.server} {
		e.until(x.name+" to send and receive all", func() bool { return len(x.done) == 2*count })
		for _, c := range x.done {
			if c.Status.Failed() {
				e.t.Fatalf("%s: completed with %v", x.name, c.Status)
			}
		}
	}
}

func fullQueues(e *env) {
	e.connect()
	for round := range 5 {
		e.client.dused, e.server.dused = 0, 0
		for _, x := range []*end{e.client, e.server} {
			x.done = x.done[:0]
			for range queueDepth {
				x.recv(x.buffer(4))
			}
		}
		for i := range queueDepth {
			for _, x := range []*end{e.client, e.server} {
				b := x.buffer(4)
				binary.LittleEndian.PutUint32(b.b, uint32(i+round))
				x.send(b)
			}
			e.drain(e.client)
			e.drain(e.server)
		}
		for _, x := range []*end{e.client, e.server} {
			e.until(x.name+"'s completions", func() bool { return len(x.done) == 2*queueDepth })
		}
	}
}

func manyShortConnections(e *env) {
	e.connect()
	for range 60 {
		r := e.server.recv(e.server.buffer(8))
		e.ok(e.client, e.client.send(e.client.buffer(8)))
		e.ok(e.server, r)
		e.rejoin()
	}
}
