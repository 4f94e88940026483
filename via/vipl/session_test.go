package vipl_test

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/viatest/loopback"
	"github.com/viablk/viablk/via/vipl"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// session is two NICs, and which functions succeeded so far.
type session struct {
	t            *testing.T
	net          *loopback.Network
	done         map[string]bool
	client, host end
}

// end is one end of the session.
type end struct {
	nic   *via.NIC
	tag   via.Ptag
	arena *via.Arena
	mem   *via.Memory
	vi    *via.VI
	attrs via.ViAttributes
}

// ok checks a function's code and notes the function.
func (s *session) ok(name string, r vipl.Return) {
	s.t.Helper()
	if r != vipl.Success {
		s.t.Fatalf("%s: %v", name, r)
	}
	s.done[name] = true
}

func (s *session) open() end {
	s.t.Helper()
	nic, r := vipl.VipOpenNic(s.net, "")
	s.ok("VipOpenNic", r)
	tag, r := vipl.VipCreatePtag(nic)
	s.ok("VipCreatePtag", r)
	arena, err := nic.NewArena(1 << 16)
	if err != nil {
		s.t.Fatal(err)
	}
	mem, r := vipl.VipRegisterMem(nic, arena.Bytes(), &via.MemAttributes{Ptag: tag})
	s.ok("VipRegisterMem", r)
	attrs := via.ViAttributes{Reliability: via.ReliableDelivery, Ptag: tag}
	vi, r := vipl.VipCreateVi(nic, &attrs, nil, nil)
	s.ok("VipCreateVi", r)
	return end{nic, tag, arena, mem, vi, attrs}
}

