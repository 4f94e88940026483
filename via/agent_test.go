package via

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
)

// Every control call is counted, in its own counter, and nothing else is.
func TestAgentCounters(t *testing.T) {
	p := newScripted()
	p.limits.MaxCQ = 8
	b := p.bench(t, ReliableDelivery)
	s := b.nic.Agent()
	in := func(attrs ViAttributes) *ConnRequest {
		return &ConnRequest{nic: b.nic, in: &scriptedIncoming{}, attrs: attrs}
	}
	b.p.connect = func(cfg LinkConfig) (Link, []byte, error) {
		b.link = &scriptedLink{cfg: cfg, room: 1 << 20}
		return b.link, encodeHello(hello{attrs: b.vi.attrs}), nil
	}
	var tag Ptag
	var arena *Arena
	var mem *Memory
	var cq *CQ
	var vi *VI
	var l *Listener
	var batch [8]Completion
	type want struct{ objects, listens, connects, disconnects, registers, deregisters, changes uint64 }
	for _, c := range []struct {
		call string
		do   func() error
		want want
	}{
		{"create tag", func() (err error) { tag, err = b.nic.CreatePtag(); return }, want{objects: 1}},
		{"destroy tag", func() error { return b.nic.DestroyPtag(tag) }, want{objects: 1}},
		{"map arena", func() (err error) { arena, err = b.nic.NewArena(4096); return }, want{objects: 1}},
		{"register", func() (err error) {
			mem, err = b.nic.RegisterMem(arena.Bytes(), MemAttributes{Ptag: b.tag})
			return
		}, want{registers: 1}},
		{"set memory attributes", func() error { return mem.SetAttributes(mem.Attributes()) }, want{changes: 1}},
		{"deregister", func() error { return mem.Deregister() }, want{deregisters: 1}},
		{"unmap arena", func() error { return arena.Close() }, want{objects: 1}},
		{"create queue", func() (err error) { cq, err = b.nic.CreateCQ(4); return }, want{objects: 1}},
		{"resize queue", func() error { return cq.Resize(8) }, want{changes: 1}},
		{"create vi", func() (err error) {
			vi, err = b.nic.CreateVi(b.vi.attrs, ViConfig{SendCQ: cq, RecvCQ: cq, SendDepth: 1, RecvDepth: 1})
			return
		}, want{objects: 1}},
		{"set vi attributes", func() error { return vi.SetAttributes(vi.Attributes()) }, want{changes: 1}},
		{"accept", func() error { return in(vi.attrs).Accept(context.Background(), vi) }, want{connects: 1}},
		{"disconnect", func() error { return vi.Disconnect() }, want{disconnects: 1}},
		{"disconnect again", func() error { return vi.Disconnect() }, want{}},
		{"reject", func() error { return in(vi.attrs).Reject() }, want{connects: 1}},
		{"peer request and wait", func() error {
			b.must(vi.PeerRequest(callerAddr, waiterAddr, Infinite))
			_, err := vi.PeerWait()
			return err
		}, want{connects: 1}},
		{"disconnect peer", func() error { return vi.Disconnect() }, want{disconnects: 1}},
		{"destroy vi", func() error { return vi.Destroy() }, want{objects: 1}},
		{"destroy queue", func() error { return cq.Destroy() }, want{objects: 1}},
		{"listen", func() (err error) { l, err = b.nic.Listen(waiterAddr); return }, want{listens: 1}},
		{"stop listening", func() error { return l.Close() }, want{listens: 1}},
		{"connect", func() error { b.connect(); return nil }, want{connects: 1}},
		{"the data path", func() error {
			for range 100 {
				b.used = 0
				b.send(OpSend, 8)
				b.must(b.vi.StageSend(b.desc(OpRdmaRead, 8)))
				b.vi.Doorbell()
				b.recv(8)
				k, r := len(b.link.sends), len(b.link.recvs)
				b.report(Done{Work: b.link.sends[k-2]}, Done{Work: b.link.sends[k-1]}, Done{Work: b.link.recvs[r-1]})
				b.cq.Arm()
				_, _, err := b.cq.Wait(Infinite)
				b.must(err)
				_, err = b.vi.SendDone()
				b.must(err)
				for b.cq.Poll(batch[:]) > 0 {
				}
				b.vi.Stats()
				b.vi.SendQueueStats()
				b.vi.QueuesEmpty()
				b.nic.LookupMemory(b.mem.Handle())
			}
			return nil
		}, want{}},
	} {
		before := [7]uint64{}
		counters := [7]func() uint64{
			s.Objects.Load, s.Listens.Load, s.Connects.Load, s.Disconnects.Load,
			s.Registrations.Load, s.Deregistrations.Load, s.AttributeChanges.Load,
		}
		for i, load := range counters {
			before[i] = load()
		}
		calls := s.Calls()
		if err := c.do(); err != nil {
			t.Fatalf("%s: %v", c.call, err)
		}
		var got [7]uint64
		var sum uint64
		for i, load := range counters {
			got[i] = load() - before[i]
			sum += got[i]
		}
		w := c.want
		if got != [7]uint64{w.objects, w.listens, w.connects, w.disconnects, w.registers, w.deregisters, w.changes} {
			t.Errorf("%s: counted %v, want %+v", c.call, got, w)
		}
		if s.Calls()-calls != sum {
			t.Errorf("%s: %d calls, the counters say %d", c.call, s.Calls()-calls, sum)
		}
	}
}

