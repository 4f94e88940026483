package viatest

import (
	"time"

	"github.com/viablk/viablk/via"
	"golang.org/x/sys/unix"
)

var orderingCases = []kitCase{
	{"SendQueueIsFIFO", EarlyAdopter, "Sends, writes and reads of one queue complete in the order of their posts", anyLevel, 0, sendQueueFIFO},
	{"ReceiveQueueIsFIFO", EarlyAdopter, "messages meet receives in the order of their posts", anyLevel, 0, receiveQueueFIFO},
	{"WriteBeforeSend", Functional, "bytes of an RDMA Write are in place when a later Send is received", anyLevel, 0, writeBeforeSend},
	{"WriteBeforeItsImmediate", Functional, "bytes of an RDMA Write are in place when its immediate data is received", anyLevel, 0, writeBeforeImmediate},
	{"FenceAfterRead", Full, "a fenced descriptor starts after the RDMA Reads before it", reliable, NeedsRdmaRead, fenceAfterRead},
	{"FenceWithoutRead", Functional, "a fence with nothing before it delays nothing", anyLevel, 0, fenceWithoutRead},
	{"FencedSendWakesPeer", Full, "a descriptor that waited for a fence reaches a peer that sleeps", reliable, NeedsRdmaRead, fencedSendWakesPeer},
	{"WaitingSendsReachSleepingPeer", EarlyAdopter, "Sends that waited for room reach a peer that sleeps, without another doorbell", reliable, 0, waitingSendsReachPeer},
	{"QueuesAreIndependent", EarlyAdopter, "an idle or broken VI does not hold back another on the same completion queue", anyLevel, 0, queuesIndependent},
}

func sendQueueFIFO(e *env) {
	e.connect()
	reads := e.client.open().EnableRdmaRead
	remote := e.server.buffer(64 << 10)
	for round := range 6 {
		for range 4 {
			e.server.recv(e.server.buffer(100))
		}
		big := e.client.buffer(64 << 10)
		small := e.client.buffer(100)
		posted := []*via.Descriptor{
			e.client.write(at(remote), big), e.client.send(small), e.client.sendImmediate(uint32(round)),
		}
		if reads {
			posted = append(posted, e.client.read(at(remote), big))
		}
		posted = append(posted, e.client.send(small), e.client.writeImmediate(1, at(remote), small))
		for _, d := range posted {
			e.ok(e.client, d) // the order is checked for every case
		}
	}
}

func receiveQueueFIFO(e *env) {
	e.connect()
	var got []*via.Descriptor
	for range queueDepth {
		got = append(got, e.server.recv(e.server.buffer(4)))
	}
	src := e.client.buffer(4)
	for i := range queueDepth {
		e.client.sendImmediate(uint32(i), src)
		e.drain(e.server)
	}
	for i, d := range got {
		if c := e.ok(e.server, d); c.Immediate != uint32(i) {
			e.t.Fatalf("receive %d got message %d", i, c.Immediate)
		}
	}
}

// writeVisible repeats a write and a notice of it, and looks at the memory as
// soon as the notice is there.
func writeVisible(e *env, notify func(i int, to *target, src buf)) {
	e.connect()
	const size = 32 << 10
	src, dst := e.client.buffer(size), e.server.buffer(size)
	for i := range 100 {
		e.client.dused, e.server.dused = 0, 0
		fill(src.b, i)
		r := e.server.recv()
		delete(e.server.seen, r)
		notify(i, at(dst), src)
		e.ok(e.server, r)
		e.same(dst.b, src.b, "memory when the notice is received")
		e.until("the sends to complete", func() bool { send, _ := e.client.vi.QueuesEmpty(); return send })
	}
}

func writeBeforeSend(e *env) {
	writeVisible(e, func(i int, to *target, src buf) {
		e.client.stage(build(e.client.desc(2), via.OpRdmaWrite, to, []buf{src}))
		e.client.send()
	})
}

func writeBeforeImmediate(e *env) {
	writeVisible(e, func(i int, to *target, src buf) { e.client.writeImmediate(uint32(i), to, src) })
}

