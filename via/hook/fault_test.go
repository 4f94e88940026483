package hook_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/hook"
	"github.com/viablk/viablk/via/viatest/loopback"
)

func TestFaultFailsOneRegistration(t *testing.T) {
	p := hook.Fault(loopback.New(), hook.Plan{FailRegistration: 2})
	a := newStation(t, p) // registers once
	register := func() error {
		m, err := a.nic.RegisterMem(a.mem.Bytes()[:100], a.mem.Attributes())
		if err == nil {
			err = m.Deregister()
		}
		return err
	}
	if err := register(); !errors.Is(err, via.ErrResource) {
		t.Errorf("second registration: %v, want no resources", err)
	}
	if err := register(); err != nil {
		t.Errorf("third registration: %v", err)
	}
	if p.Injected() != 1 {
		t.Errorf("injected %d faults, want 1", p.Injected())
	}
}

func TestFaultRefusesConnects(t *testing.T) {
	p := hook.Fault(loopback.New(), hook.Plan{RefuseConnects: 2})
	a, b := newStation(t, p), newStation(t, p)
	ctx := context.Background()
	for range 2 {
		if _, err := a.vi.Connect(ctx, via.Address{Host: "here"}); !errors.Is(err, via.ErrNotReachable) {
			t.Fatalf("connect: %v, want not reachable", err)
		}
		if a.vi.State() != via.StateIdle {
			t.Fatalf("vi is %v after a refused connect", a.vi.State())
		}
	}
	if err := meet(t, a, b); err != nil {
		t.Errorf("third connect: %v", err)
	}
}

// A fabric that fails leaves the VI broken; a Disconnect mends it.
func TestFaultFailsConnectsInTheFabric(t *testing.T) {
	p := hook.Fault(loopback.New(), hook.Plan{RefuseConnects: 1, FabricFailsConnects: 2})
	a, b := newStation(t, p), newStation(t, p)
	for i, want := range []via.State{via.StateIdle, via.StateError, via.StateError} {
		err := meet(t, a, b)
		var fabric *via.FabricError
		if !errors.Is(err, via.ErrNotReachable) || errors.As(err, &fabric) != (want == via.StateError) || a.vi.State() != want {
			t.Fatalf("connect %d: %v, the vi is %v", i+1, err, a.vi.State())
		}
		if err := a.vi.Disconnect(); err != nil || a.vi.State() != via.StateIdle {
			t.Fatalf("disconnect: %v, the vi is %v", err, a.vi.State())
		}
	}
	if err := meet(t, a, b); err != nil {
		t.Errorf("fourth connect: %v", err)
	}
	if p.Injected() != 3 {
		t.Errorf("injected %d faults, want 3", p.Injected())
	}
}

func TestFaultDelaysConnects(t *testing.T) {
	p := hook.Fault(loopback.New(), hook.Plan{DelayConnects: time.Hour})
	a := newStation(t, p)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := a.vi.Connect(ctx, via.Address{Host: "here"}); !errors.Is(err, via.ErrTimeout) {
		t.Errorf("delayed connect: %v, want a timeout", err)
	}
	slow := hook.Fault(loopback.New(), hook.Plan{DelayConnects: time.Millisecond})
	if err := meet(t, newStation(t, slow), newStation(t, slow)); err != nil {
		t.Errorf("connect with a short delay: %v", err)
	}
}

// stream sends messages until the link is gone, and checks that every
// descriptor completes once and that a prefix of the messages arrived in order.
// Only the sender's provider misbehaves.
func stream(t *testing.T, plan hook.Plan) (a, b *station) {
	t.Helper()
	const count = 40
	net := loopback.New()
	a, b = newStation(t, hook.Fault(net, plan)), newStation(t, net)
	for range count {
		b.post(t, via.OpRecv, 64, nil, 0)
	}
	if err := meet(t, a, b); err != nil {
		t.Fatal(err)
	}
	for i := range count {
		a.post(t, via.OpSend, 64, nil, uint32(i+1))
		if i%5 == 0 {
			a.poll()
			b.poll()
		}
	}
	for polls := 0; polls < 10000 && (len(a.done) < count || len(b.done) < count); polls++ {
		a.poll()
		b.poll()
	}
	if len(a.done) != count || len(b.done) != count {
		t.Fatalf("%d and %d completions, want %d", len(a.done), len(b.done), count)
	}
	for _, s := range []*station{a, b} {
		flushed := false
		for i, c := range s.done {
			flushed = flushed || c.Status&via.StatusFlushed != 0
			if c.Status.Failed() != flushed || s == b && !flushed && c.Immediate != uint32(i+1) {
				t.Fatalf("completion %d: %v, immediate data %d, after a flush: %v", i, c.Status, c.Immediate, flushed)
			}
		}
	}
	return a, b
}

func TestFaultSeversLinks(t *testing.T) {
	for n := 1; n <= 60; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			a, b := stream(t, hook.Plan{SeverAt: n, HoldCompletions: n % 4, Seed: uint64(n)})
			if a.vi.State() != via.StateError || b.vi.State() != via.StateError || a.lost != 1 || b.lost != 1 {
				t.Fatalf("after the cut: %v and %v, %d and %d callbacks", a.vi.State(), b.vi.State(), a.lost, b.lost)
			}
			for _, s := range []*station{a, b} {
				if err := s.vi.Disconnect(); err != nil {
					t.Fatal(err)
				}
			}
			if err := meet(t, a, b); err != nil {
				t.Fatalf("reconnect: %v", err)
			}
		})
	}
}

func TestFaultReportsBrokenLinks(t *testing.T) {
	for n := 1; n <= 30; n++ {
		a, b := stream(t, hook.Plan{BreakAt: n})
		good := 0
		for _, c := range a.done {
			if !c.Status.Failed() {
				good++
			}
		}
		if good < n || a.lost != 1 || b.lost != 1 {
			t.Fatalf("broken after %d completions: %d were good, %d and %d callbacks", n, good, a.lost, b.lost)
		}
	}
}

func TestFaultIsRepeatable(t *testing.T) {
	plan := hook.Plan{Seed: 9, HoldCompletions: 4, RefusePosts: 0.5}
	injected := func() uint64 {
		p := hook.Fault(loopback.New(), plan)
		a, b := newStation(t, p), newStation(t, p)
		for range 30 {
			b.post(t, via.OpRecv, 8, nil, 0)
		}
		if err := meet(t, a, b); err != nil {
			t.Fatal(err)
		}
		for range 30 {
			a.post(t, via.OpSend, 8, nil, 0)
		}
		for len(a.done) < 30 || len(b.done) < 30 {
			a.poll()
			b.poll()
		}
		return p.Injected()
	}
	first := injected()
	if first == 0 {
		t.Fatal("nothing was injected")
	}
	if second := injected(); second != first {
		t.Errorf("%d faults, then %d with the same plan", first, second)
	}
}
