package viatest

import (
	"github.com/viablk/viablk/via"
)

// receiverRows are the errors that R meets, by what S asks of it.
func receiverRows() []row {
	return []row{
		{4, "ReceiveQueueEmpty", []variant{
			{name: "send", act: sendMeetsNothing, want: queueEmpty},
			{name: "write with immediate", act: writeMeetsNothing, want: queueEmpty},
		}},
		{5, "MessageTooLong", []variant{
			{name: "one byte", act: tooLong(101, 100), want: inReceive(length)},
			{name: "no room at all", act: tooLong(1, 0), want: inReceive(length)},
			{name: "long message", act: tooLong(20000, 12345), want: inReceive(length)},
		}},
		{6, "ReceiveWithdrawn", []variant{
			{name: "deregistered", act: withdrawn(deregister), want: inReceive(protection)},
			{name: "of another tag", act: withdrawn(retag), want: inReceive(protection)},
		}},
		{10, "WriteRefused", []variant{
			{name: "region without access", act: writeRefused(noAccess), want: refusedPlain},
			{name: "past the end", act: writeRefused(pastTheEnd), want: refusedPlain},
			{name: "dead handle", act: writeRefused(deadHandle), want: refusedPlain},
		}},
		{11, "ImmediateWriteRefused", []variant{
			{name: "region without access", act: immediateRefused(noAccess), want: refusedImmediate},
			{name: "dead handle", act: immediateRefused(deadHandle), want: refusedImmediate},
		}},
		{13, "ReadRefused", []variant{
			{name: "region without access", needs: NeedsRdmaRead, act: readRefused(noAccess), want: refusedRead},
			{name: "dead handle", needs: NeedsRdmaRead, act: readRefused(deadHandle), want: refusedRead},
		}},
	}
}

// unreported is what a Send may say whose error its sender need not learn.
var unreported = can(good, flushed, transport, remoteDesc)

var queueEmpty = [3]expectation{
	{staysConnected: true, sender: can(good), atReceiver: hears(via.AsyncRecvQueueEmpty)},
	{sender: unreported, atReceiver: hears(via.AsyncRecvQueueEmpty)},
	{sender: can(remoteDesc), atReceiver: hears(via.AsyncRecvQueueEmpty)},
}

// inReceive is an error of the receive that a message meets.
func inReceive(bit via.Status) [3]expectation {
	return [3]expectation{
		{staysConnected: true, sender: can(good), receiver: can(bit)},
		{sender: unreported, receiver: can(bit)},
		{sender: can(remoteDesc), receiver: can(bit)},
	}
}

var refusedPlain = [3]expectation{
	{staysConnected: true, sender: can(good), atReceiver: hears(via.AsyncRdmaWriteProt)},
	{sender: can(good, flushed, rdmaProt), atReceiver: hears(via.AsyncRdmaWriteProt)},
	{sender: can(rdmaProt), atReceiver: hears(via.AsyncRdmaWriteProt)},
}

var refusedImmediate = [3]expectation{
	{staysConnected: true, sender: can(good), receiver: can(rdmaProt)},
	{sender: can(good, flushed, rdmaProt), receiver: can(rdmaProt)},
	{sender: can(rdmaProt), receiver: can(rdmaProt)},
}

var refusedRead = [3]expectation{
	{staysConnected: true, sender: can(format)},
	{sender: can(rdmaProt), atReceiver: hears(via.AsyncRdmaReadProt)},
	{sender: can(rdmaProt), atReceiver: hears(via.AsyncRdmaReadProt)},
}

// meetsNothing posts a message for which there is no receive. Where the
// connection survives, what follows would meet none either.
func meetsNothing(s *errCase, d *via.Descriptor) {
	s.bad = s.client.stage(d)
	if s.unreliable() {
		s.client.vi.Doorbell()
	} else {
		s.follow()
	}
}

func sendMeetsNothing(s *errCase) {
	meetsNothing(s, s.badSend(s.guarded(s.client, 40)))
}

func writeMeetsNothing(s *errCase) {
	meetsNothing(s, s.badWriteImmediate(at(s.guarded(s.server, 40)), s.guarded(s.client, 40)))
}

func tooLong(size, room int) func(s *errCase) {
	return func(s *errCase) {
		s.server.recv(s.guarded(s.server, room))
		s.receives(2)
		s.strike(s.badSend(s.guarded(s.client, size)))
	}
}

// withdrawn takes a receive's memory away while it is posted.
func withdrawn(withdraw func(s *errCase, m *via.Memory) error) func(s *errCase) {
	return func(s *errCase) {
		m := s.registered(s.untouched(s.server, 64), via.MemAttributes{Ptag: s.server.tag})
		d := s.server.desc(1)
		d.Reset(via.OpRecv)
		d.AddSegment(m.Addr(), m.Handle(), 64)
		s.server.postRecv(s.server.vi, d)
		s.receives(2)
		s.check(withdraw(s, m), "withdraw the receive's memory")
		s.strike(s.badSend(s.guarded(s.client, 40)))
	}
}

func deregister(_ *errCase, m *via.Memory) error { return m.Deregister() }

// retag moves a region to a tag that no VI has.
func retag(s *errCase, m *via.Memory) error {
	tag, err := s.server.nic.CreatePtag()
	s.check(err, "create tag")
	return m.SetAttributes(via.MemAttributes{Ptag: tag})
}

// operand returns R's memory, which an operation of 64 bytes must not touch,
// and how to name it so that it is refused.
type operand func(s *errCase) *target

// registered registers guarded memory of R for the case.
func (s *errCase) registered(b buf, attrs via.MemAttributes) *via.Memory {
	m := s.region(s.server, b, attrs)
	s.t.Cleanup(func() { _ = m.Deregister() }) // may be done
	return m
}

func noAccess(s *errCase) *target {
	m := s.registered(s.untouched(s.server, 64), via.MemAttributes{Ptag: s.server.tag})
	return &target{m.Addr(), m.Handle()}
}

func pastTheEnd(s *errCase) *target {
	m := s.registered(s.untouched(s.server, 64), s.server.open())
	return &target{m.Addr() + 1, m.Handle()}
}

func deadHandle(s *errCase) *target {
	m := s.registered(s.untouched(s.server, 64), s.server.open())
	s.check(m.Deregister(), "deregister")
	return &target{m.Addr(), m.Handle()}
}

func writeRefused(to operand) func(s *errCase) {
	return func(s *errCase) {
		s.receives(2)
		s.strike(s.badRdma(via.OpRdmaWrite, to(s), s.guarded(s.client, 64)))
	}
}

func immediateRefused(to operand) func(s *errCase) {
	return func(s *errCase) {
		s.server.recv(s.untouched(s.server, 64))
		s.receives(2)
		s.op = via.StatusOpRemoteWrite
		s.strike(s.badWriteImmediate(to(s), s.guarded(s.client, 64)))
	}
}

func readRefused(from operand) func(s *errCase) {
	return func(s *errCase) {
		s.receives(2)
		s.overtaken = s.level == via.ReliableDelivery
		s.strike(s.badRdma(via.OpRdmaRead, from(s), s.untouched(s.client, 64)))
	}
}
