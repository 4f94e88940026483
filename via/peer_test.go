package via

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// Addresses of two peers: callerAddr is the lesser one, which calls.
var callerAddr, waiterAddr = Address{Host: "a", Discriminator: "x"}, Address{Host: "b", Discriminator: "y"}

// answer makes the provider answer each call in order; the last answer stays.
func (p *scriptedProvider) answer(answers ...func(cfg LinkConfig) (Link, []byte, error)) {
	p.connect = func(cfg LinkConfig) (Link, []byte, error) {
		f := answers[0]
		if len(answers) > 1 {
			answers = answers[1:]
		}
		return f(cfg)
	}
}

func refusal(reason byte) func(LinkConfig) (Link, []byte, error) {
	return func(LinkConfig) (Link, []byte, error) { return nil, nil, &Refused{Reply: []byte{reason}} }
}

// The end that calls calls again while the other is not there.
func TestPeerCallsAgain(t *testing.T) {
	watchLeaks(t)
	b := newBench(t, ReliableDelivery)
	link := &scriptedLink{}
	calls := 0
	absent := func(LinkConfig) (Link, []byte, error) { calls++; return nil, nil, ErrNotReachable }
	closing := func(LinkConfig) (Link, []byte, error) { return nil, nil, &Refused{} }
	padded := func(LinkConfig) (Link, []byte, error) { return nil, nil, &Refused{Reply: make([]byte, 148)} }
	b.p.answer(absent, refusal(refuseNoMatch), closing, padded, absent, func(LinkConfig) (Link, []byte, error) {
		return link, encodeHello(hello{attrs: b.vi.attrs}), nil
	})
	b.must(b.vi.PeerRequest(callerAddr, waiterAddr, time.Minute))
	if b.vi.State() != StatePending {
		t.Errorf("vi is %v", b.vi.State())
	}
	b.wants(b.vi.PeerRequest(callerAddr, waiterAddr, time.Minute), ErrInvalidState, "a second request")
	attrs, err := b.vi.PeerWait()
	b.must(err)
	if attrs.MaxTransferSize != b.vi.attrs.MaxTransferSize || b.vi.State() != StateConnected || calls != 2 || b.vi.link != link {
		t.Errorf("%+v, vi is %v after %d calls without a listener", attrs, b.vi.State(), calls)
	}
	_, err = b.vi.PeerDone()
	b.wants(err, ErrInvalidState, "done again")
	b.close()
	if link.closed != 1 {
		t.Errorf("the link is closed %d times", link.closed)
	}
}

// Each answer that ends the calls, and the state of the VI after it.
func TestPeerCallEnds(t *testing.T) {
	wire := errors.New("wire")
	for _, c := range []struct {
		name    string
		answer  func(LinkConfig) (Link, []byte, error)
		timeout time.Duration
		want    error
		to      State
	}{
		{"rejected", refusal(refuseReject), Infinite, ErrReject, StateIdle},
		{"another level", refusal(byte(ErrInvalidReliability)), Infinite, ErrInvalidReliability, StateIdle},
		{"another size", refusal(byte(ErrInvalidMTU)), Infinite, ErrInvalidMTU, StateIdle},
		{"another quality", refusal(byte(ErrInvalidQoS)), Infinite, ErrInvalidQoS, StateIdle},
		{"no listener in time", refusal(refuseNoMatch), 5 * time.Millisecond, ErrTimeout, StateIdle},
		{
			"the fabric fails",
			func(LinkConfig) (Link, []byte, error) { return nil, nil, &FabricError{wire} },
			Infinite, wire, StateError,
		},
		{
			"the answer is not ours",
			func(LinkConfig) (Link, []byte, error) { return &scriptedLink{}, []byte("?"), nil },
			Infinite, ErrInvalidParameter, StateIdle,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			watchLeaks(t)
			b := newBench(t, ReliableDelivery)
			b.p.answer(c.answer)
			r := b.recv(8)
			b.must(b.vi.PeerRequest(callerAddr, waiterAddr, c.timeout))
			_, err := b.vi.PeerWait()
			b.wants(err, c.want, "peer wait")
			if b.vi.State() != c.to || r.Status() != 0 {
				t.Errorf("vi is %v, its receive %v", b.vi.State(), r.Status())
			}
			b.close()
		})
	}
}

// peerListen begins a request of the end that listens and returns how the peer
// calls it.
func (b *bench) peerListen(timeout time.Duration) func(attrs ViAttributes) *scriptedIncoming {
	b.t.Helper()
	var incoming func(Incoming)
	b.p.listen = func(_ string, f func(Incoming)) (Listening, error) {
		incoming = f
		return scriptedListening{}, nil
	}
	b.must(b.vi.PeerRequest(waiterAddr, callerAddr, timeout))
	return func(attrs ViAttributes) *scriptedIncoming {
		in := &scriptedIncoming{hello: encodeHello(hello{attrs: attrs, discriminator: digest(callerAddr, waiterAddr), peer: true})}
		incoming(in)
		return in
	}
}

