package hook_test

import (
	"context"
	"errors"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/hook"
	"github.com/viablk/viablk/via/viatest/loopback"
	"golang.org/x/sys/unix"
)

// dies sends messages until the sender's VI is broken.
func dies(t *testing.T, a, b *station) (sent int) {
	t.Helper()
	for ; a.vi.State() == via.StateConnected && sent < 60; sent++ {
		a.post(t, via.OpSend, 8, nil, uint32(sent+1))
		a.poll()
		b.poll()
	}
	if a.vi.State() != via.StateError {
		t.Fatalf("the vi is %v after %d sends", a.vi.State(), sent)
	}
	return sent
}

// A device fails at a step of one of its links, under all of them.
func TestFaultFailsDevice(t *testing.T) {
	for _, level := range allLevels {
		t.Run(level.String(), func(t *testing.T) {
			const step = 20
			net := loopback.New()
			p := hook.Fault(net, hook.Plan{FailNicAt: step})
			a, b := newStationAt(t, p, level), newStationAt(t, net, level)
			other, asleep := second(t, a), second(t, a)
			peer1, peer2 := second(t, b), second(t, b)
			for _, m := range [][2]*station{{a, b}, {other, peer1}, {asleep, peer2}} {
				if err := meet(t, m[0], m[1]); err != nil {
					t.Fatal(err)
				}
			}
			idle := second(t, a)
			asleep.post(t, via.OpRecv, 8, nil, 0) // a step
			for range step {
				b.post(t, via.OpRecv, 8, nil, 0)
			}
			if !asleep.cq.Arm() || readable(t, asleep.cq.FD()) {
				t.Fatal("a queue where nothing happened does not sleep")
			}
			if sent := dies(t, a, b); sent != step/2 { // a post and a completion each, and the receive
				t.Errorf("%d sends until the device failed", sent)
			}
			if !readable(t, asleep.cq.FD()) {
				t.Error("the sleeper is not woken")
			}
			other.poll()
			asleep.poll()
			if asleep.cq.Arm(); readable(t, asleep.cq.FD()) {
				t.Error("the sleeper does not come to rest")
			}
			for _, s := range []*station{b, peer1, peer2} {
				s.poll()
			}
			for _, vi := range []*via.VI{a.vi, b.vi, other.vi, peer1.vi, asleep.vi, peer2.vi, idle.vi} {
				if vi.State() != via.StateError {
					t.Errorf("a vi is %v", vi.State())
				}
			}
			if len(asleep.done) != 1 || asleep.done[0].Status&via.StatusFlushed == 0 {
				t.Errorf("the sleeper's receive: %+v", asleep.done)
			}
			if len(a.codes) != 1 || a.codes[0] != via.AsyncCatastrophic || b.lost != 3 || len(b.codes) != 3 {
				t.Errorf("callbacks %v here, %v at the peers", a.codes, b.codes)
			}
			if err := idle.vi.Disconnect(); err != nil {
				t.Fatal(err)
			}
			refusesAll(t, a, idle.vi)
			if p.Injected() != 1 {
				t.Errorf("injected %d faults, want 1", p.Injected())
			}
		})
	}
}

// A device that has no link any more when it fails says so at the next call.
func TestFaultFailsDeviceWithoutLinks(t *testing.T) {
	for name, call := range map[string]func(a *station) error{
		"connect": func(a *station) error {
			_, err := a.vi.Connect(context.Background(), via.Address{Host: "here"})
			return err
		},
		"register": func(a *station) error {
			_, err := a.nic.RegisterMem(a.mem.Bytes()[:64], a.mem.Attributes())
			return err
		},
		"listen": func(a *station) error {
			_, err := a.nic.Listen(via.Address{Host: "there"})
			return err
		},
		"arena": func(a *station) error {
			_, err := a.nic.NewArena(4096)
			return err
		},
		"completion queue": func(a *station) error {
			_, err := a.nic.CreateCQ(4)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			net := loopback.New()
			a, b := newStation(t, hook.Fault(net, hook.Plan{FailNicAt: 1})), newStation(t, net)
			if err := meet(t, a, b); err != nil {
				t.Fatal(err)
			}
			a.post(t, via.OpSend, 0, nil, 0)
			if err := a.vi.Disconnect(); err != nil { // before the report is taken
				t.Fatal(err)
			}
			if len(a.codes) != 0 {
				t.Fatalf("callbacks %v before the device reported its failure", a.codes)
			}
			if err := call(a); !errors.Is(err, via.ErrDeviceFailed) || !errors.Is(err, via.ErrResource) {
				t.Errorf("the call returns %v", err)
			}
			if len(a.codes) != 1 || a.codes[0] != via.AsyncCatastrophic || a.vi.State() != via.StateError {
				t.Errorf("callbacks %v, the vi is %v", a.codes, a.vi.State())
			}
			if err := a.vi.Disconnect(); err != nil {
				t.Fatal(err)
			}
			refusesAll(t, a, a.vi)
			if len(a.codes) != 1 {
				t.Errorf("callbacks %v", a.codes)
			}
		})
	}
}

