package carrier_test

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const waitTimeout = 20 * time.Second

// pair is two connected carriers, with everything a test needs of each.
type pair struct {
	t    testing.TB
	a, b *carrier.Carrier
	nics [2]*via.NIC
	done [4]via.Completion
}

const (
	receives = 4
	data     = 8192 // bytes of a receive beyond its head
	sends    = 3
)

// newPair connects two carriers; they are closed with the test, and then
// nothing of them is left in their NICs.
func newPair(t testing.TB) *pair {
	t.Helper()
	return connectPair(t, false)
}

// newSealablePair connects two carriers that can seal.
func newSealablePair(t testing.TB) *pair {
	t.Helper()
	return connectPair(t, true)
}

func connectPair(t testing.TB, sealable bool) *pair {
	t.Helper()
	p := &pair{t: t}
	attrs := via.ViAttributes{Reliability: via.ReliableDelivery, EnableRdmaWrite: true, EnableRdmaRead: true}
	for i, c := range []**carrier.Carrier{&p.a, &p.b} {
		var err error
		p.nics[i], err = via.OpenNic(shm.New(shm.Options{}), "")
		must(t, err)
		p.nics[i].ErrorCallback(func(via.AsyncError) {})
		*c, err = carrier.New(p.nics[i], carrier.Config{Attributes: attrs, SendDepth: sends + 1, RecvDepth: receives, Sealable: sealable})
		must(t, err)
		must(t, (*c).AddReceives(receives, data))
		must(t, (*c).AddSends(sends, 64))
		must(t, (*c).AddSends(1, data+128))
	}
	addr := via.Address{Host: filepath.Join(t.TempDir(), "socket"), Discriminator: "test"}
	l, err := p.nics[1].Listen(addr)
	must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Wait(ctx)
		if err == nil {
			err = p.b.Accept(ctx, r)
		}
		accepted <- err
	}()
	must(t, p.a.Connect(ctx, addr))
	must(t, <-accepted)
	must(t, l.Close())
	t.Cleanup(func() {
		must(t, p.a.Close())
		must(t, p.b.Close())
		must(t, p.nics[0].Close())
		must(t, p.nics[1].Close())
	})
	return p
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// next waits for a completion.
func next(t testing.TB, c *carrier.Carrier) via.Completion {
	t.Helper()
	var done [1]via.Completion
	for deadline := time.Now().Add(waitTimeout); c.Poll(done[:]) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("nothing completes")
		}
		if c.Arm() {
			timeout := unix.Timespec{Sec: 1}
			_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(c.FD()), Events: unix.POLLIN}}, &timeout, nil)
		}
	}
	return done[0]
}

// sent waits for a send to complete and gives it back.
func sent(t testing.TB, c *carrier.Carrier) {
	t.Helper()
	e := next(t, c)
	if e.Recv || e.Status.Failed() {
		t.Fatalf("completion %+v instead of a send", e)
	}
	c.FreeSend(c.Sent(&e))
}

// TestMessageIsSplitBehindItsHead: the head and the rest arrive apart, the rest
// page-aligned, at every length.
func TestMessageIsSplitBehindItsHead(t *testing.T) {
	p := newPair(t)
	for _, n := range []int{0, 1, 63, 64, 65, 4096, data} {
		s := p.a.AcquireLargeSend(data)
		for i := range s.Head[:n] {
			s.Head[i] = byte(i*7 + n)
		}
		want := bytes.Clone(s.Head[:n])
		must(t, p.a.StageMessage(s, n, carrier.Span{}))
		p.a.Doorbell()
		e := next(t, p.b)
		if !e.Recv || int(e.Length) != n {
			t.Fatalf("%d bytes arrived as %+v", n, e)
		}
		r := p.b.Arrived(&e)
		got := append(bytes.Clone(r.Head), r.Data...)[:n]
		if !bytes.Equal(got, want) || len(r.Head) != carrier.HeadSize || len(r.Data) != data {
			t.Errorf("%d bytes arrived as others", n)
		}
		if p.b.Receive(r.Index()) != r {
			t.Error("the index of a receive is another's")
		}
		must(t, p.b.Post(r))
		sent(t, p.a)
	}
}

// TestPayloadFollowsTheHead without a copy into the send.
func TestPayloadFollowsTheHead(t *testing.T) {
	p := newPair(t)
	from := p.expose(0, 4096, via.MemAttributes{})
	copy(from.Bytes(), bytes.Repeat([]byte("payload!"), 512))
	s := p.a.AcquireSend()
	copy(s.Head, "head")
	s.User, s.Step = 17, 3
	must(t, p.a.StageMessage(s, 64, carrier.Span{Addr: from.Addr() + 8, Handle: from.Handle(), Length: 4000}))
	p.a.Doorbell()
	e := next(t, p.b)
	r := p.b.Arrived(&e)
	if e.Length != 64+4000 || string(r.Head[:4]) != "head" || !bytes.Equal(r.Data[:4000], from.Bytes()[8:4008]) {
		t.Errorf("arrived %d bytes, %q", e.Length, r.Head)
	}
	must(t, p.b.Post(r))
	if e := next(t, p.a); p.a.Sent(&e) != s || s.User != 17 || s.Step != 3 {
		t.Errorf("completed %+v", e)
	}
	p.a.FreeSend(s)
}