// The end that listens accepts the first call that names it; both ends fail
// alike when attributes differ.
func TestPeerListens(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(*ViAttributes)
		want  Error
	}{
		{"match", func(*ViAttributes) {}, 0},
		{"another level", func(a *ViAttributes) { a.Reliability = UnreliableDelivery }, ErrInvalidReliability},
		{"another size", func(a *ViAttributes) { a.MaxTransferSize-- }, ErrInvalidMTU},
		{"another quality", func(a *ViAttributes) { a.QoS++ }, ErrInvalidQoS},
		{"other rdma", func(a *ViAttributes) { a.EnableRdmaRead = true }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			watchLeaks(t)
			b := newBench(t, ReliableDelivery)
			call := b.peerListen(Infinite)
			_, err := b.vi.PeerDone()
			b.wants(err, ErrNotDone, "done before the call")
			attrs := b.vi.attrs
			c.spoil(&attrs)
			in := call(attrs)
			got, err := b.vi.PeerWait()
			if c.want == 0 {
				b.must(err)
				if h, _ := decodeHello(in.answers[0]); b.vi.State() != StateConnected || h.attrs.MaxTransferSize != b.vi.attrs.MaxTransferSize || got.EnableRdmaRead != attrs.EnableRdmaRead {
					t.Errorf("vi is %v, the peer has %+v, the answer is %+v", b.vi.State(), got, h)
				}
			} else {
				b.wants(err, c.want, "peer wait")
				if b.vi.State() != StateIdle || len(in.answers) != 1 || !slices.Equal(in.answers[0], []byte{byte(c.want)}) {
					t.Errorf("vi is %v, answers %v", b.vi.State(), in.answers)
				}
			}
			if n := len(b.nic.agent.listeners); n != 0 {
				t.Errorf("%d hosts are listened at after the end", n)
			}
			b.close()
		})
	}
}

// Every call is answered, also one that comes between the first and its answer.
func TestPeerAnswersEveryCall(t *testing.T) {
	watchLeaks(t)
	b := newBench(t, ReliableDelivery)
	for range 200 {
		call := b.peerListen(time.Minute)
		var calls [4]*scriptedIncoming
		var wg sync.WaitGroup
		for i := range calls {
			wg.Go(func() { calls[i] = call(b.vi.attrs) })
		}
		_, err := b.vi.PeerWait()
		b.must(err)
		wg.Wait()
		accepted := 0
		for i, in := range calls {
			if len(in.answers) != 1 {
				t.Fatalf("call %d has %d answers", i, len(in.answers))
			}
			if len(in.answers[0]) > 1 {
				accepted++
			}
		}
		if accepted != 1 {
			t.Fatalf("%d calls are accepted", accepted)
		}
		b.must(b.vi.Disconnect())
	}
	b.close()
}

// A caller that gave its call up before it heard the answer calls again, and is
// answered again.
func TestPeerListensAgain(t *testing.T) {
	watchLeaks(t)
	b := newBench(t, ReliableDelivery)
	var incoming func(Incoming)
	b.p.listen = func(_ string, f func(Incoming)) (Listening, error) {
		incoming = f
		return scriptedListening{}, nil
	}
	call := func(fail error) {
		h := hello{attrs: b.vi.attrs, discriminator: digest(callerAddr, waiterAddr), peer: true}
		incoming(&scriptedIncoming{hello: encodeHello(h), fail: fail})
	}
	for _, gone := range []error{
		fmt.Errorf("the call is not known: %w", ErrNotReachable),
		fmt.Errorf("the call has ended: %w", ErrTimeout), // not the time of this request
	} {
		b.must(b.vi.PeerRequest(waiterAddr, callerAddr, time.Minute))
		call(gone)
		_, err := b.vi.PeerDone()
		for ; errors.Is(err, ErrNotDone); _, err = b.vi.PeerDone() {
			call(nil) // refused while another call waits for its answer
		}
		b.must(err)
		if b.vi.State() != StateConnected {
			t.Errorf("vi is %v", b.vi.State())
		}
		b.must(b.vi.Disconnect())
	}
	b.must(b.vi.PeerRequest(waiterAddr, callerAddr, time.Minute))
	call(&FabricError{errors.New("wire")})
	_, err := b.vi.PeerWait()
	var fabric *FabricError
	if !errors.As(err, &fabric) {
		t.Errorf("the failure of the fabric ends with %v", err)
	}
	b.close()
}