// A host that closes is waited for by who wants to listen there.
func TestListenWhileTheHostCloses(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	closing, release := make(chan struct{}), make(chan struct{})
	open := 0
	b.p.listen = func(string, func(Incoming)) (Listening, error) {
		if open++; open > 1 {
			return nil, errors.New("socket in use")
		}
		return closerFunc(func() error {
			close(closing)
			<-release
			open--
			return nil
		}), nil
	}
	l, err := b.nic.Listen(waiterAddr)
	b.must(err)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	<-closing
	b.wants(b.nic.Close(), ErrResource, "close while a host closes")
	wg.Go(func() {
		again, err := b.nic.Listen(waiterAddr)
		if err != nil {
			t.Errorf("listen while the host closes: %v", err)
			return
		}
		closing, release = make(chan struct{}), make(chan struct{})
		close(release)
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	})
	for range 1000 { // the listen is in progress, or about to be
		runtime.Gosched()
	}
	close(release)
	wg.Wait()
	if n := len(b.nic.agent.listeners); n != 0 || open != 0 {
		t.Errorf("%d hosts in the books, %d open", n, open)
	}
}

type closerFunc func() error

func (f closerFunc) Close() error { return f() }

// The device fails: every VI without a connection is told by the agent, the
// others by their links; nothing new is made, everything is torn down.
func TestNicFailure(t *testing.T) {
	watchLeaks(t)
	b := newBench(t, UnreliableDelivery)
	cfg := ViConfig{SendCQ: b.cq, RecvCQ: b.cq, SendDepth: 4, RecvDepth: 4}
	idle, err := b.nic.CreateVi(b.vi.attrs, cfg)
	b.must(err)
	pending, err := b.nic.CreateVi(b.vi.attrs, cfg)
	b.must(err)
	b.connect()
	b.p.answer(refusal(refuseNoMatch))
	b.must(pending.PeerRequest(callerAddr, waiterAddr, Infinite))
	early := b.desc(OpRecv, 8)
	b.must(idle.PostRecv(early))
	s := b.send(OpSend, 8)
	failure := Done{Event: &Event{Owner: b.vi, Code: AsyncCatastrophic, Broken: true}}
	b.report(failure, failure)
	b.poll()
	for _, vi := range []*VI{b.vi, idle, pending} {
		if vi.State() != StateError {
			t.Errorf("a vi is %v", vi.State())
		}
		_, err := vi.Connect(context.Background(), waiterAddr)
		b.wants(err, ErrResource, "connect at a failed nic")
	}
	if len(b.errs) != 1 || b.errs[0].Code != AsyncCatastrophic || b.errs[0].VI != nil || b.errs[0].NIC != b.nic {
		t.Errorf("callbacks %+v", b.errs)
	}
	if s.Status()&StatusErrorMask != StatusFlushed || early.Status() != 0 {
		t.Errorf("send is %v, the idle vi's receive %v", s.Status(), early.Status())
	}
	late := b.desc(OpRecv, 8)
	b.must(idle.PostRecv(late))
	for i, want := range []*Descriptor{early, late} { // in order, both at once
		if d, err := idle.RecvDone(); d != want || err != ErrDescriptor || d.Status()&StatusErrorMask != StatusFlushed {
			t.Errorf("receive %d is %p (%v), want %p", i, d, err, want)
		}
	}
	_, err = b.nic.CreatePtag()
	b.wants(err, ErrResource, "create a tag")
	_, err = b.nic.CreateCQ(1)
	b.wants(err, ErrResource, "create a queue")
	_, err = b.nic.CreateVi(b.vi.attrs, cfg)
	b.wants(err, ErrResource, "create a vi")
	_, err = b.nic.NewArena(1)
	b.wants(err, ErrResource, "map an arena")
	_, err = b.nic.RegisterMem(b.mem.bytes, MemAttributes{Ptag: b.tag})
	b.wants(err, ErrResource, "register")
	_, err = b.nic.Listen(waiterAddr)
	b.wants(err, ErrResource, "listen")
	b.must(pending.Disconnect())
	b.must(idle.Disconnect())
	b.poll()
	b.must(pending.Destroy())
	b.must(idle.Destroy())
	b.close()
}