// A requester hears that the device of the listener has failed.
func TestFailedDeviceRefusesConnections(t *testing.T) {
	net := loopback.New()
	a, b := newStation(t, hook.Fault(net, hook.Plan{FailNicAt: 1})), newStation(t, net)
	if err := meet(t, b, a); err != nil {
		t.Fatal(err)
	}
	addr := via.Address{Host: "late", Discriminator: "pair"}
	l, err := a.nic.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	a.post(t, via.OpSend, 0, nil, 0)
	for _, s := range []*station{a, b} {
		if err := s.vi.Disconnect(); err != nil {
			t.Fatal(err)
		}
	}
	refused := make(chan error, 1)
	go func() {
		_, err := b.vi.Connect(context.Background(), addr)
		refused <- err
	}()
	r, err := l.Wait(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Accept(context.Background(), a.vi); !errors.Is(err, via.ErrDeviceFailed) {
		t.Errorf("accept: %v", err)
	}
	if err := <-refused; !errors.Is(err, via.ErrReject) {
		t.Errorf("connect: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if len(a.codes) != 1 || a.codes[0] != via.AsyncCatastrophic {
		t.Errorf("callbacks %v", a.codes)
	}
}

// second returns another VI of a station's device on a queue of its own.
func second(t *testing.T, s *station) *station {
	t.Helper()
	two := &station{nic: s.nic, mem: s.mem, used: 256<<10 + s.used}
	s.used += 4096
	var err error
	if two.cq, err = s.nic.CreateCQ(256); err != nil {
		t.Fatal(err)
	}
	two.vi, err = s.nic.CreateVi(s.vi.Attributes(), via.ViConfig{SendCQ: two.cq, RecvCQ: two.cq, SendDepth: 64, RecvDepth: 64})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := two.vi.Disconnect(); err != nil {
			t.Error(err)
		}
		two.poll()
		if err := errors.Join(two.vi.Destroy(), two.cq.Destroy()); err != nil {
			t.Error(err)
		}
	})
	return two
}

// readable says whether a sleeper would wake.
func readable(t *testing.T, fd int) bool {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return n == 1
	}
}

// refusesAll checks that nothing can be made on a NIC that has failed.
func refusesAll(t *testing.T, s *station, idle *via.VI) {
	t.Helper()
	for name, call := range map[string]func() error{
		"tag":      func() error { _, err := s.nic.CreatePtag(); return err },
		"arena":    func() error { _, err := s.nic.NewArena(4096); return err },
		"queue":    func() error { _, err := s.nic.CreateCQ(1); return err },
		"register": func() error { _, err := s.nic.RegisterMem(s.mem.Bytes()[:64], s.mem.Attributes()); return err },
		"listen":   func() error { _, err := s.nic.Listen(via.Address{Host: "there"}); return err },
		"connect": func() error {
			_, err := idle.Connect(context.Background(), via.Address{Host: "here"})
			return err
		},
		"vi": func() error {
			_, err := s.nic.CreateVi(s.vi.Attributes(), via.ViConfig{SendDepth: 1, RecvDepth: 1})
			return err
		},
	} {
		if err := call(); !errors.Is(err, via.ErrResource) {
			t.Errorf("%s on a failed nic: %v", name, err)
		}
	}
}