func TestPeerListenEnds(t *testing.T) {
	watchLeaks(t)
	b := newBench(t, ReliableDelivery)
	b.peerListen(time.Millisecond)
	_, err := b.vi.PeerWait()
	b.wants(err, ErrTimeout, "no caller")
	b.p.listen = func(string, func(Incoming)) (Listening, error) { return nil, ErrResource }
	b.wants(b.vi.PeerRequest(waiterAddr, callerAddr, time.Minute), ErrResource, "a host that cannot be listened at")
	if b.vi.State() != StateIdle {
		t.Errorf("vi is %v", b.vi.State())
	}
	_, err = b.vi.PeerDone()
	b.wants(err, ErrInvalidState, "done of a request that never was")
	b.wants(b.vi.PeerRequest(waiterAddr, callerAddr, 0), ErrInvalidParameter, "no time")
	b.wants(b.vi.PeerRequest(waiterAddr, waiterAddr, 1), ErrInvalidParameter, "one address")
	long := Address{Host: "c", Discriminator: string(make([]byte, MaxDiscriminatorLen+1))}
	b.wants(b.vi.PeerRequest(waiterAddr, long, 1), ErrInvalidParameter, "a long discriminator")
	b.close()
}

// A result that no call collects goes with the request: no link is left.
func TestPeerResultIsNotLeaked(t *testing.T) {
	watchLeaks(t)
	for _, local := range []Address{callerAddr, waiterAddr} {
		b := newBench(t, ReliableDelivery)
		link := &scriptedLink{}
		if local == callerAddr {
			b.p.answer(func(LinkConfig) (Link, []byte, error) { return link, encodeHello(hello{attrs: b.vi.attrs}), nil })
			b.must(b.vi.PeerRequest(callerAddr, waiterAddr, Infinite))
		} else {
			in := b.peerListen(Infinite)(b.vi.attrs)
			<-b.vi.attempt.Load().peer.ended
			link = in.link
		}
		r := b.recv(8)
		<-b.vi.attempt.Load().peer.ended
		b.must(b.vi.Disconnect())
		if link.closed != 1 || b.vi.State() != StateIdle || r.Status()&StatusErrorMask != StatusFlushed {
			t.Errorf("the link is closed %d times, vi is %v, its receive %v", link.closed, b.vi.State(), r.Status())
		}
		b.close()
	}
}

// Disconnect ends a request that another goroutine waits for; either it or the
// result comes first, and both calls return.
func TestDisconnectWhilePeerWaits(t *testing.T) {
	watchLeaks(t)
	b := newBench(t, ReliableDelivery)
	for i := range 300 {
		call := b.peerListen(Infinite)
		result := make(chan error, 1)
		var connected bool
		go func() {
			_, err := b.vi.PeerWait()
			connected = err == nil
			result <- err
		}()
		if i%3 != 0 {
			go call(b.vi.attrs)
		}
		if i%3 == 2 {
			time.Sleep(time.Duration(i) * time.Microsecond)
		}
		b.must(b.vi.Disconnect())
		if err := <-result; err != nil && !errors.Is(err, ErrTimeout) && !errors.Is(err, ErrInvalidState) {
			t.Fatal(err)
		}
		b.must(b.vi.Disconnect()) // the result may have been first
		if b.vi.State() != StateIdle || b.vi.link != nil {
			t.Fatalf("vi is %v (connected: %v)", b.vi.State(), connected)
		}
	}
	b.close()
}

// The same for Connect: cancelled, it leaves nothing behind.
func TestDisconnectWhileConnecting(t *testing.T) {
	watchLeaks(t)
	for _, late := range []bool{false, true} {
		b := newBench(t, ReliableDelivery)
		link := &scriptedLink{}
		asked, answer := make(chan struct{}), make(chan struct{})
		b.p.connect = func(LinkConfig) (Link, []byte, error) {
			close(asked)
			<-answer
			if late { // the peer's answer and the cancellation crossed
				return link, encodeHello(hello{attrs: b.vi.attrs}), nil
			}
			return nil, nil, context.Canceled
		}
		r := b.recv(8)
		result := make(chan error, 1)
		go func() {
			_, err := b.vi.Connect(context.Background(), Address{Host: "h"})
			result <- err
		}()
		<-asked
		a := b.vi.attempt.Load()
		go func() {
			<-a.ctx.Done()
			close(answer)
		}()
		b.must(b.vi.Disconnect())
		b.wants(<-result, ErrTimeout, "connect that is cancelled")
		want := 0
		if late {
			want = 1
		}
		if link.closed != want || b.vi.State() != StateIdle || r.Status()&StatusErrorMask != StatusFlushed {
			t.Errorf("the link is closed %d times, vi is %v, its receive %v", link.closed, b.vi.State(), r.Status())
		}
		b.close()
	}
}
