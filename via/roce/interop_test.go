package roce_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/roce/interop"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/rc"
	"github.com/viablk/viablk/via/roce/wire"
)

// Addresses of ends without the viablk extensions.
var nearAddr, farAddr = netip.MustParseAddrPort("10.0.0.1:4791"), netip.MustParseAddrPort("10.0.0.2:4791")

func openVerbs(t *testing.T, p *roce.Provider, at netip.AddrPort) *interop.End {
	t.Helper()
	e, err := interop.Open(p, at.String(), 1<<20)
	check(t, err)
	return e
}

func withTimeout(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// counted returns the counters of the only link at an address.
func counted(t *testing.T, p *roce.Provider, at netip.AddrPort) rc.Counters {
	t.Helper()
	for _, e := range p.Statistics() {
		if e.Local == at && len(e.Shards) == 1 && len(e.Shards[0].Links) == 1 {
			return e.Shards[0].Links[0].Counters
		}
	}
	t.Fatalf("%v does not have exactly one link", at)
	return rc.Counters{}
}

// verbsPair returns two ends that are connected out of band.
func verbsPair(t *testing.T, p *roce.Provider) (x, y *interop.End) {
	t.Helper()
	x, y = openVerbs(t, p, nearAddr), openVerbs(t, p, farAddr)
	hx, err := x.Prepare(farAddr.Addr(), 0)
	check(t, err)
	hy, err := y.Prepare(nearAddr.Addr(), 0)
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

// The goroutine of an endpoint also drives a shard that is opened while it
// sleeps, if the consumer does not poll.
func TestShardOpenedLaterIsPolled(t *testing.T) {
	n := port.NewNetwork(1, 9000)
	p := roce.New(roce.Options{Open: n.Open})
	x, y := verbsPair(t, p)
	time.Sleep(100 * time.Millisecond) // the first shards have become idle
	later, quiet := verbsPair(t, p)
	check(t, later.Post(later.Work(via.OpSend, 0, 64)))
	within(t, "the later pair's RNR NAK", func() bool {
		for _, e := range p.Statistics() {
			if e.Local == farAddr && len(e.Shards) == 2 {
				return e.Shards[1].Links[0].Counters.RNRsSent != 0
			}
		}
		return false
	})
	for _, e := range []*interop.End{x, y, later, quiet} {
		check(t, e.Close())
	}
}

// A verbs peer whose message finds no receive gets RNR NAKs, and the message
// arrives once a receive is posted.
func TestRNRWithoutReceive(t *testing.T) {
	n := port.NewNetwork(1, 9000)
	p := roce.New(roce.Options{Open: n.Open})
	x, y := verbsPair(t, p)

	const size, messages = 10_000, 5
	for i := range messages {
		src := x.Memory.Bytes()[:size]
		for k := range src {
			src[k] = byte(i + k)
		}
		before := counted(t, p, nearAddr).RNRsReceived
		send, late := x.Work(via.OpSend, 0, size), y.Work(via.OpRecv, 0, size)
		check(t, x.Post(send))
		within(t, "an RNR NAK", func() bool { return counted(t, p, nearAddr).RNRsReceived > before+1 })
		check(t, y.Post(late))
		check(t, y.Await(withTimeout(t), late))
		check(t, x.Await(withTimeout(t), send))
		if late.Moved != size || !slices.Equal(y.Memory.Bytes()[:size], src) {
			t.Fatalf("message %d: %d bytes, or other data", i, late.Moved)
		}
	}
	if c := counted(t, p, farAddr); c.RNRsSent < 2*messages || c.NAKsSent != 0 {
		t.Errorf("the receiver's counters are %+v", c)
	}
	check(t, x.Close())
	check(t, y.Close())
}

// verbsPeer is a peer without extensions that requests a connection.
type verbsPeer struct {
	*unknownPeer
	provider string   // address of the provider
	qp       uint32   // the provider's queue pair
	expects  wire.PSN // first PSN of it
	seen     []wire.Packet
	restarts uint32 // each gives another queue pair and ID
}

// verbsQP and verbsPSN are the peer's queue pair and its first expected PSN.
const (
	verbsQP  = 0x1234
	verbsPSN = 77
)

// next returns the next packet to a queue pair of the peer.
func (f *verbsPeer) next(qp uint32) wire.Packet {
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
		n, err := f.shard.Receive(arrivals[:])
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
func (f *verbsPeer) tell(m wire.Message) {
	f.t.Helper()
	mad := make([]byte, wire.MADSize)
	m.Encode(mad)
	f.send(f.provider, &wire.Packet{
		BTH:     wire.BTH{Opcode: wire.UDSendOnly, PKey: wire.DefaultPKey, DestQP: wire.GSI},
		DETH:    wire.DETH{QKey: wire.GSIQKey, SourceQP: wire.GSI},
		Payload: mad,
	})
}

// connect requests a connection with an RNR retry count. A packet is repeated
// after 1 s: the test may be late.
func (f *verbsPeer) connect(local netip.AddrPort, rnrs uint8) {
	f.t.Helper()
	at := netip.MustParseAddrPort(f.provider)
	req := &wire.REQ{
		TID: 5, LocalID: 6 + f.restarts, VendorID: 0x2c9, ServiceID: wire.TCPService(10809), LocalGUID: 7, LocalQP: verbsQP + f.restarts,
		ResponderResources: 1, InitiatorDepth: 1, RemoteTimeout: 20, LocalTimeout: 20, StartingPSN: verbsPSN,
		RetryCount: 7, RNRRetryCount: rnrs, PKey: wire.DefaultPKey, MTU: wire.MTU1024, MaxCMRetries: 15,
		LocalEECN: 1, // a REQ without the room of viablk peers
		Primary:   wire.Path{LocalGID: local.Addr().As16(), RemoteGID: at.Addr().As16(), AckTimeout: 18},
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
		f.t.Errorf("a verbs peer is told a room of %d packets", rep.LocalEECN)
	}
	f.qp, f.expects = rep.LocalQP, rep.StartingPSN
	f.tell(&wire.RTU{TID: req.TID, LocalID: req.LocalID, RemoteID: rep.LocalID})
}

// The provider retries after an RNR NAK up to the peer's RNR retry count.
func TestRNRRetryLimit(t *testing.T) {
	for _, retries := range []uint8{0, 2} {
		n := port.NewNetwork(1, 9000)
		p := roce.New(roce.Options{Open: n.Open})
		y := openVerbs(t, p, farAddr)
		accepted := make(chan error, 1)
		listening := make(chan struct{})
		go func() {
			accepted <- y.Accept(withTimeout(t), farAddr.String(), func() { close(listening) })
		}()
		<-listening
		local := netip.MustParseAddrPort("10.0.0.66:4791")
		f := &verbsPeer{unknownPeer: newUnknownPeer(t, n, local.String()), provider: farAddr.String()}
		f.connect(local, retries)
		check(t, <-accepted)

		send := y.Work(via.OpSend, 0, 100)
		check(t, y.Post(send))
		ended := make(chan error, 1)
		go func() { ended <- y.Await(withTimeout(t), send) }()
		for i := range int(retries) + 1 {
			if p := f.next(verbsQP); p.Opcode != wire.RCSendOnly || p.PSN != verbsPSN {
				t.Fatalf("attempt %d: %v, PSN %d", i, p.Opcode, p.PSN)
			}
			f.send(f.provider, &wire.Packet{
				BTH:  wire.BTH{Opcode: wire.RCAcknowledge, PKey: wire.DefaultPKey, DestQP: f.qp, PSN: verbsPSN},
				AETH: wire.AETH{Syndrome: wire.RNR(time.Millisecond)},
			})
		}
		if err := <-ended; err == nil || errors.Is(err, context.DeadlineExceeded) || send.Status&via.StatusErrorMask != via.StatusRemoteDescError {
			t.Errorf("%d retries: the work ended with %#x, %v", retries, uint32(send.Status), err)
		}
		if c := counted(t, p, farAddr); c.RNRsReceived != uint64(retries)+1 {
			t.Errorf("%d retries: counters %+v", retries, c)
		}
		check(t, y.Close())
	}
}