// expose registers memory under the tag of one of the ends until the test ends.
func (p *pair) expose(side, n int, attrs via.MemAttributes) *via.Memory {
	p.t.Helper()
	arena, err := p.nics[side].NewArena(n)
	must(p.t, err)
	attrs.Ptag = []*carrier.Carrier{p.a, p.b}[side].Tag()
	m, err := p.nics[side].RegisterMem(arena.Bytes()[:n], attrs)
	must(p.t, err)
	p.t.Cleanup(func() {
		p.a.Disconnect()
		p.b.Disconnect()
		must(p.t, m.Deregister())
		must(p.t, arena.Close())
	})
	return m
}

// TestRdma: writes and reads move memory, an immediate arrives alone or with
// the last write.
func TestRdma(t *testing.T) {
	p := newPair(t)
	local := p.expose(0, 64<<10, via.MemAttributes{})
	remote := p.expose(1, 64<<10, via.MemAttributes{EnableRdmaRead: true, EnableRdmaWrite: true})
	for i := range local.Bytes() {
		local.Bytes()[i] = byte(i >> 4)
	}
	span := carrier.Span{Addr: local.Addr(), Handle: local.Handle(), Length: 4096}
	must(t, p.a.StageWrite(p.a.AcquireSend(), span, remote.Addr(), remote.Handle()))
	must(t, p.a.StageWriteImmediate(p.a.AcquireSend(), span, remote.Addr()+4096, remote.Handle(), 0xabcd))
	must(t, p.a.StageImmediate(p.a.AcquireSend(), 0x1234))
	if s := p.a.AcquireSend(); s == nil || p.a.AcquireSend() != nil || p.a.FreeSends() != 0 {
		t.Fatal("there are more sends than were added")
	} else {
		p.a.FreeSend(s)
	}
	p.a.Doorbell()
	for range 3 {
		sent(t, p.a)
	}
	for _, want := range []struct {
		immediate, length uint32
		placed            bool
	}{{0xabcd, 4096, true}, {0x1234, 0, false}} {
		e := next(t, p.b)
		placed := e.Status&via.StatusOpMask == via.StatusOpRemoteWrite
		if e.Status&via.StatusImmediate == 0 || e.Immediate != want.immediate || e.Length != want.length || placed != want.placed {
			t.Errorf("immediate arrived as %+v, want %+v", e, want)
		}
		must(t, p.b.Post(p.b.Arrived(&e)))
	}
	if !bytes.Equal(remote.Bytes()[:4096], local.Bytes()[:4096]) || !bytes.Equal(remote.Bytes()[4096:8192], local.Bytes()[:4096]) {
		t.Error("other bytes than were written")
	}
	copy(remote.Bytes(), "from over there")
	must(t, p.a.StageRead(p.a.AcquireSend(), carrier.Span{Addr: local.Addr() + 100, Handle: local.Handle(), Length: 15}, remote.Addr(), remote.Handle()))
	p.a.Doorbell()
	sent(t, p.a)
	if got := string(local.Bytes()[100:115]); got != "from over there" {
		t.Errorf("read %q", got)
	}
	if !p.a.Idle() {
		t.Error("sends are in flight when all have completed")
	}
}

// TestDisconnect: sends in flight end with it, the memory stays, and the other
// end learns.
func TestDisconnect(t *testing.T) {
	p := newPair(t)
	s := p.a.AcquireSend()
	copy(s.Head, "never")
	p.a.Disconnect()
	if p.a.Connected() {
		t.Error("connected after Disconnect")
	}
	var done [8]via.Completion
	if n := p.a.Poll(done[:]); n != 0 {
		t.Errorf("%d completions after Disconnect", n)
	}
	if string(s.Head[:5]) != "never" {
		t.Error("the memory is gone")
	}
	for range receives {
		if e := next(t, p.b); e.Status&via.StatusFlushed == 0 {
			t.Errorf("completion %+v", e)
		}
	}
	if p.b.Connected() {
		t.Error("the other end is connected")
	}
	p.a.Disconnect() // again does no harm
}

// TestNewGivesBack: what New made before it failed is gone.
func TestNewGivesBack(t *testing.T) {
	nic, err := via.OpenNic(shm.New(shm.Options{}), "")
	must(t, err)
	for _, cfg := range []carrier.Config{
		{}, {SendDepth: 1, RecvDepth: 1}, {Attributes: via.ViAttributes{Reliability: via.ReliableDelivery}, SendDepth: 1 << 20, RecvDepth: 1},
	} {
		if _, err := carrier.New(nic, cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
	must(t, nic.Close())
}

// TestExchangeAllocatesNothing.
func TestExchangeAllocatesNothing(t *testing.T) {
	p := newPair(t)
	var done [4]via.Completion
	run := func() {
		s := p.a.AcquireSend()
		_ = p.a.StageMessage(s, 64, carrier.Span{})
		p.a.Doorbell()
		for n := 0; n < 2; {
			for _, c := range []*carrier.Carrier{p.a, p.b} {
				k := c.Poll(done[:])
				for i := range done[:k] {
					if e := &done[i]; e.Recv {
						_ = c.Post(c.Arrived(e))
					} else {
						c.FreeSend(c.Sent(e))
					}
				}
				n += k
			}
		}
	}
	if n := testing.AllocsPerRun(500, run); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
}
