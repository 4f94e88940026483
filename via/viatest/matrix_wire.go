package viatest

import (
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/hook"
)

// struck is the plan of a case whose bad operation the fabric spoils.
func struck(f via.Fault) hook.Plan {
	return hook.Plan{Faults: map[int]via.Fault{faultAt: f}}
}

// wireRows are the errors that the fabric makes.
func wireRows() []row {
	const (
		short = 100
		long  = 20000
	)
	corrupt, drop, truncate := struck(via.FaultCorrupt), struck(via.FaultDrop), struck(via.FaultTruncate)
	return []row{
		{7, "MessageCorrupt", []variant{
			{name: "short", needs: NeedsFaults, plan: corrupt, act: wireSend(short), want: corruptMessage},
			{name: "long", needs: NeedsFaults, plan: corrupt, act: wireSend(long), want: corruptMessage},
		}},
		{8, "MessageLost", []variant{
			{name: "empty", needs: NeedsFaults, plan: drop, act: wireSend(0), want: lostMessage},
			{name: "long", needs: NeedsFaults, plan: drop, act: wireSend(long), want: lostMessage},
			{name: "nothing follows", needs: NeedsFaults, plan: drop, act: lastSend(short), want: lostMessage},
			{name: "write", needs: NeedsFaults, plan: drop, act: lostWrite, want: lostMessage},
			{name: "write with immediate", needs: NeedsFaults, plan: drop, act: lostWriteImmediate, want: lostMessage},
		}},
		{9, "PartialMessage", []variant{
			{name: "short send", needs: NeedsFaults, plan: truncate, act: wireSend(short), want: partialMessage},
			{name: "long send", needs: NeedsFaults, plan: truncate, act: wireSend(long), want: partialMessage},
			{name: "write with immediate", needs: NeedsFaults, plan: truncate, act: wireWriteImmediate(long), want: partialMessage},
			{name: "write", needs: NeedsFaults, plan: truncate, act: wireWrite(long), want: spoiledWrite(via.AsyncRdmaWriteAbort)},
		}},
		{12, "WriteCorrupt", []variant{
			{name: "short write", needs: NeedsFaults, plan: corrupt, act: wireWrite(short), want: spoiledWrite(via.AsyncRdmaWriteData)},
			{name: "long write", needs: NeedsFaults, plan: corrupt, act: wireWrite(long), want: spoiledWrite(via.AsyncRdmaWriteData)},
			{name: "write with immediate", needs: NeedsFaults, plan: corrupt, act: wireWriteImmediate(long), want: corruptImmediate},
		}},
		{15, "ReadFails", []variant{
			{name: "lost", needs: NeedsRdmaRead | NeedsFaults, plan: drop, act: wireRead(short), want: failedRead},
			{name: "corrupt", needs: NeedsRdmaRead | NeedsFaults, plan: corrupt, act: wireRead(long), want: failedRead},
			{name: "cut off", needs: NeedsRdmaRead | NeedsFaults, plan: truncate, act: wireRead(long), want: failedRead},
		}},
	}
}

var (
	corruptMessage = [3]expectation{
		{staysConnected: true, sender: can(good), receiver: can(untold, transport)},
		{sender: unreported, receiver: can(untold, transport), somewhere: transport},
		{sender: can(transport), receiver: can(untold, transport)},
	}
	lostMessage = [3]expectation{
		{staysConnected: true, sender: can(good), receiver: can(untold)},
		{sender: can(good, flushed, transport), receiver: can(untold)},
		{sender: can(transport), receiver: can(untold)},
	}
	partialMessage = [3]expectation{
		{staysConnected: true, sender: can(good), receiver: can(partial)},
		{sender: can(good, flushed, transport), receiver: can(partial)},
		{sender: can(transport), receiver: can(partial)},
	}
	corruptImmediate = [3]expectation{
		{staysConnected: true, sender: can(good), receiver: can(transport)},
		{sender: can(good, flushed, transport), receiver: can(transport)},
		{sender: can(transport), receiver: can(transport)},
	}
	failedRead = [3]expectation{
		{staysConnected: true, sender: can(format)},
		{sender: can(transport), atSender: hears(via.AsyncRdmaTransport)},
		{sender: can(transport), atSender: hears(via.AsyncRdmaTransport)},
	}
)

// spoiledWrite is an RDMA Write that arrives spoiled and consumes no receive.
func spoiledWrite(code via.AsyncCode) [3]expectation {
	return [3]expectation{
		{staysConnected: true, sender: can(good), atReceiver: hears(code)},
		{sender: can(good, flushed, transport), atReceiver: hears(code)},
		{sender: can(transport), atReceiver: hears(code)},
	}
}

func wireSend(size int) func(s *errCase) {
	return func(s *errCase) {
		for range 3 {
			s.server.recv(s.guarded(s.server, max(size, 64)))
		}
		s.strike(s.badSend(s.guarded(s.client, size)))
	}
}

func lastSend(size int) func(s *errCase) {
	return func(s *errCase) {
		s.server.recv(s.guarded(s.server, size))
		s.bad = s.client.stage(s.badSend(s.guarded(s.client, size)))
		s.client.vi.Doorbell()
	}
}

func wireWrite(size int) func(s *errCase) {
	return func(s *errCase) {
		s.receives(2)
		s.strike(s.badRdma(via.OpRdmaWrite, at(s.guarded(s.server, size)), s.guarded(s.client, size)))
	}
}

func wireWriteImmediate(size int) func(s *errCase) {
	return func(s *errCase) {
		s.server.recv(s.untouched(s.server, 64))
		s.receives(2)
		s.strike(s.badWriteImmediate(at(s.guarded(s.server, size)), s.guarded(s.client, size)))
	}
}

func lostWrite(s *errCase) {
	s.receives(2)
	s.strike(s.badRdma(via.OpRdmaWrite, at(s.untouched(s.server, 64)), s.guarded(s.client, 64)))
}

func lostWriteImmediate(s *errCase) {
	s.receives(3)
	s.strike(s.badWriteImmediate(at(s.guarded(s.server, 64)), s.guarded(s.client, 64)))
}

func wireRead(size int) func(s *errCase) {
	return func(s *errCase) {
		s.receives(2)
		s.overtaken = s.level == via.ReliableDelivery
		s.strike(s.badRdma(via.OpRdmaRead, at(s.guarded(s.server, size)), s.guarded(s.client, size)))
	}
}
