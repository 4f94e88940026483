package via

import (
	"context"
	"slices"
	"testing"
)

// in brings a VI into a state.
func (b *bench) in(s State) {
	b.t.Helper()
	switch s {
	case StateConnected:
		b.connect()
	case StatePending:
		a, err := b.vi.begin(context.Background(), nil)
		b.must(err)
		go func() { // an attempt without an answer
			<-a.ctx.Done()
			_ = b.vi.finish(a, nil, a.ctx.Err())
		}()
	case StateError:
		b.connect()
		b.report(Done{Event: &Event{Owner: b.vi, Code: AsyncConnectionLost, Broken: true}})
		b.poll()
		b.errs = nil
	}
	if got := b.vi.State(); got != s {
		b.t.Fatalf("vi is %v, want %v", got, s)
	}
}

// Each event in each state leads to the specified state (VIA 1.0 §2.2;
// reference part 1.4).
func TestStates(t *testing.T) {
	accepting := func(b *bench) error {
		r := &ConnRequest{nic: b.nic, in: &scriptedIncoming{}, attrs: b.vi.attrs}
		return r.Accept(context.Background(), b.vi)
	}
	connecting := func(b *bench) error {
		b.p.connect = func(cfg LinkConfig) (Link, []byte, error) {
			return &scriptedLink{cfg: cfg}, encodeHello(hello{attrs: b.vi.attrs}), nil
		}
		_, err := b.vi.Connect(context.Background(), Address{})
		return err
	}
	answered := func(link Link, reply []byte, err error) func(b *bench) error {
		return func(b *bench) error {
			b.p.connect = func(LinkConfig) (Link, []byte, error) { return link, reply, err }
			_, err := b.vi.Connect(context.Background(), Address{})
			return err
		}
	}
	rejected := answered(nil, nil, &Refused{Reply: []byte{refuseReject}})
	unmatched := answered(nil, nil, &Refused{Reply: []byte{refuseNoMatch}})
	expired := answered(nil, nil, ErrTimeout)
	mismatched := answered(&scriptedLink{}, encodeHello(hello{attrs: ViAttributes{Reliability: ReliableReception}}), nil)
	faltering := answered(nil, nil, &FabricError{ErrResource})
	stillborn := func(b *bench) error {
		return answered(&scriptedLink{fail: ErrResource}, encodeHello(hello{attrs: b.vi.attrs}), nil)(b)
	}
	failedAccept := func(b *bench) error {
		r := &ConnRequest{nic: b.nic, in: &scriptedIncoming{fail: &FabricError{ErrResource}}, attrs: b.vi.attrs}
		return r.Accept(context.Background(), b.vi)
	}
	peering := func(b *bench) error {
		b.p.connect = func(cfg LinkConfig) (Link, []byte, error) {
			return &scriptedLink{cfg: cfg}, encodeHello(hello{attrs: b.vi.attrs}), nil
		}
		if err := b.vi.PeerRequest(callerAddr, waiterAddr, Infinite); err != nil {
			return err
		}
		if s := b.vi.State(); s != StatePending {
			b.t.Errorf("after a peer request the vi is %v", s)
		}
		_, err := b.vi.PeerWait()
		return err
	}
	dying := func(b *bench) error {
		b.report(Done{Event: &Event{Owner: b.vi, Code: AsyncCatastrophic, Broken: true}})
		b.poll()
		return nil
	}
	faulty := func(b *bench) error {
		d := b.desc(OpSend, 8)
		d.b[offLength]++
		return b.vi.PostSend(d)
	}
	misplaced := func(b *bench) error {
		return b.vi.PostSend(&Descriptor{mem: b.mem, b: b.mem.bytes[8:72], addr: b.mem.addr + 8})
	}
	changing := func(b *bench) error { return b.vi.SetAttributes(b.vi.attrs) }
	overrun := func(b *bench) error {
		for range 8 {
			if err := b.vi.PostRecv(b.desc(OpRecv, 8)); err != nil {
				return err
			}
		}
		return b.vi.PostRecv(b.desc(OpRecv, 8))
	}
	lost := func(b *bench) error {
		b.report(Done{Event: &Event{Owner: b.vi, Code: AsyncConnectionLost, Broken: true}})
		b.poll()
		return nil
	}
	for _, c := range []struct {
		event string
		do    func(*bench) error
		from  State
		err   error
		to    State
		codes []AsyncCode
	}{
		{"connect", connecting, StateIdle, nil, StateConnected, nil},
		{"connect", connecting, StatePending, ErrInvalidState, StatePending, nil},
		{"connect", connecting, StateConnected, ErrInvalidState, StateConnected, nil},
		{"connect", connecting, StateError, ErrInvalidState, StateError, nil},
		{"rejected", rejected, StateIdle, ErrReject, StateIdle, nil},
		{"no match", unmatched, StateIdle, ErrNoMatch, StateIdle, nil},
		{"timeout", expired, StateIdle, ErrTimeout, StateIdle, nil},
		{"mismatch", mismatched, StateIdle, ErrInvalidReliability, StateIdle, nil},
		{"fabric failure of a request", faltering, StateIdle, ErrNotReachable, StateError, nil},
		{"fabric failure of an acceptance", failedAccept, StateIdle, ErrResource, StateError, nil},
		{"link that does not start", stillborn, StateIdle, ErrResource, StateError, nil},
		{"peer request", peering, StateIdle, nil, StateConnected, nil},
		{"peer request", peering, StatePending, ErrInvalidState, StatePending, nil},
		{"peer request", peering, StateConnected, ErrInvalidState, StateConnected, nil},
		{"peer request", peering, StateError, ErrInvalidState, StateError, nil},
		{"nic failure", dying, StateIdle, nil, StateError, []AsyncCode{AsyncCatastrophic}},
		{"nic failure", dying, StatePending, nil, StateError, []AsyncCode{AsyncCatastrophic}},
		{"nic failure", dying, StateConnected, nil, StateError, []AsyncCode{AsyncCatastrophic}},
		{"nic failure", dying, StateError, nil, StateError, []AsyncCode{AsyncCatastrophic}},
		{"faulty descriptor", faulty, StateIdle, nil, StateIdle, nil},
		{"faulty descriptor", faulty, StatePending, nil, StatePending, nil},
		{"faulty descriptor", faulty, StateConnected, nil, StateError, nil},
		{"faulty descriptor", faulty, StateError, nil, StateError, nil},
		{"misplaced descriptor", misplaced, StateIdle, ErrInvalidParameter, StateIdle, []AsyncCode{AsyncPostDescriptor}},
		{"misplaced descriptor", misplaced, StatePending, ErrInvalidParameter, StatePending, []AsyncCode{AsyncPostDescriptor}},
		{"misplaced descriptor", misplaced, StateConnected, ErrInvalidParameter, StateError, []AsyncCode{AsyncPostDescriptor}},
		{"misplaced descriptor", misplaced, StateError, ErrInvalidParameter, StateError, []AsyncCode{AsyncPostDescriptor}},
		{"set attributes", changing, StateIdle, nil, StateIdle, nil},
		{"set attributes", changing, StatePending, ErrInvalidState, StatePending, nil},
		{"set attributes", changing, StateConnected, ErrInvalidState, StateConnected, nil},
		{"set attributes", changing, StateError, ErrInvalidState, StateError, nil},
		{"accept", accepting, StateIdle, nil, StateConnected, nil},
		{"accept", accepting, StatePending, ErrInvalidState, StatePending, nil},
		{"accept", accepting, StateConnected, ErrInvalidState, StateConnected, nil},
		{"accept", accepting, StateError, ErrInvalidState, StateError, nil},
		{"disconnect", (*bench).disconnect, StateIdle, nil, StateIdle, nil},
		{"disconnect", (*bench).disconnect, StatePending, nil, StateIdle, nil},
		{"disconnect", (*bench).disconnect, StateConnected, nil, StateIdle, nil},
		{"disconnect", (*bench).disconnect, StateError, nil, StateIdle, nil},
		{"destroy", (*bench).destroy, StateIdle, nil, StateIdle, nil},
		{"destroy", (*bench).destroy, StatePending, ErrResource, StatePending, nil},
		{"destroy", (*bench).destroy, StateConnected, ErrResource, StateConnected, nil},
		{"destroy", (*bench).destroy, StateError, ErrResource, StateError, nil},
		{"loss", lost, StateIdle, nil, StateIdle, nil},
		{"loss", lost, StatePending, nil, StatePending, nil},
		{"loss", lost, StateConnected, nil, StateError, []AsyncCode{AsyncConnectionLost}},
		{"loss", lost, StateError, nil, StateError, nil},
		{"overrun", overrun, StateIdle, ErrResource, StateIdle, []AsyncCode{AsyncOverrun}},
		{"overrun", overrun, StatePending, ErrResource, StatePending, []AsyncCode{AsyncOverrun}},
		{"overrun", overrun, StateConnected, ErrResource, StateError, []AsyncCode{AsyncOverrun}},
		{"overrun", overrun, StateError, ErrResource, StateError, []AsyncCode{AsyncOverrun}},
	} {
		b := newBench(t, ReliableDelivery)
		b.in(c.from)
		err := c.do(b)
		if c.err == nil {
			b.must(err)
		} else {
			b.wants(err, c.err, c.event)
		}
		if got := b.vi.State(); got != c.to {
			t.Errorf("%s while %v: %v, want %v", c.event, c.from, got, c.to)
		}
		if got := b.codes(); !slices.Equal(got, c.codes) {
			t.Errorf("%s while %v: callbacks %v, want %v", c.event, c.from, got, c.codes)
		}
		if c.event == "destroy" && c.err == nil {
			continue
		}
		b.must(b.vi.Disconnect()) // from wherever it is, the cycle begins again
		b.drain()
		if send, recv := b.vi.QueuesEmpty(); !send || !recv || b.vi.State() != StateIdle {
			t.Errorf("%s while %v: after a disconnect the vi is %v, its queues empty: %v, %v", c.event, c.from, b.vi.State(), send, recv)
		}
		if c.event == "nic failure" {
			b.wants(connecting(b), ErrResource, "connect at a failed nic")
			continue
		}
		_ = connecting(b) // reports what was met while idle, once
		b.must(b.vi.Disconnect())
		b.must(connecting(b))
	}
}

