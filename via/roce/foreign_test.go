package roce_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/foreign"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// Addresses of ends that know nothing of each other's kind.
var nearForeign, farForeign = netip.MustParseAddrPort("10.0.0.1:4791"), netip.MustParseAddrPort("10.0.0.2:4791")

func openForeign(t *testing.T, p *roce.Provider, at netip.AddrPort) *foreign.End {
	t.Helper()
	e, err := foreign.Open(p, at.String(), 1<<20)
	check(t, err)
	return e
}

func withTimeout(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// counted returns the counters of the only link at an address.
func counted(t *testing.T, p *roce.Provider, at netip.AddrPort) rc.Counters {
	t.Helper()
	for _, e := range p.Statistics() {
		if e.Local == at && len(e.Lanes) == 1 && len(e.Lanes[0].Links) == 1 {
			return e.Lanes[0].Links[0].Counters
		}
	}
	t.Fatalf("%v has not one link", at)
	return rc.Counters{}
}

// foreignPair returns two ends that are connected without a connection manager.
func foreignPair(t *testing.T, p *roce.Provider) (x, y *foreign.End) {
	t.Helper()
	x, y = openForeign(t, p, nearForeign), openForeign(t, p, farForeign)
	hx, err := x.Adapter().(roce.OutOfBand).Prepare(farForeign.Addr(), 0, x.Config())
	check(t, err)
	hy, err := y.Adapter().(roce.OutOfBand).Prepare(nearForeign.Addr(), 0, y.Config())
	check(t, err)
	atX, atY := hx.Local, hy.Local
	lx, err := hx.Connect(atY)
	check(t, err)
	ly, err := hy.Connect(atX)
	check(t, err)
	check(t, x.Start(lx))
	check(t, y.Start(ly))
	return x, y
}

// A lane that an endpoint gets while its goroutine sleeps is attended as the first one
// is, if its consumer does not poll.
func TestLaterLanesAreAttended(t *testing.T) {
	n := port.NewNetwork(1, 9000)
	p := roce.New(roce.Options{Open: n.Open})
	x, y := foreignPair(t, p)
	time.Sleep(100 * time.Millisecond) // the first lanes have nothing to do any more
	later, quiet := foreignPair(t, p)
	check(t, later.Post(later.Work(via.OpSend, 0, 64)))
	within(t, "the later pair's RNR NAK", func() bool {
		for _, e := range p.Statistics() {
			if e.Local == farForeign && len(e.Lanes) == 2 {
				return e.Lanes[1].Links[0].Counters.RNRsSent != 0
			}
		}
		return false
	})
	for _, e := range []*foreign.End{x, y, later, quiet} {
		check(t, e.Close())
	}
}

// A foreign peer whose message finds no receive is asked to wait, and its message
// arrives when there is one.
func TestForeignPeerWaitsForReceive(t *testing.T) {
	n := port.NewNetwork(1, 9000)
	p := roce.New(roce.Options{Open: n.Open})
	x, y := foreignPair(t, p)

	const size, messages = 10_000, 5
	for i := range messages {
		src := x.Memory.Bytes()[:size]
		for k := range src {
			src[k] = byte(i + k)
		}
		before := counted(t, p, nearForeign).RNRsReceived
		send, late := x.Work(via.OpSend, 0, size), y.Work(via.OpRecv, 0, size)
		check(t, x.Post(send))
		within(t, "an RNR NAK", func() bool { return counted(t, p, nearForeign).RNRsReceived > before+1 })
		check(t, y.Post(late))
		check(t, y.Await(withTimeout(t), late))
		check(t, x.Await(withTimeout(t), send))
		if late.Moved != size || !slices.Equal(y.Memory.Bytes()[:size], src) {
			t.Fatalf("message %d: %d bytes, or others", i, late.Moved)
		}
	}
	if c := counted(t, p, farForeign); c.RNRsSent < 2*messages || c.NAKsSent != 0 {
		t.Errorf("the receiver's counters are %+v", c)
	}
	check(t, x.Close())
	check(t, y.Close())
}

// foreignPeer is a peer by the book of a connection that it asked for.
type foreignPeer struct {
	*stranger
	provider string // where the provider is
	qp       uint32 // the provider's
	seen     []wire.Packet
}

// qpForeign and psnForeign are the peer's queue pair, and the PSN that it expects.
const (
	qpForeign  = 0x1234
	psnForeign = 77
)

// next waits for the next packet to a queue pair of the peer.
func (f *foreignPeer) next(qp uint32) wire.Packet {
	f.t.Helper()
	var p wire.Packet
	within(f.t, "a packet", func() bool {
		for i, x := range f.seen {
			if x.DestQP == qp {
				p = x
				f.seen = slices.Delete(f.seen, i, i+1)
				return true
			}
		}
		var arrivals [16]port.Arrival
		n, err := f.lane.Receive(arrivals[:])
		check(f.t, err)
		for _, a := range arrivals[:n] {
			var in wire.Packet
			if in.Decode(a.Bytes, wire.DefaultPKey) == wire.Accepted {
				in.Payload = slices.Clone(in.Payload)
				f.seen = append(f.seen, in)
			}
		}
		return false
	})
	return p
}

// tell sends a management datagram.
func (f *foreignPeer) tell(m wire.Message) {
	f.t.Helper()
	mad := make([]byte, wire.MADSize)
	m.Encode(mad)
	f.send(f.provider, &wire.Packet{
		BTH:     wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: wire.GSI},
		DETH:    wire.DETH{QKey: wire.GSIQKey, SourceQP: wire.GSI},
		Payload: mad,
	})
}

