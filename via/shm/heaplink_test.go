package shm

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/viablk/viablk/via"
)

// heapEnd is a link whose segments lie in the Go heap, where the race detector
// observes the accesses of both ends. Its control socket is never connected.
type heapEnd struct {
	link *link
	cq   *cq
	mem  *via.Memory
	done []via.Done
}

const (
	heapMessages = 12
	heapBuffer   = 4 * maxFragment
)

func registerHeap(tb testing.TB) *via.Memory {
	tb.Helper()
	nic, err := via.OpenNic(provider{timeouts: testTimeouts}, "")
	check(tb, err)
	tag, err := nic.CreatePtag()
	check(tb, err)
	mem, err := nic.RegisterMem(make([]byte, heapMessages*heapBuffer), via.MemAttributes{Ptag: tag})
	check(tb, err)
	return mem
}

// newHeapPair returns the two ends of a connection; the first has the faults.
func newHeapPair(mems [2]*via.Memory, level via.ReliabilityLevel, faults via.Faults) (a, b *heapEnd) {
	segments := [2][]byte{make([]byte, segmentSize), make([]byte, segmentSize)}
	var ends [2]*heapEnd
	for i := range ends {
		q := &cq{fd: -1, wake: -1, ring: make([]completion, 64)}
		local, peer := &segment{mem: segments[i], fd: -1}, &segment{mem: segments[1-i], fd: -1}
		cfg := via.LinkConfig{
			Reliability: level, Tag: mems[i].Tag(), MaxTransferSize: limits.MaxTransferSize, RdmaWrite: true,
			SendDepth: heapMessages, RecvDepth: heapMessages, SendCQ: q, RecvCQ: q,
		}
		if i == 0 {
			cfg.Faults = faults
		}
		l := makeLink(nil, wire{conn: &net.UnixConn{}, local: local, peer: peer, peerData: -1, peerSpace: -1}, cfg, time.Second)
		q.bind(l.recvAt)
		ends[i] = &heapEnd{link: l, cq: q, mem: mems[i], done: make([]via.Done, 8)}
	}
	return ends[0], ends[1]
}

// work makes a work of n bytes in a buffer of the end's memory, in segments cut
// at the given places.
func (e *heapEnd) work(op via.Opcode, buffer, n int, cuts []int) *via.Work {
	w := &via.Work{Op: op, Length: uint32(n)}
	at := 0
	cut := func(c int) {
		if c = min(c, n); c > at {
			w.Segments = append(w.Segments, via.Segment{Bytes: e.mem.Bytes()[buffer*heapBuffer+at : buffer*heapBuffer+c], Memory: e.mem})
			at = c
		}
	}
	for _, c := range cuts {
		cut(c)
	}
	cut(n)
	return w
}

// message is a Send of the model.
type message struct {
	size      int
	immediate *uint32
}

func (m message) bytes(i int, round byte) []byte {
	b := make([]byte, m.size)
	for j := range b {
		b[j] = round + byte(i) + byte(j*7)
	}
	return b
}

// TestMessagesBetweenGoroutines sends messages of random sizes, cut at random
// places, through the whole path of a link, each end on a goroutine of its own,
// and compares the receives with the messages of a model queue.
func TestMessagesBetweenGoroutines(t *testing.T) {
	mems := [2]*via.Memory{registerHeap(t), registerHeap(t)}
	var round byte
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.OneOf(rapid.IntRange(0, 200), rapid.IntRange(0, heapBuffer), rapid.SampledFrom([]int{
			maxFragment - 1, maxFragment, maxFragment + 1, maxFragment / 4, ringSize - recordHeader, heapBuffer,
		}))
		messages := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) message {
			return message{sizes.Draw(t, "size"), rapid.Ptr(rapid.Uint32(), true).Draw(t, "immediate")}
		}), 1, heapMessages).Draw(t, "messages")
		cuts := rapid.SliceOfN(rapid.IntRange(0, maxFragment), 0, 3).Draw(t, "cuts")
		batch := rapid.IntRange(1, 4).Draw(t, "batch")
		round++
		level := rapid.SampledFrom([]via.ReliabilityLevel{via.ReliableDelivery, via.ReliableReception}).Draw(t, "level")
		a, b := newHeapPair(mems, level, nil)
		for i := range messages {
			b.link.PostRecv(b.work(via.OpRecv, i, heapBuffer, cuts))
		}
		sent := make(chan error)
		go func() { sent <- a.send(messages, cuts, round, batch) }()
		err := b.receive(messages, round)
		if sendErr := <-sent; err != nil || sendErr != nil {
			t.Fatalf("receiver: %v; sender: %v", err, sendErr)
		}
	})
}