// An error met while idle is returned by the next attempt to connect, once, and
// leaves the VI idle.
func TestErrorsWhileIdleAreReportedByConnect(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(b *bench)
		want error
	}{
		{"overrun", func(b *bench) {
			for range 9 {
				_ = b.vi.PostRecv(b.desc(OpRecv, 8))
			}
		}, ErrResource},
		{"misplaced", func(b *bench) {
			_ = b.vi.PostRecv(&Descriptor{mem: b.mem, b: b.mem.bytes[8:72], addr: b.mem.addr + 8})
		}, ErrInvalidParameter},
	} {
		b := newBench(t, ReliableDelivery)
		c.do(b)
		_, err := b.vi.Connect(context.Background(), Address{})
		b.wants(err, c.want, c.name)
		if b.vi.State() != StateIdle {
			t.Errorf("%s: vi is %v", c.name, b.vi.State())
		}
		b.connect()
	}
}

func (b *bench) disconnect() error { return b.vi.Disconnect() }
func (b *bench) destroy() error    { return b.vi.Destroy() }

// Where a post completes at once, and where it waits or reaches the link.
func TestPostsByState(t *testing.T) {
	for _, c := range []struct {
		state           State
		sendNow, recvIn bool // a send completes flushed; a receive waits or is taken
	}{{StateIdle, true, true}, {StatePending, true, true}, {StateConnected, false, true}, {StateError, true, false}} {
		b := newBench(t, ReliableDelivery)
		b.in(c.state)
		r, s := b.recv(8), b.send(OpSend, 8)
		flushed := func(d *Descriptor) bool { return d.Status() == StatusDone|StatusFlushed|b.opOf(d == r) }
		if flushed(s) != c.sendNow || flushed(r) == c.recvIn {
			t.Errorf("%v: send is %v, receive is %v", c.state, s.Status(), r.Status())
		}
		want := 0
		if c.sendNow {
			want++
		}
		if !c.recvIn {
			want++
		}
		if got := len(b.poll()); got != want {
			t.Errorf("%v: %d completions, want %d", c.state, got, want)
		}
	}
}