// desc returns a descriptor over the first 8 bytes behind the descriptors.
func (s *session) desc(e end, place int, op via.Opcode) *via.Descriptor {
	s.t.Helper()
	d, err := e.mem.NewDescriptor(place*64, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	d.Reset(op)
	d.AddSegment(e.mem.Addr()+4096, e.mem.Handle(), 8)
	return d
}

var (
	hostAddr   = via.Address{Host: "server", Discriminator: "disk"}
	clientAddr = via.Address{Host: "client", Discriminator: "disk"}
)

// connect connects the client to the host by the calls of client and server.
func (s *session) connect() {
	s.t.Helper()
	answered := make(chan vipl.Return, 1)
	go func() {
		_, r := vipl.VipConnectRequest(s.client.vi, &clientAddr, &hostAddr, vipl.Infinite)
		answered <- r
	}()
	_, _, conn, r := vipl.VipConnectWait(s.host.nic, &hostAddr, vipl.Infinite)
	s.ok("VipConnectWait", r)
	s.ok("VipConnectAccept", vipl.VipConnectAccept(conn, s.host.vi))
	s.ok("VipConnectRequest", <-answered)
}

// Every function succeeds in one session: two ends, both models of completion,
// both ways to connect.
func TestSession(t *testing.T) {
	s := &session{t: t, net: loopback.New(), done: make(map[string]bool)}
	s.client, s.host = s.open(), s.open()
	s.ok("VipErrorCallback", vipl.VipErrorCallback(s.host.nic, nil, nil))
	if _, _, _, r := vipl.VipConnectWait(s.host.nic, &hostAddr, 0); r != vipl.Return(via.ErrTimeout) {
		t.Errorf("wait without a caller: %v", r)
	}
	s.attributes()
	s.refuse()
	s.connect()
	s.exchange()
	s.ok("VipDisconnect", vipl.VipDisconnect(s.client.vi))
	for { // the host learns of it
		if state, _, _, _, _ := vipl.VipQueryVi(s.host.vi); state == via.StateError {
			break
		}
		vipl.VipRecvDone(s.host.vi)
	}
	s.ok("VipDisconnect", vipl.VipDisconnect(s.host.vi))
	s.peers()
	s.queues()
	s.names()
	for _, e := range []end{s.client, s.host} {
		s.ok("VipDeregisterMem", vipl.VipDeregisterMem(e.nic, e.mem.Addr(), e.mem))
		if r := vipl.VipDeregisterMem(e.nic, e.mem.Addr(), e.mem); r != vipl.Return(via.ErrInvalidParameter) {
			t.Errorf("deregister again: %v", r)
		}
		s.ok("VipDestroyPtag", vipl.VipDestroyPtag(e.nic, e.tag))
		s.ok("VipCloseNic", vipl.VipCloseNic(e.nic))
	}
	if got, want := slices.Sorted(maps.Keys(s.done)), functions(t); !slices.Equal(got, want) {
		t.Errorf("succeeded: %v, want %v", got, want)
	}
}

// attributes asks for and sets what can be.
func (s *session) attributes() {
	h := s.host
	name, limits, r := vipl.VipQueryNic(h.nic)
	s.ok("VipQueryNic", r)
	if name != "loopback" || limits.MaxSegmentsPerDesc < 252 {
		s.t.Errorf("nic %q, %+v", name, limits)
	}
	s.ok("VipSetMemAttributes", vipl.VipSetMemAttributes(h.nic, h.mem.Addr(), h.mem, &via.MemAttributes{Ptag: h.tag, EnableRdmaRead: true}))
	m, r := vipl.VipQueryMem(h.nic, h.mem.Addr(), h.mem)
	s.ok("VipQueryMem", r)
	if !m.EnableRdmaRead || m.EnableRdmaWrite {
		s.t.Errorf("memory %+v", m)
	}
	if r := vipl.VipSetMemAttributes(h.nic, h.mem.Addr()+1, h.mem, &m); r != vipl.Return(via.ErrInvalidParameter) {
		s.t.Errorf("another address: %v", r)
	}
	if _, r := vipl.VipQueryMem(s.client.nic, h.mem.Addr(), h.mem); r != vipl.Return(via.ErrInvalidParameter) {
		s.t.Errorf("another nic: %v", r)
	}
	attrs := h.attrs
	attrs.EnableRdmaWrite = true
	s.ok("VipSetViAttributes", vipl.VipSetViAttributes(h.vi, &attrs))
	state, got, send, recv, r := vipl.VipQueryVi(h.vi)
	s.ok("VipQueryVi", r)
	if state != via.StateIdle || !got.EnableRdmaWrite || !send || !recv {
		s.t.Errorf("vi is %v, %+v, empty: %v, %v", state, got, send, recv)
	}
}

// refuse lets the host refuse the client.
func (s *session) refuse() {
	answered := make(chan vipl.Return, 1)
	go func() {
		_, r := vipl.VipConnectRequest(s.client.vi, &clientAddr, &hostAddr, vipl.Infinite)
		answered <- r
	}()
	_, _, conn, r := vipl.VipConnectWait(s.host.nic, &hostAddr, vipl.Infinite)
	s.ok("VipConnectWait", r)
	s.ok("VipConnectReject", vipl.VipConnectReject(conn))
	if r := <-answered; r != vipl.Return(via.ErrReject) {
		s.t.Errorf("refused request: %v", r)
	}
}

// exchange sends messages in the work queue model, taken in three ways.
func (s *session) exchange() {
	c, h := s.client, s.host
	post := func() (send, recv *via.Descriptor) {
		recv = s.desc(h, 0, via.OpRecv)
		s.ok("VipPostRecv", vipl.VipPostRecv(h.vi, recv, h.mem))
		send = s.desc(c, 0, via.OpSend)
		s.ok("VipPostSend", vipl.VipPostSend(c.vi, send, c.mem))
		return send, recv
	}
	take := func(name string, want *via.Descriptor, f func() (*via.Descriptor, vipl.Return)) {
		s.t.Helper()
		d, r := f()
		s.ok(name, r)
		if d != want {
			s.t.Errorf("%s: descriptor %p, want %p", name, d, want)
		}
	}
	send, recv := post()
	take("VipSendWait", send, func() (*via.Descriptor, vipl.Return) { return vipl.VipSendWait(c.vi, vipl.Infinite) })
	take("VipRecvWait", recv, func() (*via.Descriptor, vipl.Return) { return vipl.VipRecvWait(h.vi, vipl.Infinite) })
	send, recv = post()
	poll := func(f func(*via.VI) (*via.Descriptor, vipl.Return), vi *via.VI) func() (*via.Descriptor, vipl.Return) {
		return func() (*via.Descriptor, vipl.Return) {
			for {
				if d, r := f(vi); r != vipl.Return(via.ErrNotDone) {
					return d, r
				}
			}
		}
	}
	take("VipSendDone", send, poll(vipl.VipSendDone, c.vi))
	take("VipRecvDone", recv, poll(vipl.VipRecvDone, h.vi))
	type call struct {
		context any
		nic     *via.NIC
		vi      *via.VI
		d       *via.Descriptor
	}
	calls := make(chan call, 1)
	handler := func(context any, nic *via.NIC, vi *via.VI, d *via.Descriptor) { calls <- call{context, nic, vi, d} }
	s.ok("VipRecvNotify", vipl.VipRecvNotify(h.vi, "receive", handler))
	send, recv = post()
	if got, want := <-calls, (call{"receive", h.nic, h.vi, recv}); got != want {
		s.t.Errorf("notified of %+v, want %+v", got, want)
	}
	s.ok("VipSendNotify", vipl.VipSendNotify(c.vi, "send", handler))
	if got, want := <-calls, (call{"send", c.nic, c.vi, send}); got != want {
		s.t.Errorf("notified of %+v, want %+v", got, want)
	}
}

// peers connects both ends by the symmetric calls.
func (s *session) peers() {
	c, h := s.client, s.host
	s.ok("VipConnectPeerRequest", vipl.VipConnectPeerRequest(c.vi, &clientAddr, &hostAddr, vipl.Infinite))
	s.ok("VipConnectPeerRequest", vipl.VipConnectPeerRequest(h.vi, &hostAddr, &clientAddr, vipl.Infinite))
	attrs, r := vipl.VipConnectPeerWait(c.vi)
	s.ok("VipConnectPeerWait", r)
	if !attrs.EnableRdmaWrite {
		s.t.Errorf("the peer's attributes are %+v", attrs)
	}
	for {
		if _, r = vipl.VipConnectPeerDone(h.vi); r != vipl.Return(via.ErrNotDone) {
			break
		}
	}
	s.ok("VipConnectPeerDone", r)
	for _, e := range []end{c, h} {
		s.ok("VipDisconnect", vipl.VipDisconnect(e.vi))
		s.ok("VipDestroyVi", vipl.VipDestroyVi(e.vi))
	}
}

// queues takes completions from a completion queue, in three ways.
func (s *session) queues() {
	c := s.client
	cq, r := vipl.VipCreateCQ(c.nic, 4)
	s.ok("VipCreateCQ", r)
	s.ok("VipResizeCQ", vipl.VipResizeCQ(cq, 16))
	vi, r := vipl.VipCreateVi(c.nic, &c.attrs, cq, cq)
	s.ok("VipCreateVi", r)
	flush := func() { // an unconnected send completes at once
		s.ok("VipPostSend", vipl.VipPostSend(vi, s.desc(c, 0, via.OpSend), c.mem))
	}
	flush()
	got, recv, r := vipl.VipCQDone(cq)
	s.ok("VipCQDone", r)
	flush()
	if waited, _, r := vipl.VipCQWait(cq, 1); waited != vi || r != vipl.Success {
		s.t.Errorf("waited for %p: %v, want %p", waited, r, vi)
	}
	s.done["VipCQWait"] = true
	if got != vi || recv {
		s.t.Errorf("entry %p, %v, want %p", got, recv, vi)
	}
	var called any
	s.ok("VipCQNotify", vipl.VipCQNotify(cq, "entry", func(context any, nic *via.NIC, of *via.VI, recv bool) {
		if nic != c.nic || of != vi || recv {
			s.t.Errorf("notified of %p, %p, %v", nic, of, recv)
		}
		called = context
	}))
	flush()
	if called != "entry" {
		s.t.Errorf("called with %v", called)
	}
	for range 3 {
		if d, r := vipl.VipSendDone(vi); d == nil || r != vipl.Return(via.ErrDescriptor) {
			s.t.Errorf("flushed send: %p, %v", d, r)
		}
	}
	s.ok("VipDestroyVi", vipl.VipDestroyVi(vi))
	s.ok("VipDestroyCQ", vipl.VipDestroyCQ(cq))
}

// directory is a name service of one host.
type directory struct{}

func (directory) AddressesOf(context.Context, string) ([]string, error) {
	return []string{"server"}, nil
}
func (directory) NameOf(context.Context, string) (string, error) { return "alpha", nil }

// names asks for names and neighbours.
func (s *session) names() {
	nic := s.host.nic
	s.ok("VipNSInit", vipl.VipNSInit(nic, directory{}))
	addr, r := vipl.VipNSGetHostByName(nic, "alpha", 0)
	s.ok("VipNSGetHostByName", r)
	name, r := vipl.VipNSGetHostByAddr(nic, &addr)
	s.ok("VipNSGetHostByAddr", r)
	if addr.Host != "server" || name != "alpha" {
		s.t.Errorf("address %v, name %q", addr, name)
	}
	s.ok("VipNSShutdown", vipl.VipNSShutdown(nic))
	found, r := vipl.VipQuerySystemManagementInfo(nic, vipl.SmiAutodiscovery, 1)
	s.ok("VipQuerySystemManagementInfo", r)
	if !slices.Contains(found, via.DiscoveredHost{Host: "server", Hops: 1}) {
		s.t.Errorf("neighbours %v", found)
	}
}
