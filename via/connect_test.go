package via

import (
	"context"
	"errors"
	"sync"
	"testing"
)

func TestConnectErrors(t *testing.T) {
	expired, cancel := context.WithCancel(context.Background())
	cancel()
	wire := errors.New("wire")
	for _, c := range []struct {
		name string
		ctx  context.Context
		err  error
		want error
		to   State
	}{
		{"rejected", context.Background(), &Refused{Reply: []byte{refuseReject}}, ErrReject, StateIdle},
		{"refused without a reason", context.Background(), &Refused{}, ErrReject, StateIdle},
		{"not understood", context.Background(), &Refused{Reply: []byte{refuseInvalid}}, ErrReject, StateIdle},
		{"no match", context.Background(), &Refused{Reply: []byte{refuseNoMatch}}, ErrNoMatch, StateIdle},
		{"not reachable", context.Background(), ErrNotReachable, ErrNotReachable, StateIdle},
		{"expired", expired, context.Canceled, ErrTimeout, StateIdle},
		{"expired, as the provider says", expired, ErrTimeout, ErrTimeout, StateIdle},
		{"cause survives", context.Background(), wire, wire, StateIdle},
		{"the fabric fails", context.Background(), &FabricError{wire}, wire, StateError},
		{"the fabric fails, as a code", context.Background(), &FabricError{wire}, ErrNotReachable, StateError},
		{"cause survives a timeout", expired, wire, wire, StateIdle},
	} {
		b := newBench(t, ReliableDelivery)
		pending := b.recv(8)
		b.p.connect = func(LinkConfig) (Link, []byte, error) { return nil, nil, c.err }
		_, err := b.vi.Connect(c.ctx, Address{Host: "h"})
		b.wants(err, c.want, c.name)
		if b.vi.State() != c.to || pending.Status() != 0 {
			t.Errorf("%s: vi is %v, its receive %v", c.name, b.vi.State(), pending.Status())
		}
	}
}

// An answer that does not fit ends the new link.
func TestConnectRefusesAnswers(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	other := b.vi.attrs
	other.MaxTransferSize--
	qos := b.vi.attrs
	qos.QoS++
	level := b.vi.attrs
	level.Reliability = ReliableReception
	for _, c := range []struct {
		reply []byte
		want  error
	}{
		{nil, ErrInvalidParameter},
		{[]byte("garbage of some length"), ErrInvalidParameter},
		{encodeHello(hello{attrs: other}), ErrInvalidMTU},
		{encodeHello(hello{attrs: qos}), ErrInvalidQoS},
		{encodeHello(hello{attrs: level}), ErrInvalidReliability},
	} {
		link := &scriptedLink{}
		b.p.connect = func(LinkConfig) (Link, []byte, error) { return link, c.reply, nil }
		_, err := b.vi.Connect(context.Background(), Address{})
		b.wants(err, c.want, "connect")
		if link.closed != 1 || b.vi.State() != StateIdle {
			t.Errorf("the link is closed %d times, the vi %v", link.closed, b.vi.State())
		}
	}
}

func TestDispatch(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	var incoming func(Incoming)
	b.p.listen = func(_ string, f func(Incoming)) (Listening, error) {
		incoming = f
		return scriptedListening{}, nil
	}
	l, err := b.nic.Listen(Address{"h", "name"})
	b.must(err)
	ask := func(hello []byte) [][]byte {
		in := &scriptedIncoming{hello: hello}
		incoming(in)
		return in.answers
	}
	for name, c := range map[string]struct {
		hello  []byte
		reason byte
	}{
		"garbage": {[]byte("garbage"), refuseInvalid}, "no bytes": {nil, refuseInvalid},
		"another name": {encodeHello(hello{attrs: b.vi.attrs, discriminator: "other"}), refuseNoMatch},
	} {
		if got := ask(c.hello); len(got) != 1 || len(got[0]) != 1 || got[0][0] != c.reason {
			t.Errorf("%s: answered with %v, want %d", name, got, c.reason)
		}
	}
	var queued []*scriptedIncoming
	for range listenBacklog {
		in := &scriptedIncoming{hello: encodeHello(hello{attrs: b.vi.attrs, discriminator: "name"})}
		incoming(in)
		queued = append(queued, in)
	}
	if got := ask(encodeHello(hello{attrs: b.vi.attrs, discriminator: "name"})); len(got) != 1 || got[0][0] != refuseReject {
		t.Errorf("beyond the backlog: answered with %v", got)
	}
	r, err := l.Wait(context.Background())
	b.must(err)
	if r.RemoteHost() != "peer" || r.Attributes() != (ViAttributes{Reliability: ReliableDelivery, MaxTransferSize: 1 << 16}) {
		t.Errorf("request %q %+v", r.RemoteHost(), r.Attributes())
	}
	b.must(l.Close())
	for i, in := range queued {
		if want := min(i, 1); len(in.answers) != want {
			t.Errorf("request %d has %d answers after the listener closed, want %d", i, len(in.answers), want)
		}
	}
	if got := ask(encodeHello(hello{attrs: b.vi.attrs, discriminator: "name"})); len(got) != 1 || got[0][0] != refuseNoMatch {
		t.Errorf("after the listener closed: answered with %v", got)
	}
	b.must(r.Accept(context.Background(), b.vi)) // it was taken before
}

