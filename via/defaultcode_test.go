package via

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"
)

// errBare is an error of an adapter that names no return code.
var errBare = errors.New("the system says no")

// bareAdapter fails wherever it is asked to, with an error without a code.
type bareAdapter struct {
	*scriptedProvider
	err error
}

func (a *bareAdapter) NewCQ(n int) (AdapterCQ, error) {
	if a.err != nil {
		return nil, a.err
	}
	return bareCQ{&scriptedCQ{}, a}, nil
}

func (a *bareAdapter) MapArena(n int) (ArenaMemory, error) {
	if a.err != nil {
		return nil, a.err
	}
	m, err := a.scriptedProvider.MapArena(n)
	return bareArena{m, a}, err
}

func (a *bareAdapter) DiscoverHosts(context.Context, int) ([]DiscoveredHost, error) {
	return nil, a.err
}
func (a *bareAdapter) Close() error { return a.err }

type bareCQ struct {
	*scriptedCQ
	a *bareAdapter
}

func (q bareCQ) Resize(int) error { return q.a.err }
func (q bareCQ) Close() error     { return q.a.err }

type bareArena struct {
	ArenaMemory
	a *bareAdapter
}

func (m bareArena) Discard(int, int) error { return m.a.err }
func (m bareArena) Close() error           { return m.a.err }

type bareListening struct{ a *bareAdapter }

func (l bareListening) Close() error { return l.a.err }

type bareIncoming struct {
	a     *bareAdapter
	hello []byte
}

func (in bareIncoming) Hello() []byte      { return in.hello }
func (in bareIncoming) RemoteHost() string { return "peer" }
func (in bareIncoming) Refuse([]byte) error {
	return in.a.err
}

func (in bareIncoming) Accept(context.Context, []byte, LinkConfig) (Link, error) {
	return nil, in.a.err
}