func fenceAfterRead(e *env) {
	e.connect()
	const size = 64 << 10
	remote, old, fresh := e.server.buffer(size), e.client.buffer(size), e.client.buffer(size)
	fill(fresh.b, 2)
	for i := range 30 {
		fill(remote.b, 100+i)
		clear(old.b)
		e.client.stage(build(e.client.desc(2), via.OpRdmaRead, at(remote), []buf{old}))
		w := build(e.client.desc(2), via.OpRdmaWrite, at(remote), []buf{fresh})
		w.SetFence()
		e.ok(e.client, e.client.postSend(e.client.vi, w))
		e.same(old.b, pattern(size, 100+i), "memory read before a fenced write to it")
		e.marker(e.client, e.server)
		e.same(remote.b, fresh.b, "memory after the fenced write")
	}
}

func fenceWithoutRead(e *env) {
	e.connect()
	r := e.server.recv()
	d := build(e.client.desc(0), via.OpSend, nil, nil)
	d.SetFence()
	e.ok(e.client, e.client.postSend(e.client.vi, d))
	e.ok(e.server, r)
}

// sleep arms the end's completion queue and sleeps until it is readable. It
// returns false if that does not happen.
func (x *end) sleep() bool {
	if !x.cq.Arm() {
		return true
	}
	fds := []unix.PollFd{{Fd: int32(x.cq.FD()), Events: unix.POLLIN}}
	for deadline := time.Now().Add(caseTimeout); time.Now().Before(deadline); {
		n, err := unix.Poll(fds, int(time.Until(deadline)/time.Millisecond)+1)
		if n == 1 {
			return true
		}
		if err != nil && err != unix.EINTR {
			return false
		}
	}
	return false
}

// asleep runs the server on a goroutine that polls only when its completion
// queue wakes it, until it has taken count completions. The caller drives only
// the client until it received the result.
func (e *env) asleep(count int) <-chan bool {
	woken := make(chan bool, 1)
	go func() {
		for got := 0; got < count; {
			n := e.server.poll()
			if n == 0 && !e.server.sleep() {
				woken <- false
				return
			}
			got += n
		}
		woken <- true
	}()
	return woken
}

// drive polls the client until the sleeping server is done.
func (e *env) drive(woken <-chan bool) {
	e.t.Helper()
	for {
		select {
		case ok := <-woken:
			if !ok {
				e.t.Fatalf("the server sleeps although something arrived; client: %v", e.client)
			}
			return
		default:
			e.client.poll()
			pause()
		}
	}
}

func fencedSendWakesPeer(e *env) {
	e.connect()
	remote, local := e.server.buffer(4096), e.client.buffer(4096)
	for range 50 {
		e.server.recv()
		woken := e.asleep(1)
		e.client.stage(build(e.client.desc(2), via.OpRdmaRead, at(remote), []buf{local}))
		d := build(e.client.desc(0), via.OpSend, nil, nil)
		d.SetFence()
		e.client.postSend(e.client.vi, d)
		e.drive(woken)
	}
	e.until("the sends to complete", func() bool { send, _ := e.client.vi.QueuesEmpty(); return send })
}

func waitingSendsReachPeer(e *env) {
	e.connect()
	const count, size = 96, 64 << 10
	for range count {
		e.server.recv(e.server.buffer(size))
	}
	woken := e.asleep(count)
	src := e.client.buffer(size)
	for range count {
		e.client.stage(build(e.client.desc(1), via.OpSend, nil, []buf{src}))
	}
	e.client.vi.Doorbell()
	e.drive(woken)
	e.until("the sends to complete", func() bool { send, _ := e.client.vi.QueuesEmpty(); return send })
}

func queuesIndependent(e *env) {
	e.connect()
	other := [2]*via.VI{e.client.newVI(e.client.attributes()), e.server.newVI(e.server.attributes())}
	e.join(other[0], other[1])
	r := e.server.postRecv(other[1], build(e.server.desc(0), via.OpRecv, nil, nil))
	e.ok(e.client, e.client.postSend(other[0], build(e.client.desc(0), via.OpSend, nil, nil)))
	e.ok(e.server, r)
	r = e.server.recv()
	e.ok(e.client, e.client.send())
	e.ok(e.server, r)
	e.check(other[0].Disconnect(), "disconnect the first")
	e.until("its peer to notice", func() bool { return other[1].State() == via.StateError })
	r = e.server.recv()
	e.ok(e.client, e.client.send())
	e.ok(e.server, r)
}