func (b *bench) opOf(recv bool) Status {
	if recv {
		return StatusOpReceive
	}
	return StatusOpSend
}

// At unreliable delivery errors stay with their descriptor.
func TestUnreliableDeliveryStaysConnected(t *testing.T) {
	b := newBench(t, UnreliableDelivery)
	b.connect()
	first := b.send(OpSend, 8)
	bad := b.desc(OpSend, 8)
	bad.b[offLength]++
	b.must(b.vi.PostSend(bad))
	last := b.send(OpSend, 8)
	if len(b.link.sends) != 1 {
		t.Fatalf("%d sends reached the link before the faulty one", len(b.link.sends))
	}
	b.report(done(b.link.sends[0], 0, 8))
	if got := b.poll(); len(got) != 2 || got[0].Descriptor != first || got[1].Descriptor != bad || got[1].Status&StatusErrorMask != StatusLengthError {
		t.Errorf("completions %+v", got)
	}
	if b.vi.State() != StateConnected || len(b.link.sends) != 2 || last.Status() != 0 {
		t.Errorf("after a faulty descriptor: %v, %d sends at the link", b.vi.State(), len(b.link.sends))
	}
	b.wants(b.vi.PostSend(&Descriptor{mem: b.mem, b: b.mem.bytes[8:72], addr: b.mem.addr + 8}), ErrInvalidParameter, "post off alignment")
	if b.vi.State() != StateConnected || len(b.errs) != 1 {
		t.Errorf("after a bad post: %v, %d callbacks", b.vi.State(), len(b.errs))
	}
	b.report(Done{Event: &Event{Owner: b.vi, Code: AsyncRecvQueueEmpty}})
	b.poll()
	if b.vi.State() != StateConnected || len(b.errs) != 2 || b.errs[1].Code != AsyncRecvQueueEmpty {
		t.Errorf("after a dropped message: %v, callbacks %v", b.vi.State(), b.codes())
	}
}

// scriptedIncoming is a request that can always be accepted.
type scriptedIncoming struct {
	hello   []byte
	answers [][]byte
	fail    error
	link    *scriptedLink // what Accept made
}

func (i *scriptedIncoming) Hello() []byte      { return i.hello }
func (i *scriptedIncoming) RemoteHost() string { return "peer" }
func (i *scriptedIncoming) Refuse(reply []byte) error {
	i.answers = append(i.answers, reply)
	return nil
}

func (i *scriptedIncoming) Accept(_ context.Context, reply []byte, cfg LinkConfig) (Link, error) {
	i.answers = append(i.answers, reply)
	if i.fail != nil {
		return nil, i.fail
	}
	i.link = &scriptedLink{cfg: cfg}
	return i.link, nil
}