// Any error that an adapter fails with, the error wraps a return code: its own,
// or that of what was asked for.
func TestErrorsHaveCodes(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		name string
		code Error
		call func(b *bench, fail func()) error
	}{
		{"map an arena", ErrResource, func(b *bench, fail func()) error {
			fail()
			_, err := b.nic.NewArena(64)
			return err
		}},
		{"discard", ErrResource, func(b *bench, fail func()) error {
			fail()
			return b.mem.Arena().Discard(0, 64)
		}},
		{"unmap an arena", ErrResource, func(b *bench, fail func()) error {
			a, err := b.nic.NewArena(64)
			b.must(err)
			fail()
			return a.Close()
		}},
		{"register", ErrResource, func(b *bench, fail func()) error {
			fail()
			_, err := b.nic.RegisterMem(b.mem.Bytes()[:64], b.mem.Attributes())
			return err
		}},
		{"set memory attributes", ErrResource, func(b *bench, fail func()) error {
			fail()
			return b.mem.SetAttributes(b.mem.Attributes())
		}},
		{"deregister", ErrResource, func(b *bench, fail func()) error {
			fail()
			return b.mem.Deregister()
		}},
		{"create a completion queue", ErrResource, func(b *bench, fail func()) error {
			fail()
			_, err := b.nic.CreateCQ(1)
			return err
		}},
		{"create a vi with its own", ErrResource, func(b *bench, fail func()) error {
			fail()
			_, err := b.nic.CreateVi(b.vi.Attributes(), ViConfig{SendDepth: 1, RecvDepth: 1})
			return err
		}},
		{"resize a completion queue", ErrResource, func(b *bench, fail func()) error {
			fail()
			return b.cq.Resize(8)
		}},
		{"destroy a completion queue", ErrResource, func(b *bench, fail func()) error {
			q, err := b.nic.CreateCQ(1)
			b.must(err)
			fail()
			return q.Destroy()
		}},
		{"listen", ErrResource, func(b *bench, fail func()) error {
			fail()
			_, err := b.nic.Listen(Address{Host: "here"})
			return err
		}},
		{"stop listening", ErrResource, func(b *bench, fail func()) error {
			l, err := b.nic.Listen(Address{Host: "here"})
			b.must(err)
			fail()
			return l.Close()
		}},
		{"discover", ErrResource, func(b *bench, fail func()) error {
			fail()
			_, err := b.nic.Discover(ctx, 1)
			return err
		}},
		{"connect", ErrNotReachable, func(b *bench, fail func()) error {
			fail()
			_, err := b.vi.Connect(ctx, Address{Host: "peer"})
			return err
		}},
		{"request a peer", ErrNotReachable, func(b *bench, fail func()) error {
			fail() // the end with the lesser address calls: once, for this is no absence
			b.must(b.vi.PeerRequest(Address{Host: "a"}, Address{Host: "b"}, Infinite))
			_, err := b.vi.PeerWait()
			return err
		}},
		{"wait for a peer", ErrResource, func(b *bench, fail func()) error {
			fail()
			return b.vi.PeerRequest(Address{Host: "b"}, Address{Host: "a"}, time.Minute)
		}},
		{"accept", ErrNotReachable, func(b *bench, fail func()) error {
			r := b.incoming()
			fail()
			return r.Accept(ctx, b.vi)
		}},
		{"reject", ErrNotReachable, func(b *bench, fail func()) error {
			r := b.incoming()
			fail()
			return r.Reject()
		}},
		{"start the link", ErrNotReachable, func(b *bench, _ func()) error {
			b.p.connect = func(LinkConfig) (Link, []byte, error) {
				return &scriptedLink{fail: errBare}, encodeHello(hello{attrs: b.vi.attrs}), nil
			}
			_, err := b.vi.Connect(ctx, Address{Host: "peer"})
			return err
		}},
		{"close", ErrResource, func(b *bench, fail func()) error {
			nic := b.open()
			fail()
			return nic.Close()
		}},
	} {
		for _, failure := range []error{errBare, fmt.Errorf("wrapped: %w", syscall.EMFILE)} {
			b, fail := newBareBench(t, failure)
			err := c.call(b, fail)
			want := c.code
			if errors.Is(err, syscall.EMFILE) {
				want = ErrResource // whatever was asked for
			}
			var first Error
			if !errors.As(err, &first) || first != want || !errors.Is(err, failure) && c.name != "start the link" {
				t.Errorf("%s: %v (code %d), want code %d around %v", c.name, err, first, want, failure)
			}
		}
	}
}

// A code that the adapter names stays, whatever else the error says.
func TestAdaptersCodeStays(t *testing.T) {
	err := fmt.Errorf("%w: %w", ErrInvalidParameter, syscall.EMFILE)
	if got := withCode(err, ErrResource); got != err {
		t.Errorf("%v became %v", err, got)
	}
	if withCode(nil, ErrResource) != nil {
		t.Error("no error became one")
	}
}

// newBareBench is a bench whose adapter fails from the call of fail on.
func newBareBench(t *testing.T, failure error) (b *bench, fail func()) {
	p := newScripted()
	a := &bareAdapter{scriptedProvider: p}
	p.self = a
	p.listen = func(string, func(Incoming)) (Listening, error) { return bareListening{a}, a.err }
	fail = func() {
		a.err, p.fail = failure, failure
		p.connect = func(LinkConfig) (Link, []byte, error) { return nil, nil, failure }
	}
	return p.bench(t, ReliableDelivery), fail
}

// incoming returns a request that the adapter handed up.
func (b *bench) incoming() *ConnRequest {
	b.t.Helper()
	a := b.p.self.(*bareAdapter)
	var offer func(Incoming)
	listen := b.p.listen
	b.p.listen = func(host string, incoming func(Incoming)) (Listening, error) {
		offer = incoming
		return listen(host, incoming)
	}
	l, err := b.nic.Listen(Address{Host: "here", Discriminator: "x"})
	b.must(err)
	offer(bareIncoming{a, encodeHello(hello{attrs: b.vi.attrs, discriminator: "x"})})
	r, err := l.Wait(context.Background())
	b.must(err)
	return r
}