// connect asks the provider for a connection, and lets it repeat what meets an RNR
// NAK a number of times in a row.
func (f *foreignPeer) connect(local netip.AddrPort, rnrs uint8) {
	f.t.Helper()
	at := netip.MustParseAddrPort(f.provider)
	req := &wire.REQ{
		TID: 5, LocalID: 6, VendorID: 0x2c9, ServiceID: wire.TCPService(10809), LocalGUID: 7, LocalQP: qpForeign,
		ResponderResources: 1, InitiatorDepth: 1, RemoteTimeout: 20, LocalTimeout: 20, StartingPSN: psnForeign,
		RetryCount: 7, RNRRetryCount: rnrs, PKey: wire.DefaultPKey, MTU: wire.MTU1024, MaxCMRetries: 15,
		LocalEECN: 1, // of a kind that does not know what own ends tell there
		Primary:   wire.Path{LocalGID: local.Addr().As16(), RemoteGID: at.Addr().As16(), AckTimeout: 14},
	}
	header := wire.CMA{SrcPort: 9, Src: local.Addr(), Dst: at.Addr()}
	header.Encode(req.Private[:])
	f.tell(req)
	answer := f.next(wire.GSI)
	var rep wire.REP
	if r := rep.Decode(answer.Payload); r != wire.Accepted {
		f.t.Fatalf("the answer to a REQ: %v", r)
	}
	if rep.LocalEECN != 0 {
		f.t.Errorf("a foreign peer hears of room for %d packets", rep.LocalEECN)
	}
	f.qp = rep.LocalQP
	f.tell(&wire.RTU{TID: req.TID, LocalID: req.LocalID, RemoteID: rep.LocalID})
}

// RNR NAKs are believed as often as the peer has asked for.
func TestForeignPeerLimitsRNR(t *testing.T) {
	for _, retries := range []uint8{0, 2} {
		n := port.NewNetwork(1, 9000)
		p := roce.New(roce.Options{Open: n.Open})
		y := openForeign(t, p, farForeign)
		accepted := make(chan error, 1)
		listening := make(chan struct{})
		go func() {
			accepted <- y.Accept(withTimeout(t), farForeign.String(), func() { close(listening) })
		}()
		<-listening
		local := netip.MustParseAddrPort("10.0.0.66:4791")
		f := &foreignPeer{stranger: newStranger(t, n, local.String()), provider: farForeign.String()}
		f.connect(local, retries)
		check(t, <-accepted)

		send := y.Work(via.OpSend, 0, 100)
		check(t, y.Post(send))
		ended := make(chan error, 1)
		go func() { ended <- y.Await(withTimeout(t), send) }()
		for i := range int(retries) + 1 {
			if p := f.next(qpForeign); p.Opcode != wire.RCSendOnly || p.PSN != psnForeign {
				t.Fatalf("attempt %d: %v, PSN %d", i, p.Opcode, p.PSN)
			}
			f.send(f.provider, &wire.Packet{
				BTH:  wire.BTH{Opcode: wire.RCAcknowledge, PKey: wire.DefaultPKey, DestQP: f.qp, PSN: psnForeign},
				AETH: wire.AETH{Syndrome: wire.RNR(time.Millisecond)},
			})
		}
		if err := <-ended; err == nil || errors.Is(err, context.DeadlineExceeded) || send.Status&via.StatusErrorMask != via.StatusRemoteDescError {
			t.Errorf("%d retries: the work ended with %#x, %v", retries, uint32(send.Status), err)
		}
		if c := counted(t, p, farForeign); c.RNRsReceived != uint64(retries)+1 {
			t.Errorf("%d retries: counters %+v", retries, c)
		}
		check(t, y.Close())
	}
}
