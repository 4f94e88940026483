package roce_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/roce/interop"
	"github.com/viablk/viablk/via/roce/port"
	"github.com/viablk/viablk/via/roce/wire"
)

// meetVerbsPeer connects an end to a peer without extensions.
func meetVerbsPeer(t *testing.T, timeout time.Duration) (y *interop.End, p *roce.Provider, n *port.Network, f *verbsPeer) {
	t.Helper()
	n = port.NewNetwork(1, 9000)
	p = roce.New(roce.Options{Open: n.Open, Timeout: timeout, Retries: 2})
	y = openVerbs(t, p, farAddr)
	f = &verbsPeer{unknownPeer: newUnknownPeer(t, n, verbsAddr.String()), provider: farAddr.String()}
	f.meet(t, y)
	return y, p, n, f
}

var verbsAddr = netip.MustParseAddrPort("10.0.0.66:4791")

// meet has an end accept a connection of the peer.
func (f *verbsPeer) meet(t *testing.T, y *interop.End) {
	t.Helper()
	accepted, listening := make(chan error, 1), make(chan struct{})
	go func() {
		accepted <- y.Accept(withTimeout(t), farAddr.String(), func() { close(listening) })
	}()
	<-listening
	f.connect(verbsAddr, 7)
	check(t, <-accepted)
}

// requestAgain sends a REQ that names the queue pair of a connection.
func (f *verbsPeer) requestAgain(id uint32) {
	f.t.Helper()
	req := &wire.REQ{
		TID: uint64(id), LocalID: id, ServiceID: wire.TCPService(10809), LocalGUID: 7, LocalQP: verbsQP,
		RemoteTimeout: 20, LocalTimeout: 20, PKey: wire.DefaultPKey, MTU: wire.MTU1024,
	}
	f.tell(req)
	var rej wire.REJ
	for rej.Decode(f.next(wire.GSI).Payload) != wire.Accepted { // a REP may have been repeated
	}
	if rej.Reason != wire.RejectStale {
		f.t.Fatalf("a REQ of a connected queue pair is rejected for %v", rej.Reason)
	}
}

// acknowledge answers the provider's request with a PSN.
func (f *verbsPeer) acknowledge(psn wire.PSN) {
	f.t.Helper()
	f.send(f.provider, &wire.Packet{
		BTH:  wire.BTH{Opcode: wire.RCAcknowledge, PKey: wire.DefaultPKey, DestQP: f.qp, PSN: psn},
		AETH: wire.AETH{Syndrome: wire.ACK},
	})
}

// probed awaits the probe of the provider.
func (f *verbsPeer) probed(psn wire.PSN) {
	f.t.Helper()
	if p := f.next(verbsQP); p.Opcode != wire.RCWriteOnly || p.PSN != psn || p.RETH.Length != 0 || !p.AckRequest {
		f.t.Fatalf("a probe is %v, PSN %d, length %d", p.Opcode, p.PSN, p.RETH.Length)
	}
}

// A request in the name of a connected peer costs that peer nothing: its queue
// pair answers the probe, and the connection works on.
func TestSpoofedRequestOfConnectedPeer(t *testing.T) {
	y, p, _, f := meetVerbsPeer(t, 5*time.Second)
	f.requestAgain(100)
	f.probed(verbsPSN - 1)
	f.acknowledge(verbsPSN - 1)
	send := y.Work(via.OpSend, 0, 100)
	check(t, y.Post(send))
	for f.next(verbsQP).Opcode != wire.RCSendOnly {
		f.acknowledge(verbsPSN - 1) // a probe was repeated
	}
	f.acknowledge(verbsPSN)
	check(t, y.Await(withTimeout(t), send))
	if c := counted(t, p, farAddr); c.Received < 2 {
		t.Errorf("counters %+v", c)
	}
	check(t, y.Close())
}

// A peer that has restarted connects with another queue pair at once; the old
// connection ends when its queue pair does not answer.
func TestRestartOfConnectedPeer(t *testing.T) {
	y, p, _, f := meetVerbsPeer(t, 50*time.Millisecond)
	f.requestAgain(100)
	f.probed(verbsPSN - 1)

	again := openVerbs(t, p, farAddr)
	f.restarts++
	f.meet(t, again)
	if _, err := y.Wait(withTimeout(t)); err == nil {
		t.Error("the connection of a queue pair that is gone works on")
	}
	check(t, y.Close())
	check(t, again.Close())
}

// The first packet in turn determines the port of a peer that is not viablk:
// packets from other ports, before and after it, change nothing.
func TestPortOfConnectedPeer(t *testing.T) {
	y, p, n, f := meetVerbsPeer(t, 5*time.Second)
	other := newUnknownPeer(t, n, netip.AddrPortFrom(verbsAddr.Addr(), 5000).String())
	expected := f.expects
	message := func(s *unknownPeer, psn wire.PSN, text string) {
		s.send(f.provider, &wire.Packet{
			BTH:     wire.BTH{Opcode: wire.RCSendOnly, PKey: wire.DefaultPKey, DestQP: f.qp, PSN: psn, AckRequest: true},
			Payload: []byte(text),
		})
	}
	works := []*via.Work{y.Work(via.OpRecv, 0, 8), y.Work(via.OpRecv, 8, 8)}
	check(t, y.Post(works...))
	message(other, expected.Add(1<<20), "far away")
	message(f.unknownPeer, expected, "genuine1")
	check(t, y.Await(withTimeout(t), works[0]))
	before := badSource(statisticsAt(p, farAddr))
	message(other, expected.Add(1), "WRONG!!!")
	within(t, "the packet to be counted", func() bool { return badSource(statisticsAt(p, farAddr)) == before+1 })
	message(f.unknownPeer, expected.Add(1), "genuine2")
	check(t, y.Await(withTimeout(t), works[1]))
	if got := string(y.Memory.Bytes()[:16]); got != "genuine1genuine2" {
		t.Errorf("the messages are %q", got)
	}
	check(t, y.Close())
}

// statisticsAt returns the statistics of the endpoint at an address.
func statisticsAt(p *roce.Provider, at netip.AddrPort) *roce.EndpointStatistics {
	for _, e := range p.Statistics() {
		if e.Local == at {
			return &e
		}
	}
	return new(roce.EndpointStatistics)
}
