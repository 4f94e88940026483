package viatest

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/sleepflag"
	"github.com/viablk/viablk/via"
)

var completionCases = []kitCase{
	{"ArmFalseWhenReady", Functional, "Arm refuses while Poll has something to return", anyLevel, 0, armFalseWhenReady},
	{"WakeUpAfterArm", Functional, "after Arm the next completion makes the file descriptor readable, and polls consume it", anyLevel, 0, wakeUpAfterArm},
	{"NoLostWakeUp", Functional, "a consumer that sleeps between Arm and readiness misses nothing", anyLevel, 0, noLostWakeUp},
	{"NoLostEdge", Functional, "a consumer that watches for edges, where the provider offers them, misses nothing", anyLevel, 0, noLostEdge},
	{"NoLostFlag", Functional, "a consumer whose peers go by its sleep flag, where the provider offers that, misses nothing", anyLevel, 0, noLostFlag},
	{"DisarmedLosesNothing", Functional, "a consumer that is awake after Arm and posts misses nothing", anyLevel, 0, disarmedLosesNothing},
	{"WakeUpOnDisconnect", Functional, "the loss of a connection wakes a sleeping consumer", anyLevel, 0, wakeUpOnDisconnect},
	{"QuietWithoutConnection", Functional, "nothing wakes the consumer of a queue without a connection", anyLevel, 0, quietWithoutConnection},
	{"SleepingSender", Functional, "a sender that sleeps because the fabric is full wakes when there is room", reliable, 0, sleepingSender},
	{"ManyVIsOneQueue", EarlyAdopter, "64 VIs share one completion queue", anyLevel, 0, manyVIs},
	{"SeparateQueues", EarlyAdopter, "a VI's send and receive queue may complete to different queues", anyLevel, 0, separateQueues},
	{"SmallBatches", EarlyAdopter, "polling one completion at a time loses none", anyLevel, 0, smallBatches},
	{"FileDescriptorIsStable", Functional, "a completion queue keeps its file descriptor", anyLevel, 0, stableFD},
}

// readable reports whether a file descriptor is readable now.
func (e *env) readable(fd int) bool {
	e.t.Helper()
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			e.t.Fatalf("poll completion queue's file descriptor: %v", err)
		}
		return n == 1
	}
}

func armFalseWhenReady(e *env) {
	e.connect()
	e.server.recv()
	s := e.client.send()
	e.wakes(e.server, e.client)
	if e.server.cq.Arm() {
		e.t.Fatalf("Arm accepts although a message is there")
	}
	e.untilBy("the message", func() bool { return len(e.server.done) == 1 }, e.server)
	e.ok(e.client, s)
	// A completion that is ready inside the user agent counts as well.
	e.client.recv()
	e.client.recv()
	e.check(e.client.vi.Disconnect(), "disconnect")
	var one [1]via.Completion
	if e.client.cq.Arm() {
		e.t.Errorf("Arm accepts with two flushed descriptors to return")
	}
	e.client.collect(one[:e.client.cq.Poll(one[:])])
	if e.client.cq.Arm() {
		e.t.Errorf("Arm accepts with a flushed descriptor to return")
	}
}

func wakeUpAfterArm(e *env) {
	e.connect()
	for range 20 {
		r := e.server.recv()
		e.rests(e.server)
		s := e.client.send()
		e.wakes(e.server, e.client)
		e.untilBy("the message", func() bool { _, ok := e.server.seen[r]; return ok }, e.server)
		e.ok(e.client, s)
	}
	e.rests(e.client)
	e.rests(e.server)
}

// disarmedLosesNothing has the client post, and be sent to, while it is awake
// after Arm.
func disarmedLosesNothing(e *env) {
	e.connect()
	for range 20 {
		request, reply := e.server.recv(), e.client.recv()
		e.rests(e.client)
		e.client.cq.Disarm()
		s := e.client.send()
		e.untilBy("the request", func() bool { _, ok := e.server.seen[request]; return ok }, e.server)
		answer := e.server.send()
		e.wakes(e.client, e.server)
		e.ok(e.client, s)
		e.ok(e.client, reply)
		e.ok(e.server, answer)
	}
	e.rests(e.client)
	e.rests(e.server)
}

// rests waits until an end with nothing to do can sleep. It may be woken for
// nothing now and then, as by what the peer retransmits after a loss, and Arm
// may find another thread amid the end's work, but not for ever.
func (e *env) rests(x *end) {
	e.t.Helper()
	e.untilBy(x.name+" to sleep, with nothing to do", func() bool {
		for x.poll() != 0 {
		}
		return x.cq.Arm() && !e.readable(x.cq.FD())
	})
}

// wakes waits until an end that armed or arms now is woken; only the other end
// gets turns.
func (e *env) wakes(sleeper, other *end) {
	e.t.Helper()
	e.untilBy(sleeper.name+" to be woken", func() bool {
		return !sleeper.cq.Arm() || e.readable(sleeper.cq.FD())
	}, other)
}