const heapTimeout = time.Minute

// send posts the messages, with a doorbell for each batch, and awaits their
// completions.
func (e *heapEnd) send(messages []message, cuts []int, round byte, batch int) error {
	for i, m := range messages {
		w := e.work(via.OpSend, i, m.size, cuts)
		copy(e.mem.Bytes()[i*heapBuffer:], m.bytes(i, round))
		if m.immediate != nil {
			w.HasImmediate, w.Immediate = true, *m.immediate
		}
		if !e.link.PostSend(w) {
			return fmt.Errorf("message %d is not taken", i)
		}
		if i%batch == batch-1 {
			e.link.Doorbell()
		}
	}
	e.link.Doorbell()
	i := 0
	return e.poll(len(messages), func(d via.Done) error {
		if d.Work.Status != 0 || int(d.Work.Moved) != messages[i].size {
			return fmt.Errorf("message %d: %+v", i, d.Work)
		}
		i++
		return nil
	})
}

func (e *heapEnd) receive(messages []message, round byte) error {
	i := 0
	return e.poll(len(messages), func(d via.Done) error {
		m := messages[i]
		var status via.Status
		var immediate uint32
		if m.immediate != nil {
			status, immediate = via.StatusImmediate, *m.immediate
		}
		if w := d.Work; w.Status != status || w.Immediate != immediate || int(w.Moved) != m.size {
			return fmt.Errorf("message %d of %d bytes: %+v", i, m.size, w)
		}
		if !bytes.Equal(e.mem.Bytes()[i*heapBuffer:i*heapBuffer+m.size], m.bytes(i, round)) {
			return fmt.Errorf("message %d of %d bytes has other bytes", i, m.size)
		}
		i++
		return nil
	})
}

// TestEndComesLast: records published before the peer's end are delivered, even
// if the completion queue has room for few at a time.
func TestEndComesLast(t *testing.T) {
	a, b := newHeapPair([2]*via.Memory{registerHeap(t), registerHeap(t)}, via.ReliableDelivery, nil)
	messages := make([]message, heapMessages)
	for i := range messages {
		messages[i].size = 100 * i
		b.link.PostRecv(b.work(via.OpRecv, i, heapBuffer, nil))
	}
	check(t, a.send(messages, nil, 1, 1))
	b.link.signals.gone.Store(true)
	b.cq.ring, b.done = make([]completion, 4), make([]via.Done, 2)
	check(t, b.receive(messages, 1))
	if n := b.cq.Poll(b.done); n != 1 || b.done[0].Event == nil || !errors.Is(b.done[0].Event.Cause, errPeerGone) {
		t.Fatalf("%d events after the messages: %+v", n, b.done[0])
	}
}

// poll polls until it has n completions.
func (e *heapEnd) poll(n int, receive func(via.Done) error) error {
	deadline := time.Now().Add(heapTimeout)
	for n > 0 {
		k := e.cq.Poll(e.done)
		for _, d := range e.done[:k] {
			if d.Event != nil {
				return fmt.Errorf("broken: %w", d.Event.Cause)
			}
			if err := receive(d); err != nil {
				return err
			}
			n--
		}
		if k == 0 {
			if time.Now().After(deadline) {
				return fmt.Errorf("%d messages are stuck", n)
			}
			runtime.Gosched()
		}
	}
	return nil
}