// A request that arrives while its listener closes is answered, always.
func TestRequestsWhileTheListenerCloses(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	var incoming func(Incoming)
	b.p.listen = func(_ string, f func(Incoming)) (Listening, error) {
		incoming = f
		return scriptedListening{}, nil
	}
	keep, err := b.nic.Listen(Address{"h", "keeps the host open"})
	b.must(err)
	for range 300 {
		l, err := b.nic.Listen(Address{"h", "name"})
		b.must(err)
		in := &scriptedIncoming{hello: encodeHello(hello{attrs: b.vi.attrs, discriminator: "name"})}
		done := make(chan struct{})
		go func() {
			incoming(in)
			close(done)
		}()
		b.must(l.Close())
		<-done
		if len(in.answers) != 1 {
			t.Fatalf("%d answers", len(in.answers))
		}
	}
	b.must(keep.Close())
}

// Listens at one host that begin together share one provider's listener, or its
// error.
func TestListenTogether(t *testing.T) {
	for _, fail := range []error{nil, ErrResource} {
		b := newBench(t, ReliableDelivery)
		entered, release := make(chan struct{}), make(chan struct{})
		calls := 0
		b.p.listen = func(string, func(Incoming)) (Listening, error) {
			calls++
			close(entered)
			<-release
			return scriptedListening{}, fail
		}
		var wg sync.WaitGroup
		var listeners [2]*Listener
		var errs [2]error
		for i, name := range []string{"one", "two"} {
			wg.Add(1)
			go func() {
				defer wg.Done()
				listeners[i], errs[i] = b.nic.Listen(Address{"h", name})
			}()
			if i == 0 {
				<-entered
			}
		}
		for joined := false; !joined; { // until the second has joined the first
			b.nic.agent.mu.Lock()
			joined = len(b.nic.agent.listeners["h"].waiters) == 2
			b.nic.agent.mu.Unlock()
		}
		close(release)
		wg.Wait()
		for i, l := range listeners {
			if !errors.Is(errs[i], fail) {
				t.Errorf("listen %d: %v, want %v", i, errs[i], fail)
			}
			if l != nil {
				b.must(l.Close())
			}
		}
		if calls != 1 || len(b.nic.agent.listeners) != 0 {
			t.Errorf("%d provider calls, %d hosts left", calls, len(b.nic.agent.listeners))
		}
	}
}

func TestAcceptErrors(t *testing.T) {
	b := newBench(t, ReliableDelivery)
	expired, cancel := context.WithCancel(context.Background())
	cancel()
	r := &ConnRequest{nic: b.nic, in: &scriptedIncoming{fail: context.Canceled}, attrs: b.vi.attrs}
	b.wants(r.Accept(expired, b.vi), ErrTimeout, "accept with an expired context")
	if b.vi.State() != StateIdle {
		t.Errorf("vi is %v", b.vi.State())
	}
	level := b.vi.attrs
	level.Reliability = UnreliableDelivery
	in := &scriptedIncoming{}
	r = &ConnRequest{nic: b.nic, in: in, attrs: level}
	b.wants(r.Accept(context.Background(), b.vi), ErrInvalidReliability, "accept another level")
	if len(in.answers) != 0 {
		t.Error("the peer is told of a mismatch")
	}
	b.must(r.Reject())
	b.wants(r.Reject(), ErrInvalidParameter, "reject again")
}