// pingPong exchanges messages of 64 bytes and sleeps whenever nothing is ready;
// sleep returns false if nothing wakes the end. A receive is posted before; the
// end that does not serve begins.
func (x *end) pingPong(recv *via.Descriptor, rounds int, serve bool, sleep func() bool) error {
	send := x.desc(1)
	src, dst := x.buffer(64), x.buffer(64)
	post := func() error {
		x.book(x.vi, false, build(send, via.OpSend, nil, []buf{src}))
		return x.vi.PostSend(send)
	}
	sent, received := serve, false
	if !serve {
		if err := post(); err != nil {
			return err
		}
	}
	for round := 0; ; {
		x.done = x.done[:0]
		if x.poll() == 0 && !sleep() {
			return fmt.Errorf("no wake-up in round %d; %v", round, x)
		}
		for _, c := range x.done {
			if c.Status.Failed() {
				return fmt.Errorf("round %d: %v", round, c.Status)
			}
			sent, received = sent || !c.Recv, received || c.Recv
		}
		if !sent || !received {
			continue
		}
		sent, received = false, false
		if round++; round < rounds {
			x.book(x.vi, true, build(recv, via.OpRecv, nil, []buf{dst}))
			if err := x.vi.PostRecv(recv); err != nil {
				return err
			}
		} else if !serve {
			return nil
		}
		if err := post(); err != nil || round == rounds {
			return err
		}
	}
}

func noLostWakeUp(e *env) {
	e.connect()
	e.exchange(e.client.sleep, e.server.sleep)
}

// exchange has both ends exchange messages, each on a goroutine.
func (e *env) exchange(client, server func() bool) {
	e.t.Helper()
	const rounds = 1500
	mine, theirs := e.client.recv(e.client.buffer(64)), e.server.recv(e.server.buffer(64))
	served := make(chan error, 1)
	go func() { served <- e.server.pingPong(theirs, rounds, true, server) }()
	err := e.client.pingPong(mine, rounds, false, client)
	e.check(<-served, "server")
	e.check(err, "client")
	e.until("the last send to complete", func() bool { send, _ := e.server.vi.QueuesEmpty(); return send })
}

func noLostEdge(e *env) {
	if !e.client.cq.Edges() {
		return // ArmEdge is Arm
	}
	e.connect()
	e.exchange(e.edges(e.client), e.edges(e.server))
}

func noLostFlag(e *env) {
	e.connect()
	page, err := sleepflag.Process()
	e.check(err, "page of sleep flags")
	var flags [2]*sleepflag.Flag
	for i := range flags {
		flags[i], err = page.Acquire()
		e.check(err, "sleep flag")
		defer flags[i].Release()
	}
	e.exchange(e.flagged(e.client, flags[0]), e.flagged(e.server, flags[1]))
}

// flagged is end.sleep for an end whose peer goes by a flag, if it can. The
// thread does other things for a while before it sleeps, up to so many
// microseconds: messages that arrive meanwhile announce themselves by nothing.
func (e *env) flagged(x *end, flag *sleepflag.Flag) (sleep func() bool) {
	e.t.Helper()
	const most = 20
	edge, round := e.edge(x), 0
	return func() bool {
		if !x.cq.ArmEdge() {
			return true
		}
		if !x.cq.Share(flag.Index()) {
			return edge()
		}
		round++
		for end := time.Now().Add(time.Duration(round%most) * time.Microsecond); time.Now().Before(end); {
		}
		flag.Sleep()
		defer flag.Wake()
		return x.cq.Pending() || edge()
	}
}

// edges is end.sleep for an end that watches for edges alone.
func (e *env) edges(x *end) (sleep func() bool) {
	e.t.Helper()
	edge := e.edge(x)
	return func() bool { return !x.cq.ArmEdge() || edge() }
}

// edge returns a wait for an edge, which returns false if there is none.
func (e *env) edge(x *end) (wait func() bool) {
	e.t.Helper()
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	e.check(err, "create epoll")
	e.t.Cleanup(func() { _ = unix.Close(epoll) })
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET}
	e.check(unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, x.cq.FD(), &event), "watch the completion queue")
	return func() bool {
		var events [1]unix.EpollEvent
		for deadline := time.Now().Add(caseTimeout); time.Now().Before(deadline); {
			n, err := unix.EpollWait(epoll, events[:], int(time.Until(deadline)/time.Millisecond)+1)
			if n == 1 {
				return true
			}
			if err != nil && err != unix.EINTR {
				return false
			}
		}
		return false
	}
}