// A failure counts whatever became of the connection that reports it.
func TestNicFailureReportedByAnEndedLink(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	b.connect()
	b.must(b.vi.Disconnect())
	b.report(Done{Event: &Event{Owner: b.vi, Code: AsyncCatastrophic, Broken: true}})
	b.poll()
	if b.vi.State() != StateError || len(b.errs) != 1 {
		t.Errorf("vi is %v, callbacks %v", b.vi.State(), b.codes())
	}
}

// The device fails while connections come and go: no VI is left that believes
// in it, and no link.
func TestNicFailureWhileConnecting(t *testing.T) {
	for i := range 200 {
		b := newBench(t, ReliableDelivery)
		link := &scriptedLink{room: 1}
		b.p.connect = func(LinkConfig) (Link, []byte, error) {
			return link, encodeHello(hello{attrs: b.vi.attrs}), nil
		}
		failed := make(chan struct{})
		go func() {
			defer close(failed)
			for range i {
				_ = b.vi.State()
			}
			b.nic.agent.fail()
		}()
		_, err := b.vi.Connect(context.Background(), waiterAddr)
		<-failed
		switch s := b.vi.State(); {
		case err == nil && s == StateConnected && link.closed == 0: // its link reports the failure
		case err != nil && errors.Is(err, ErrResource) && s == StateError && link.closed <= 1:
		case errors.Is(err, ErrInvalidState) && s == StateError && link.closed == 0: // the failure came first
		default:
			t.Fatalf("connect: %v, vi is %v, the link is closed %d times", err, s, link.closed)
		}
	}
}

// Nil objects and closed NICs are refused, not obeyed.
func TestNilsAndTheClosedNic(t *testing.T) {
	_, err := OpenNic(nil, "")
	b := newBench(t, ReliableDelivery)
	b.wants(err, ErrInvalidParameter, "open a nic of no provider")
	r := &ConnRequest{nic: b.nic, in: &scriptedIncoming{}, attrs: b.vi.attrs}
	b.wants(r.Accept(context.Background(), nil), ErrInvalidParameter, "accept without a vi")
	b.wants(b.vi.PostSend(nil), ErrInvalidParameter, "post nothing")
	b.wants(b.vi.PostRecv(&Descriptor{}), ErrInvalidParameter, "post a descriptor of no memory")
	arena := b.mem.Arena()
	attrs, tag := b.vi.attrs, b.tag
	b.close()
	_, err = b.nic.CreatePtag()
	b.wants(err, ErrInvalidParameter, "create a tag")
	_, err = b.nic.CreateCQ(1)
	b.wants(err, ErrInvalidParameter, "create a queue")
	_, err = b.nic.CreateVi(attrs, ViConfig{SendDepth: 1, RecvDepth: 1})
	b.wants(err, ErrInvalidParameter, "create a vi")
	mapped := false
	b.p.mapped = func() { mapped = true }
	_, err = b.nic.NewArena(1)
	b.wants(err, ErrInvalidParameter, "map an arena")
	if mapped {
		t.Error("a closed device is asked for memory")
	}
	_, err = b.nic.RegisterMem(b.mem.bytes, MemAttributes{Ptag: tag})
	b.wants(err, ErrInvalidParameter, "register")
	_, err = b.nic.Listen(waiterAddr)
	b.wants(err, ErrInvalidParameter, "listen")
	b.wants(arena.Close(), ErrInvalidParameter, "unmap an arena that went with its nic")
	b.wants(arena.Discard(0, 1), ErrInvalidParameter, "discard pages that are unmapped")
	b.wants(b.mem.SetAttributes(MemAttributes{Ptag: tag}), ErrInvalidParameter, "change a dead region")
	b.wants(b.nic.Close(), ErrInvalidParameter, "close again")
	b.wants(b.vi.Disconnect(), ErrInvalidParameter, "disconnect a destroyed vi")
	_, err = b.vi.Connect(context.Background(), waiterAddr)
	b.wants(err, ErrInvalidParameter, "connect a destroyed vi")
	b.wants(b.vi.SetAttributes(attrs), ErrInvalidParameter, "set a destroyed vi")
	_, err = b.vi.SendDone()
	b.wants(err, ErrInvalidParameter, "done of a destroyed vi")
	_, _, err = b.cq.Done()
	b.wants(err, ErrInvalidParameter, "done of a destroyed queue")
	_, _, err = b.cq.Wait(Infinite)
	b.wants(err, ErrInvalidParameter, "wait for a destroyed queue")
	b.wants(b.cq.Resize(4), ErrInvalidParameter, "resize a destroyed queue")
}
