package viatest

import (
	"bytes"
	"slices"

	"github.com/viablk/viablk/via"
)

// expect waits for the effects of an error and compares them with those of the
// level.
func (s *errCase) expect(want *expectation) {
	s.t.Helper()
	if s.bad != nil {
		s.completion(s.client, s.bad)
	}
	if want.staysConnected {
		s.until("the messages behind the error", func() bool { return len(s.arrived()) >= len(s.early)+len(s.late) })
		s.until("the sends behind the error", func() bool { send, _ := s.client.vi.QueuesEmpty(); return send })
	} else {
		s.breaks(s.client, s.server)
		s.until("all descriptors", func() bool { return s.client.allComplete() && s.server.allComplete() })
	}
	s.untilHeard(s.client, want.atSender)
	s.untilHeard(s.server, want.atReceiver)
	s.quietly()
	s.expectDescriptors(want)
	s.expectMessages(want)
	s.expectLaterSends(want)
	s.expectCallbacks(s.client, want.atSender, want.staysConnected)
	s.expectCallbacks(s.server, want.atReceiver, want.staysConnected)
	for _, k := range s.kept {
		if !bytes.Equal(k.b, k.want) {
			s.t.Errorf("%s: %s has changed", k.x.name, k.what)
		}
	}
	if want.staysConnected {
		s.state(s.client, via.StateConnected)
		s.state(s.server, via.StateConnected)
		s.costs()
		return
	}
	s.rejoin()
	s.passes(s.client, s.server)
	s.passes(s.server, s.client)
}

// allComplete reports whether all that was posted to the default VI has
// completed.
func (x *end) allComplete() bool {
	return len(x.posted[queueKey{x.vi, true}])+len(x.posted[queueKey{x.vi, false}]) == 0
}

// since returns what an end completed since the case began.
func (s *errCase) since(x *end) []via.Completion {
	if x == s.client {
		return x.done[s.from[0]:]
	}
	return x.done[s.from[1]:]
}

// arrived lists the numbers of the messages that R received well, in order.
func (s *errCase) arrived() []uint32 {
	var out []uint32
	for _, c := range s.since(s.server) {
		if c.Recv && !c.Status.Failed() && c.Descriptor != s.memoryGone {
			out = append(out, c.Immediate)
		}
	}
	return out
}

// told returns the error bits, flushes aside, that an end's receives or sends
// carry.
func (s *errCase) told(x *end, recv bool) []via.Completion {
	var out []via.Completion
	for _, c := range s.since(x) {
		if bits := c.Status & via.StatusErrorMask; c.Recv == recv && bits != 0 && bits != via.StatusFlushed {
			out = append(out, c)
		}
	}
	return out
}

// expectDescriptors checks S's descriptor and the receive that it met.
func (s *errCase) expectDescriptors(want *expectation) {
	s.t.Helper()
	sender := good
	if s.bad != nil {
		sender = s.client.seen[s.bad].Status & via.StatusErrorMask
		if !slices.Contains(want.sender, sender) {
			s.t.Errorf("S's descriptor says %v, want one of %v", sender|via.StatusDone, named(want.sender))
		}
	}
	receiver := untold
	met := s.told(s.server, true)
	if len(met) > 1 {
		s.t.Errorf("%d receives tell of one error", len(met))
	}
	if len(met) != 0 {
		receiver = met[0].Status & via.StatusErrorMask
		if s.op != 0 && met[0].Status&via.StatusOpMask != s.op {
			s.t.Errorf("the receive that tells of the error is one of operation %#x, want %#x",
				uint32(met[0].Status&via.StatusOpMask), uint32(s.op))
		}
	}
	if allowed := want.receiver; !slices.Contains(allowed, receiver) && !(allowed == nil && receiver == untold) {
		s.t.Errorf("R's receive says %v, want one of %v", named(can(receiver)), named(allowed))
	}
	if want.somewhere != 0 && sender != want.somewhere && receiver != want.somewhere {
		s.t.Errorf("neither end's descriptor says %v", want.somewhere|via.StatusDone)
	}
}

// named lists outcomes in words.
func named(outcomes []via.Status) []string {
	var out []string
	for _, o := range outcomes {
		if o == untold {
			out = append(out, "nothing")
		} else {
			out = append(out, (o | via.StatusDone).String())
		}
	}
	return out
}

// expectMessages checks what arrived: all messages in order, or on a broken
// connection a prefix of those before the error.
func (s *errCase) expectMessages(want *expectation) {
	s.t.Helper()
	got := s.arrived()
	if s.arrives {
		got = slices.DeleteFunc(got, func(n uint32) bool { return n == badNumber })
	}
	all := slices.Concat(s.early, s.late)
	limit := len(s.early)
	if want.staysConnected || s.overtaken {
		limit = len(all)
	}
	if want.staysConnected && len(got) != len(all) || len(got) > limit || !slices.Equal(got, all[:len(got)]) {
		s.t.Errorf("R received %v; %v came before the error, %v behind it (%#x is the bad one)", got, s.early, s.late, badNumber)
	}
}

// expectLaterSends checks S's descriptors behind the error.
func (s *errCase) expectLaterSends(want *expectation) {
	s.t.Helper()
	failed := false
	for i, d := range s.behind {
		bits := s.client.seen[d].Status & via.StatusErrorMask
		switch {
		case want.staysConnected && bits != 0, failed && bits == 0, bits != 0 && bits != flushed:
			s.t.Errorf("Send %d behind the error completed with %v", i+1, bits|via.StatusDone)
		case !want.staysConnected && bits == 0 && s.level == via.ReliableReception && !s.overtaken:
			s.t.Errorf("Send %d behind the error completed well, although it was not received", i+1)
		}
		failed = failed || bits != 0
	}
}

// untilHeard waits for as many callbacks as there must be.
func (s *errCase) untilHeard(x *end, codes []via.AsyncCode) {
	s.t.Helper()
	for _, c := range codes {
		s.raised(x, c)
	}
}

// expectCallbacks compares an end's callbacks with those it must hear.
func (s *errCase) expectCallbacks(x *end, want []via.AsyncCode, staysConnected bool) {
	s.t.Helper()
	var rest []via.AsyncCode
	for _, c := range want {
		rest = append(rest, s.heard(c))
	}
	lost := 0
	for _, a := range x.errors() {
		if a.VI != x.vi || a.NIC != x.nic {
			s.t.Errorf("%s: callback %v names another vi or nic", x.name, a.Code)
		}
		if i := slices.Index(rest, a.Code); i >= 0 {
			rest = slices.Delete(rest, i, i+1)
			if s.named != nil && a.Descriptor != s.named {
				s.t.Errorf("%s: callback %v does not name the descriptor", x.name, a.Code)
			}
			continue
		}
		if a.Code != via.AsyncConnectionLost {
			s.t.Errorf("%s: callback %v (%v), want %v", x.name, a.Code, a.Cause, want)
			continue
		}
		lost++
	}
	if len(rest) != 0 {
		s.t.Errorf("%s: callbacks %v are missing", x.name, rest)
	}
	informed := len(s.told(x, true))+len(s.told(x, false)) != 0
	switch {
	case staysConnected && lost != 0, lost > 1, len(want) != 0 && lost != 0:
		s.t.Errorf("%s: %d callbacks of a lost connection beside %v", x.name, lost, want)
	case !staysConnected && lost == 0 && len(want) == 0 && !informed:
		s.t.Errorf("%s: nothing tells that the connection is lost", x.name)
	}
}