// quietWithoutConnection ends a connection whose client waits for an answer:
// timers of that expire later.
func quietWithoutConnection(e *env) {
	const quiet = 200 // ms
	e.connect()
	e.client.send()
	e.untilBy("the client to sleep", func() bool { return e.client.cq.Arm() }, e.client)
	e.check(e.client.vi.Disconnect(), "disconnect")
	for e.client.poll() != 0 {
	}
	fds := []unix.PollFd{{Fd: int32(e.client.cq.FD()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, quiet)
	for err == unix.EINTR {
		n, err = unix.Poll(fds, quiet)
	}
	if err != nil || n != 0 {
		e.t.Errorf("the file descriptor is readable though there is no connection: %d, %v", n, err)
	}
}

func wakeUpOnDisconnect(e *env) {
	for range 10 {
		e.connect()
		e.server.recv()
		woken := e.asleep(1) // the flushed receive
		e.check(e.client.vi.Disconnect(), "disconnect")
		e.drive(woken)
		e.breaks(e.server)
	}
}

func sleepingSender(e *env) {
	e.connect()
	const count = 100
	size := int(min(128<<10, maxTransfer(e)))
	room := e.client.buffer(size)
	for range count {
		e.client.recv(room)
	}
	src := e.server.buffer(size)
	for range count {
		e.server.send(src)
	}
	// The server sleeps with sends that wait for room; the client receives
	// without ever sending.
	e.drive(e.asleep(count))
	e.until("the client to receive all", func() bool { return len(e.client.done) == count })
}

func manyVIs(e *env) {
	const count = 64
	var clients, servers []*via.VI
	attrs := func(x *end) via.ViAttributes { return x.small(4096) }
	cfg := func(x *end) via.ViConfig {
		return via.ViConfig{SendCQ: x.cq, RecvCQ: x.cq, SendDepth: 4, RecvDepth: 4}
	}
	for range count {
		clients = append(clients, e.client.newViOn(attrs(e.client), cfg(e.client)))
		servers = append(servers, e.server.newViOn(attrs(e.server), cfg(e.server)))
		e.join(clients[len(clients)-1], servers[len(servers)-1])
	}
	for round := range 5 {
		e.client.done, e.server.done = nil, nil
		arrived := make(map[*via.VI]uint32)
		for i := range count {
			i := (i*37 + round) % count // another order each round
			e.server.postRecv(servers[i], build(e.server.desc(1), via.OpRecv, nil, []buf{e.server.buffer(64)}))
			d := build(e.client.desc(1), via.OpSend, nil, []buf{e.client.buffer(64)})
			d.SetImmediate(uint32(i))
			e.client.postSend(clients[i], d)
		}
		e.until("all messages", func() bool { return len(e.server.done) == count && len(e.client.done) == count })
		for _, c := range e.server.done {
			arrived[c.VI] = c.Immediate
		}
		for i, vi := range servers {
			if got, ok := arrived[vi]; !ok || got != uint32(i) {
				e.t.Fatalf("vi %d got the message of vi %d", i, got)
			}
		}
	}
}

func separateQueues(e *env) {
	for _, x := range []*end{e.client, e.server} {
		x.vi = x.newViOn(x.attributes(), via.ViConfig{
			SendCQ: x.newCQ(queueDepth), RecvCQ: x.newCQ(queueDepth), SendDepth: queueDepth, RecvDepth: queueDepth,
		})
	}
	e.join(e.client.vi, e.server.vi)
	r := e.server.recv(e.server.buffer(8))
	s := e.client.send(e.client.buffer(8))
	e.ok(e.client, s)
	e.ok(e.server, r)
	pending := e.server.recv(e.server.buffer(8))
	e.check(e.client.vi.Disconnect(), "disconnect")
	e.fails(e.server, pending, via.StatusFlushed)
	if n := e.server.cq.Poll(e.server.batch[:]) + e.client.cq.Poll(e.client.batch[:]); n != 0 {
		e.t.Errorf("%d completions on a queue that no vi is bound to", n)
	}
}

func smallBatches(e *env) {
	e.connect()
	for range 50 {
		e.server.recv(e.server.buffer(8))
		e.client.stage(build(e.client.desc(1), via.OpSend, nil, []buf{e.client.buffer(8)}))
	}
	e.client.vi.Doorbell()
	one := make([]via.Completion, 1)
	for _, x := range []*end{e.client, e.server} {
		e.until("all completions", func() bool {
			n := x.cq.Poll(one)
			x.collect(one[:n])
			return len(x.done) == 50
		})
	}
	for range 20 {
		e.server.recv()
	}
	e.check(e.server.vi.Disconnect(), "disconnect")
	for i := range 20 {
		if e.server.cq.Poll(one) != 1 {
			e.t.Fatalf("flushed receive %d is not returned", i)
		}
		e.server.collect(one)
	}
}

func stableFD(e *env) {
	fd := e.server.cq.FD()
	if fd < 0 {
		e.t.Fatalf("file descriptor %d", fd)
	}
	e.connect()
	e.server.recv()
	e.ok(e.client, e.client.send())
	e.rejoin()
	if got := e.server.cq.FD(); got != fd {
		e.t.Errorf("file descriptor %d became %d", fd, got)
	}
}
